package app

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTurns: who comes between two routers' turns is served by the second, and what is late
// of the first's end does not end the second.
func TestTurns(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a := &App{clients: l.(*net.TCPListener)} //nolint:forcetypeassert // of tcp
	first, err := a.nextTurn()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := first.Accept()
		ended <- err
	}()
	require.NoError(t, first.Close())
	require.Error(t, <-ended)

	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err, "nobody is turned away")
	defer c.Close()

	second, err := a.nextTurn()
	require.NoError(t, err)
	require.NoError(t, first.Close())
	served, err := second.Accept()
	require.NoError(t, err)
	defer served.Close()
	_, err = io.WriteString(served, "x")
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err)
}
