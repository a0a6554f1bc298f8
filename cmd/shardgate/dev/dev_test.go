package dev_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/cmd/shardgate/dev"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// envChild makes this test program be `shardgate dev` with the arguments given.
const envChild = "SHARDGATE_TEST_DEV_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(envChild) == "" {
		os.Exit(m.Run())
	}

	if err := dev.Command().Execute(); err != nil {
		os.Exit(1)
	}

	os.Exit(0)
}

// startDev starts `shardgate dev` without routers on dir and waits until it is ready.
func startDev(t *testing.T, dir string) *exec.Cmd {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), os.Args[0], "--shards", "2", "--routers", "0", "--data", dir)
	cmd.Env = append(cmd.Environ(), envChild+"=1")
	cmd.Stderr = os.Stderr

	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())

		if lines.Text() == "ready" {
			return cmd
		}
	}

	t.Fatalf("dev ended: %v", cmd.Wait())

	return nil
}

// running lists the processes whose command line names dir, and the sleeping and busy sessions of PostgreSQL, which name it
// only by their working folder.
func running(t *testing.T, dir string) []string {
	t.Helper()

	pids, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)

	var found []string

	for _, pid := range pids {
		line, err := os.ReadFile(pid + "/cmdline")
		cwd, _ := os.Readlink(pid + "/cwd")
		stat, _ := os.ReadFile(pid + "/stat")

		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			continue
		}

		if strings.Contains(string(line), dir+"/") || strings.HasPrefix(cwd, dir+"/") {
			found = append(found, fmt.Sprintf("%s %q", pid, line))
		}
	}

	return found
}

// requireNothingLeft waits until nothing of the cluster runs.
func requireNothingLeft(t *testing.T, dir string) {
	t.Helper()

	var left []string

	ok := assertEventually(10*time.Second, func() bool {
		left = running(t, dir)
		return len(left) == 0
	})
	require.True(t, ok, "left running: %v", left)
}

// assertEventually reports whether the condition comes true in time.
func assertEventually(limit time.Duration, condition func() bool) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()

	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if condition() {
			return true
		}
	}

	return false
}

func TestKillLeavesNothingRunning(t *testing.T) {
	finder := clustertest.Finder(t)
	_, err := finder.Mongod(t.Context())
	clustertest.Need(t, err)

	_, err = finder.Postgres(t.Context(), 0)
	clustertest.Need(t, err)

	dir := filepath.Join(t.TempDir(), "data")
	cmd := startDev(t, dir)

	require.GreaterOrEqual(t, len(running(t, dir)), 3)

	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	require.NoError(t, err)

	var m cluster.Manifest

	require.NoError(t, json.Unmarshal(text, &m))

	// A session that computes does not look whether PostgreSQL is still there.
	busy, err := pgx.Connect(t.Context(), m.Catalog.DSN)
	require.NoError(t, err)

	defer busy.Close(t.Context())

	done := make(chan error, 1)
	go func() {
		_, err := busy.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 100000000000) a")
		done <- err
	}()

	// A mongod that is paused hears nothing.
	require.NoError(t, syscall.Kill(m.Shards[0].Members[0].PID, syscall.SIGSTOP))

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	requireNothingLeft(t, dir)
	require.Error(t, <-done)

	// The folder is as good as before; this time the catalog is paused when the end comes.
	cmd = startDev(t, dir)

	text, err = os.ReadFile(filepath.Join(dir, "cluster.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &m))
	require.NoError(t, syscall.Kill(m.Catalog.PID, syscall.SIGSTOP))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	requireNothingLeft(t, dir)
}

func TestInterruptEndsInOrder(t *testing.T) {
	finder := clustertest.Finder(t)
	_, err := finder.Mongod(t.Context())
	clustertest.Need(t, err)

	_, err = finder.Postgres(t.Context(), 0)
	clustertest.Need(t, err)

	dir := filepath.Join(t.TempDir(), "data")
	cmd := startDev(t, dir)

	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
	require.Empty(t, running(t, dir))
	require.NoFileExists(t, filepath.Join(dir, "postgres", "postmaster.pid"))
}
