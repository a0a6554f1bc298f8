package cluster

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// listenerNode returns a node that listens with Python's web server.
func listenerNode(t *testing.T) *Node {
	t.Helper()

	g := proc.NewGroup()
	t.Cleanup(g.Close)

	n := &Node{
		name: "listener", log: filepath.Join(t.TempDir(), "log"), group: g,
		changed: func() error { return nil }, notice: func(string) {},
	}
	n.command = func(port int) (proc.Spec, error) {
		return proc.Spec{
			Name: n.name, Path: "/usr/bin/env", Log: n.log,
			Args: []string{"python3", "-m", "http.server", "--bind", "127.0.0.1", strconv.Itoa(port)},
		}, nil
	}
	n.probe = func(ctx context.Context) error { return dial(ctx, n.Addr()) }

	return n
}

// take listens on a port as a stranger would.
func take(t *testing.T, port int) net.Listener {
	t.Helper()

	l, err := net.Listen("tcp", proc.Loopback(port))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })

	return l
}

func TestPortTakenBetweenChoiceAndBind(t *testing.T) {
	var ports proc.Ports

	n := listenerNode(t)
	command := n.command
	tries := 0

	n.command = func(port int) (proc.Spec, error) {
		if tries++; tries <= 2 {
			take(t, port)
		}

		return command(port)
	}
	n.probe = func(ctx context.Context) error {
		if tries <= 2 {
			return context.DeadlineExceeded // the stranger does not speak our protocol
		}

		return dial(ctx, n.Addr())
	}

	require.NoError(t, n.first(t.Context(), &ports))
	require.Equal(t, 3, tries)

	// Once it is chosen the port stays.
	chosen := n.Port()

	require.NoError(t, n.Kill())
	l := take(t, chosen)
	require.ErrorContains(t, n.Start(t.Context()), "in use by another program")
	require.NoError(t, l.Close())
	require.NoError(t, n.Start(t.Context()))
	require.Equal(t, chosen, n.Port())
}

func TestProgramThatFailsIsNotTriedAgain(t *testing.T) {
	var ports proc.Ports

	n := listenerNode(t)
	tries := 0
	n.command = func(int) (proc.Spec, error) {
		tries++
		return proc.Spec{Name: n.name, Path: "/bin/sh", Args: []string{"-c", "echo no such option; exit 3"}, Log: n.log}, nil
	}

	err := n.first(t.Context(), &ports)
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no such option")
	require.Equal(t, 1, tries)
}
