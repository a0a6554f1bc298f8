package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/wire"
)

// TestOperationsEndWithTheirClients: the context of an operation that says so ends when its
// client has gone, and not before; others go on.
func TestOperationsEndWithTheirClients(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		began, release, over := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
		f := &fakeHandler{command: func(ctx context.Context, c *Conn, _ *wire.Msg, reply *wire.Reply) (bool, error) {
			if ends {
				c.EndsWithClient()
			}
			close(began)
			select {
			case <-ctx.Done():
				over <- true
			case <-release:
				over <- ctx.Err() != nil
			}
			reply.OK()
			return false, nil
		}}
		s := startWith(t, Options{Handler: f}, func(s *Server) { s.watchEvery = 5 * time.Millisecond })
		looked := func() func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Len(t, s.conns, 1)
			for c := range s.conns {
				return func() bool { s.mu.Lock(); defer s.mu.Unlock(); return c.seen == c.count.Load() }
			}
			return nil
		}
		c := s.dial(t)
		c.send(ping(t, 1))
		<-began
		require.Eventually(t, looked(), patience, time.Millisecond) // it is not new any more
		require.Zero(t, f.left.Load(), "the client is there")

		require.NoError(t, c.Close())
		if !ends {
			require.Never(t, func() bool { return f.left.Load() > 0 }, 100*time.Millisecond, 5*time.Millisecond)
			close(release)
		}
		require.Equal(t, ends, <-over)
		if ends {
			require.Eventually(t, func() bool { return f.left.Load() > 0 }, patience, time.Millisecond)
		}
		require.Eventually(t, func() bool { return f.closed.Load() == 1 }, patience, time.Millisecond)
		s.stop()
	}
}
