package proc

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// envParent makes this test program start a child and wait to be killed.
const envParent = "SHARDGATE_TEST_PROC_PARENT"

func TestMain(m *testing.M) {
	if sig := os.Getenv(envParent); sig != "" {
		parent(sig)
	}

	goleak.VerifyTestMain(m)
}

// parent starts a child with a death signal, says its process id, and waits.
func parent(sig string) {
	n, err := strconv.Atoi(sig)
	if err != nil {
		os.Exit(1)
	}

	p, err := NewGroup().Start(context.Background(), Spec{
		Name: "child", Path: "/bin/sleep", Args: []string{"1000"}, DeathSignal: syscall.Signal(n),
	})
	if err != nil {
		os.Exit(1)
	}

	_, _ = os.Stdout.WriteString(strconv.Itoa(p.PID()) + "\n")

	select {}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, 5*time.Second, 10*time.Millisecond)
}

// shell is a spec for a shell script.
func shell(t *testing.T, script string) Spec {
	t.Helper()

	return Spec{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log"), Grace: time.Second}
}

func TestChildDiesWithItsParent(t *testing.T) {
	for name, paused := range map[string]bool{"running": false, "paused": true} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(cmd.Environ(), envParent+"="+strconv.Itoa(int(sig)))

				out, err := cmd.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, cmd.Start())

				line, err := bufio.NewReader(out).ReadString('\n')
				require.NoError(t, err)

				pid, err := strconv.Atoi(strings.TrimSpace(line))
				require.NoError(t, err)
				require.NoError(t, syscall.Kill(pid, 0))

				if paused {
					require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
				}

				require.NoError(t, cmd.Process.Kill())
				require.Error(t, cmd.Wait())
				gone(t, pid)
			})
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	g := NewGroup()

	p, err := g.Start(t.Context(), shell(t, "setsid sleep 1000 & trap '' TERM; wait"))
	require.NoError(t, err)

	var below []int

	require.Eventually(t, func() bool {
		below = descendants(p.PID())
		return len(below) == 1
	}, 5*time.Second, 10*time.Millisecond)

	g.Close()
	g.Close()
	require.True(t, p.Ended())
	gone(t, below[0])

	_, err = g.Start(t.Context(), shell(t, "true"))
	require.ErrorIs(t, err, ErrClosed)
}

func TestStopAsksThenKills(t *testing.T) {
	g := NewGroup()
	defer g.Close()

	ready := func(s Spec) {
		require.Eventually(t, func() bool { return Tail(s.Log, 100) == "ready" }, 5*time.Second, 10*time.Millisecond)
	}

	// It hears the signal only between two children, and is paused together with one.
	polite := shell(t, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.3; done")
	polite.Grace = 30 * time.Second
	p, err := g.Start(t.Context(), polite)
	require.NoError(t, err)
	ready(polite)
	require.Eventually(t, func() bool { return len(descendants(p.PID())) == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, p.Pause())
	p.Stop(t.Context())

	var exit *exec.ExitError

	require.ErrorAs(t, p.Err(), &exit)
	require.Equal(t, 7, exit.ExitCode())

	deaf := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	p, err = g.Start(t.Context(), deaf)
	require.NoError(t, err)
	ready(deaf)
	p.Stop(t.Context())
	require.ErrorAs(t, p.Err(), &exit)
	require.Equal(t, -1, exit.ExitCode())
	require.NoError(t, p.Signal(syscall.SIGTERM), "a signal to what has ended is no error")
}

func TestRunEndsWithItsContext(t *testing.T) {
	g := NewGroup()
	defer g.Close()

	require.NoError(t, g.Run(t.Context(), shell(t, "true")))
	require.Error(t, g.Run(t.Context(), shell(t, "exit 3")))

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	require.ErrorIs(t, g.Run(ctx, shell(t, "sleep 1000")), context.DeadlineExceeded)
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.Empty(t, Tail(path, 10))
	require.NoError(t, os.WriteFile(path, []byte("first line\nsecond\nthird\n"), 0o600))
	require.Equal(t, "second\nthird", Tail(path, 15))
	require.Equal(t, "first line\nsecond\nthird", Tail(path, 1000))
}

func TestPortsAreHandedOutOnce(t *testing.T) {
	var ports Ports

	seen := map[int]bool{}

	for range 50 {
		port, err := ports.Pick()
		require.NoError(t, err)
		require.False(t, seen[port])
		seen[port] = true
	}
}

func TestOpenToOthers(t *testing.T) {
	dir := t.TempDir() // its parent is open to its owner only
	require.False(t, OpenToOthers(dir))
	require.True(t, OpenToOthers("/usr/bin"))
}
