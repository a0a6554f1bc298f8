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

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// process is a running `shardgate dev`.
type process struct {
	*exec.Cmd
	dir   string
	lines *bufio.Scanner
}

// startDev starts `shardgate dev` on dir and waits until it is ready.
func startDev(t *testing.T, binary, dir string) *process {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), binary, "dev", "--shards", "2", "--routers", "2", "--port", "0", "--data", dir)
	cmd.Stderr = os.Stderr

	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	p := &process{Cmd: cmd, dir: dir, lines: bufio.NewScanner(out)}
	p.await(t, "ready")

	return p
}

// await reads what dev prints up to a line.
func (p *process) await(t *testing.T, line string) {
	t.Helper()

	for p.lines.Scan() {
		t.Log(p.lines.Text())

		if p.lines.Text() == line {
			return
		}
	}

	t.Fatalf("dev ended: %v", p.Wait())
}

// manifest reads cluster.json.
func (p *process) manifest(t *testing.T) cluster.Manifest {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(p.dir, "cluster.json"))
	require.NoError(t, err)

	var m cluster.Manifest

	require.NoError(t, json.Unmarshal(text, &m))

	return m
}

// needParts ends the test where there is no mongod or no PostgreSQL.
func needParts(t *testing.T) {
	t.Helper()

	finder := clustertest.Finder(t)
	_, err := finder.Mongod(t.Context())
	clustertest.Need(t, err)

	_, err = finder.Postgres(t.Context(), 0)
	clustertest.Need(t, err)
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

	ok := eventually(10*time.Second, func() bool {
		left = running(t, dir)
		return len(left) == 0
	})
	require.True(t, ok, "left running: %v", left)
}

// eventually reports whether the condition comes true in time.
func eventually(limit time.Duration, condition func() bool) bool {
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
	needParts(t)

	binary := clustertest.Binary(t)
	dir := filepath.Join(t.TempDir(), "data")
	p := startDev(t, binary, dir)
	m := p.manifest(t)

	// PostgreSQL with its workers, two mongods, two routers, dev itself.
	require.GreaterOrEqual(t, len(running(t, dir)), 7)
	require.Len(t, m.Routers, 2)

	// A session that computes does not look whether PostgreSQL is still there.
	busy, err := pgx.Connect(t.Context(), m.Catalog.DSN)
	require.NoError(t, err)

	defer busy.Close(t.Context())

	done := make(chan error, 1)
	go func() {
		_, err := busy.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 100000000000) a")
		done <- err
	}()

	// A mongod or a router that is paused hears nothing.
	require.NoError(t, syscall.Kill(m.Shards[0].Members[0].PID, syscall.SIGSTOP))
	require.NoError(t, syscall.Kill(m.Routers[1].PID, syscall.SIGSTOP))
	require.NoError(t, p.Process.Kill())
	require.Error(t, p.Wait())
	requireNothingLeft(t, dir)
	require.Error(t, <-done)

	// The folder is as good as before; this time the catalog is paused when the end comes.
	p = startDev(t, binary, dir)
	require.NoError(t, syscall.Kill(p.manifest(t).Catalog.PID, syscall.SIGSTOP))
	require.NoError(t, p.Process.Kill())
	require.Error(t, p.Wait())
	requireNothingLeft(t, dir)
}

func TestSignals(t *testing.T) {
	needParts(t)

	binary := clustertest.Binary(t)
	dir := filepath.Join(t.TempDir(), "data")
	p := startDev(t, binary, dir)
	before := p.manifest(t)

	// What ends by itself is told, and SIGUSR1 starts it again where it was, a router with a catalog to load.
	require.NoError(t, syscall.Kill(before.Catalog.PID, syscall.SIGKILL))
	require.NoError(t, syscall.Kill(before.Routers[0].PID, syscall.SIGKILL))
	require.True(t, eventually(10*time.Second, func() bool {
		m := p.manifest(t)
		return m.Catalog.PID == 0 && m.Routers[0].PID == 0
	}))
	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	require.NoError(t, err)
	require.NotContains(t, string(text), `"pid": 0`, "0 is a number that kill takes for more than nothing")
	require.NoError(t, p.Process.Signal(syscall.SIGUSR1))
	p.await(t, "ready")

	after := p.manifest(t)
	require.NotZero(t, after.Catalog.PID)
	require.NotZero(t, after.Routers[0].PID)
	require.NotEqual(t, before.Catalog.PID, after.Catalog.PID)
	require.Equal(t, before.Catalog.DSN, after.Catalog.DSN)
	require.Equal(t, before.Shards, after.Shards)

	// Ctrl-C ends everything in order.
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.await(t, "stopping")
	require.NoError(t, p.Wait())
	require.Empty(t, running(t, dir))
	require.NoFileExists(t, filepath.Join(dir, "postgres", "postmaster.pid"))
	require.NoFileExists(t, filepath.Join(dir, "cluster.json"))
}
