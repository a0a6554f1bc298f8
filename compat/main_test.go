package compat

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// The cluster of this test run.
const (
	shardCount  = 3
	routerCount = 3
	// victim is the router that tests stop, pause and kill; the others serve all the time.
	victim = 2

	startLimit = 4 * time.Minute
	endLimit   = 40 * time.Second
	logTail    = 3000
)

// shared is what all tests use.
var shared struct {
	cluster *cluster.Cluster
	built   string // folder of the program that this run has built, "" if it was given one

	failpoints string // folder in which files stop routers at steps

	mu      sync.Mutex
	clients map[string]*mongo.Client // guarded by mu, by URI
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run starts the cluster, runs the tests, ends the cluster and looks whether anything is left.
func run(m *testing.M) int {
	begin := time.Now()

	defer func() {
		if shared.built != "" {
			_ = os.RemoveAll(shared.built)
		}

		_ = os.RemoveAll(shared.failpoints)
	}()

	if err := start(); err != nil {
		var missing *parts.MissingError
		if errors.As(err, &missing) && !parts.Required() {
			fmt.Fprintf(os.Stderr, "\n*** SKIPPED all of compat: %v ***\n\n", err)
			return 0
		}

		fmt.Fprintln(os.Stderr, "compat: start the cluster:", err)

		return 1
	}

	fmt.Fprintf(os.Stderr, "compat: a cluster of %d shards and %d routers was up after %v\n",
		shardCount, routerCount, time.Since(begin).Round(time.Millisecond))

	code := m.Run()

	if code != 0 {
		showLogs()
	}

	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, "--- FAIL: the end of the cluster:", err)
		return 1
	}

	return code
}

// start brings the shared cluster up.
func start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()

	binary, err := program(ctx)
	if err != nil {
		return err
	}

	progress := func(string) {}
	if testing.Verbose() {
		progress = func(line string) { fmt.Fprintln(os.Stderr, "cluster:", line) }
	}

	shared.clients = map[string]*mongo.Client{}

	if shared.failpoints, err = os.MkdirTemp("", "shardgate-failpoints-"); err != nil {
		return err
	}

	shared.cluster, err = cluster.Start(ctx, cluster.Options{
		Shards: shardCount, Members: 1, Routers: routerCount, Binary: binary, Progress: progress,
		RouterEnv: []string{"SHARDGATE_TEST_FAILPOINTS=" + shared.failpoints},
	})

	return err
}

// program returns the shardgate program to test: the one named by the environment, else one built now.
func program(ctx context.Context) (string, error) {
	if path := os.Getenv(clustertest.EnvBinary); path != "" {
		return path, nil
	}

	dir, err := os.MkdirTemp("", "shardgate-compat-")
	if err != nil {
		return "", err
	}

	shared.built = dir
	path := filepath.Join(dir, "shardgate")

	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/shardgate/shardgate/cmd/shardgate")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build shardgate: %w\n%s", err, out)
	}

	return path, nil
}

// end closes the cluster and reports what is wrong with how it ended.
func end() error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()

	for _, c := range shared.clients {
		_ = c.Disconnect(ctx)
	}

	left, err := leftovers()
	if err != nil {
		return err
	}

	var errs []error
	for _, n := range shared.cluster.Routers() {
		errs = append(errs, n.Stop(ctx), unwelcome(n))
	}

	dir := shared.cluster.Dir()
	errs = append(errs, shared.cluster.Close(), left.check(dir))

	return errors.Join(errs...)
}

// unwelcome reports what must never be in a router's log.
func unwelcome(n *cluster.Node) error {
	text, err := os.ReadFile(n.Log())
	if err != nil {
		return err
	}

	for _, mark := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: ", `"level":"panic"`, "goroutine stack exceeds"} {
		if at := bytes.Index(text, []byte(mark)); at >= 0 {
			return fmt.Errorf("%s said %q:\n%s", n.Name(), mark, text[at:min(len(text), at+logTail)])
		}
	}

	return nil
}

// showLogs prints the ends of the routers' logs after a failure, with COMPAT_LOGS=all of all logs.
func showLogs() {
	for _, n := range shared.cluster.Nodes() {
		if strings.HasPrefix(n.Name(), "router") || os.Getenv("COMPAT_LOGS") == "all" {
			fmt.Fprintf(os.Stderr, "--- end of the log of %s (%s):\n%s\n", n.Name(), n.Addr(), proc.Tail(n.Log(), logTail))
		}
	}
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	if pid == 0 || syscall.Kill(pid, 0) != nil {
		return false
	}

	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}

	_, after, _ := strings.Cut(string(text), ") ")

	return !strings.HasPrefix(after, "Z")
}
