package router

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestCopyRate: what is bound waits, in turn, and ends with its context; the rest does not
// wait.
func TestCopyRate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	free := &Router{copyRate: newCopyRate(0)}
	for range 1000 {
		require.NoError(t, free.throttle(ctx, 100<<20))
	}
	slow := &Router{copyRate: newCopyRate(1 << 20)}
	require.NoError(t, slow.throttle(ctx, 17<<20), "the first goes at once")

	// A minute's worth, and there are some seconds.
	short, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	require.Equal(t, mongoerr.MaxTimeMSExpired, mongoerr.CodeOf(slow.throttle(short, 60<<20)))

	waits := make(chan error, 1)
	go func() { waits <- slow.throttle(ctx, 60<<20) }()
	select {
	case err := <-waits:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
}
