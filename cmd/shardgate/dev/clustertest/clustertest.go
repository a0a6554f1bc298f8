package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// EnvBinary names a shardgate program that is ready made; without it one is built.
const EnvBinary = "SHARDGATE_BINARY"

const (
	startLimit = 3 * time.Minute
	stopLimit  = 20 * time.Second
	logTail    = 4000
)

// Finder returns where tests take programs from.
func Finder(t testing.TB) *parts.Finder {
	t.Helper()

	f, err := parts.New(parts.Options{Progress: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}

	return f
}

// Start starts a cluster that is closed when the test ends. With Routers set, Binary defaults to a freshly built shardgate.
// After a failed test the ends of all logs are shown.
func Start(t testing.TB, o cluster.Options) *cluster.Cluster {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()

	if o.Parts == nil {
		o.Parts = Finder(t)
	}

	if o.Routers > 0 && o.Binary == "" {
		o.Binary = Binary(t)
	}

	log := newLog(t)
	if o.Progress == nil {
		o.Progress = log.print
	}

	c, err := cluster.Start(ctx, o)
	Need(t, err)

	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, c)
		}

		log.end()
		checkRouters(t, c)

		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})

	return c
}

// checkRouters stops the routers and fails the test when the race detector or a panic spoke in one of them.
func checkRouters(t testing.TB, c *cluster.Cluster) {
	t.Helper()

	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()

	for _, n := range c.Routers() {
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}

		text, err := os.ReadFile(n.Log())
		if err != nil {
			t.Error(err)
		}

		for _, mark := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
			if at := bytes.Index(text, []byte(mark)); at >= 0 {
				t.Errorf("%s said %q:\n%s", n.Name(), mark, text[at:min(len(text), at+logTail)])
			}
		}
	}
}

// log writes a cluster's progress to a test until the test ends: programs that end late have nobody to tell.
type log struct {
	mu sync.Mutex
	t  testing.TB // guarded by mu, nil when the test has ended
}

func newLog(t testing.TB) *log {
	return &log{t: t}
}

// print writes a line.
func (l *log) print(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.t != nil {
		l.t.Log(line)
	}
}

// end makes print do nothing.
func (l *log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.t = nil
}

// showLogs prints the ends of all logs.
func showLogs(t testing.TB, c *cluster.Cluster) {
	t.Helper()

	for _, n := range c.Nodes() {
		t.Logf("--- %s (%s, process %d), end of its log:\n%s", n.Name(), n.Addr(), n.PID(), proc.Tail(n.Log(), logTail))
	}
}

// Need ends the test when err is not nil: a missing part skips it unless CI=true, everything else fails it.
func Need(t testing.TB, err error) {
	t.Helper()

	if err == nil {
		return
	}

	var missing *parts.MissingError
	if errors.As(err, &missing) && !parts.Required() {
		// On standard error too: go test shows a skip's reason only with -v.
		_, _ = fmt.Fprintf(os.Stderr, "\n*** SKIPPED %s: %v ***\n\n", t.Name(), err)
		t.Skip(err)
	}

	t.Fatal(err)
}

// Binary returns the path of a shardgate program: SHARDGATE_BINARY, else one built from this module's source for this test.
func Binary(t testing.TB) string {
	t.Helper()

	if path := os.Getenv(EnvBinary); path != "" {
		return path
	}

	path := filepath.Join(t.TempDir(), "shardgate")

	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/shardgate/shardgate/cmd/shardgate")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build shardgate: %v\n%s", err, out)
	}

	return path
}

// Mongosh returns the path of mongosh.
func Mongosh(t testing.TB) string {
	t.Helper()

	path, err := Finder(t).Mongosh(t.Context())
	Need(t, err)

	return path
}

// PyMongo returns a command that runs python3 with PyMongo at hand.
func PyMongo(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()

	site, err := Finder(t).PyMongo(t.Context())
	Need(t, err)

	cmd := exec.CommandContext(t.Context(), "python3", args...)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+site, "PYTHONDONTWRITEBYTECODE=1")

	return cmd
}

// PyMongoSuite returns a command that runs pytest in the folder of PyMongo's own test suite, with its settings.
func PyMongoSuite(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()

	suite, err := Finder(t).PyMongoSuite(t.Context())
	Need(t, err)

	// Its settings for pytest-asyncio and reports do not concern the synchronous tests.
	settings := []string{"-m", "pytest", "-c", "pyproject.toml", "-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning", "-p", "no:cacheprovider"}

	cmd := PyMongo(t, append(settings, args...)...)
	cmd.Dir = suite
	cmd.Env = append(cmd.Env, "PYTHONPATH="+filepath.Join(suite, "site")+string(os.PathListSeparator)+pythonPath(cmd.Env))

	return cmd
}

// pythonPath returns the last PYTHONPATH of an environment.
func pythonPath(env []string) string {
	path := ""

	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PYTHONPATH="); ok {
			path = v
		}
	}

	return path
}
