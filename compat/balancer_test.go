package compat

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// How a balancer chooses where a connection goes.
const (
	inTurn  = true  // to the next one
	inOrder = false // to the first one
)

// startBalancer puts one address before several: each connection goes to the one whose turn it is, or the next that takes it. It knows nothing of
// the protocol.
func startBalancer(t testing.TB, turns bool, addrs ...string) (addr string) {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns = map[net.Conn]bool{} // guarded by mu; nil at the end
	)

	// keep notes a connection, to be closed at the end at the latest.
	keep := func(c net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()

		if conns == nil {
			_ = c.Close()
			return false
		}

		conns[c] = true

		return true
	}
	forget := func(cs ...net.Conn) {
		mu.Lock()
		defer mu.Unlock()

		for _, c := range cs {
			_ = c.Close()
			delete(conns, c)
		}
	}
	serve := func(client net.Conn) {
		first := 0
		if turns {
			first = int(next.Add(1))
		}

		for i := range addrs {
			server, err := net.DialTimeout("tcp", addrs[(first+i)%len(addrs)], rawLimit)
			if err != nil {
				continue
			}

			if !keep(server) {
				return
			}

			// Either end ends both.
			wg.Go(func() {
				_, _ = io.Copy(server, client)
				forget(client, server)
			})

			_, _ = io.Copy(client, server)
			forget(client, server)

			return
		}

		forget(client)
	}

	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			if keep(c) {
				wg.Go(func() { serve(c) })
			}
		}
	})

	t.Cleanup(func() {
		_ = l.Close()

		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		conns = nil
		mu.Unlock()
		wg.Wait()
	})

	return l.Addr().String()
}
