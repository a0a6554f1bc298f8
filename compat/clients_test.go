package compat

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
)

const (
	// clientsLimit bounds all client programs together, the building of some included.
	clientsLimit = 10 * time.Minute
	// manyDocs is how many documents a cursor of each client gives.
	manyDocs = 100_000
)

// clientSteps are the steps of every client program (compat/clients/README.md) and the counts that they must print; "retry" is checked by what
// it has written.
var clientSteps = map[string]int{
	"several": 2, "crud": 10, "bulk": 1001, "cursor": manyDocs, "large": 16 << 20, "compression": 3, "preferences": 4, "monitoring": 3,
	"balanced": 4 * 2000, "ready": 1,
}

// clientPrograms are the clients by their folders in compat/clients, with what starts them.
var clientPrograms = []struct {
	name    string
	command func(context.Context, *parts.Finder) (*exec.Cmd, error)
}{
	{"node", nodeClient},
	{"mongoose", nodeClient},
	{"pymongo", pythonClient},
	{"pymongo-async", pythonClient},
	{"java", javaClient},
	{"rust", rustClient},
	{"godriver1", goClient("godriver1")},
	{"godriver2", goClient("godriver2")},
}

func nodeClient(ctx context.Context, f *parts.Finder) (*exec.Cmd, error) {
	drivers, err := f.NodeDrivers(ctx)
	cmd := exec.CommandContext(ctx, "node", "client.js")
	cmd.Env = append(os.Environ(), "NODE_PATH="+drivers)

	return cmd, err
}

func pythonClient(ctx context.Context, f *parts.Finder) (*exec.Cmd, error) {
	driver, err := f.PyMongo(ctx)
	if err != nil {
		return nil, err
	}

	compressors, err := f.PyMongoCompressors(ctx)
	cmd := exec.CommandContext(ctx, "python3", "client.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+driver+string(os.PathListSeparator)+compressors, "PYTHONDONTWRITEBYTECODE=1")

	return cmd, err
}

func javaClient(ctx context.Context, f *parts.Finder) (*exec.Cmd, error) {
	driver, err := f.JavaDriver(ctx)
	cmd := exec.CommandContext(ctx, "java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g", "-cp", filepath.Join(driver, "*"), "Client.java")

	return cmd, err
}

// rustClient builds the program with the driver's compiled libraries.
func rustClient(ctx context.Context, f *parts.Finder) (*exec.Cmd, error) {
	driver, err := f.RustDriver(ctx)
	if err != nil {
		return nil, err
	}

	program := filepath.Join(shared.cluster.Dir(), "rust")
	args := []string{"--edition", "2021", "-o", program, "-L", "dependency=" + driver}

	for _, name := range []string{"mongodb", "tokio", "futures_util"} {
		found, err := filepath.Glob(filepath.Join(driver, "lib"+name+"-*.rlib"))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("library %s: %v %w", name, found, err)
		}

		args = append(args, "--extern", name+"="+found[0])
	}

	build := exec.CommandContext(ctx, "rustc", append(args, "client.rs")...)
	build.Dir = filepath.Join("clients", "rust")

	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the Rust client: %w\n%s", err, out)
	}

	return exec.CommandContext(ctx, program), nil
}

// goClient builds a program: killing "go run" would not end it.
func goClient(name string) func(context.Context, *parts.Finder) (*exec.Cmd, error) {
	return func(ctx context.Context, f *parts.Finder) (*exec.Cmd, error) {
		program := filepath.Join(shared.cluster.Dir(), name)
		build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
		build.Dir = filepath.Join("clients", name)

		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}

		return exec.CommandContext(ctx, program), nil
	}
}

// clientRun is a client program under way.
type clientRun struct {
	name, db string
	ended    chan struct{} // closed when it has ended
	watcher  *watcher

	mu   sync.Mutex
	err  error           // guarded by mu
	said strings.Builder // guarded by mu
}

// Write implements io.Writer: what the program says.
func (r *clientRun) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.said.Write(b)
}

// text is what the program has said so far.
func (r *clientRun) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.said.String()
}

var stepLine = regexp.MustCompile(`(?m)^step (\w+) (\d+)\s*$`)

// steps are the counts that the program has printed.
func (r *clientRun) steps() map[string]int {
	counts := map[string]int{}
	for _, m := range stepLine.FindAllStringSubmatch(r.text(), -1) {
		counts[m[1]], _ = strconv.Atoi(m[2])
	}

	return counts
}

// over reports whether the program has ended.
func (r *clientRun) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// TestClients: every client does the same, all of them at the same time. COMPAT_CLIENTS=node,java runs some of them alone.
func TestClients(t *testing.T) {
	many := manyDocuments(t)
	ctx := opContext(t, clientsLimit)
	steady := []string{shared.cluster.Router(0).Addr(), shared.cluster.Router(1).Addr()}
	env := []string{
		"MANY=" + many,
		"URI_SEVERAL=mongodb://" + strings.Join(steady, ",") + "/",
		"URI_ONE=mongodb://" + steady[0] + "/",
		"URI_OTHER=mongodb://" + steady[1] + "/",
		"URI_BALANCED=mongodb://" + startBalancer(t, inTurn, steady...) + "/",
		"URI_FAILING=mongodb://" + startBalancer(t, inOrder, shared.cluster.Router(victim).Addr(), steady[0]) + "/",
	}

	var runs []*clientRun

	t.Cleanup(func() {
		for _, r := range runs {
			<-r.ended // the context has ended them
			_ = r.watcher.Close()

			if err := router(t, 0).Database(r.db).Drop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})

	for _, p := range clientPrograms {
		if only := os.Getenv("COMPAT_CLIENTS"); only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
			continue
		}

		t.Run("start "+p.name, func(t *testing.T) {
			if p.name == "rust" && !parts.HasRust() {
				t.Skip("this machine has no cargo")
			}

			dir := filepath.Join("clients", p.name)
			cmd, err := p.command(ctx, clustertest.Finder(t))
			clustertest.Need(t, err)

			r := &clientRun{name: p.name, db: "clients_" + strings.ReplaceAll(p.name, "-", "_"), ended: make(chan struct{}), watcher: startWatcher(t, steady[0])}
			prepareClient(t, r.db)

			cmd.Dir = dir
			cmd.Env = append(append(cmd.Environ(), env...), "DB="+r.db, "URI_WATCHED=mongodb://"+r.watcher.Addr().String()+"/")
			cmd.Stdout, cmd.Stderr = r, r
			cmd.WaitDelay = 5 * time.Second
			require.NoError(t, cmd.Start())

			runs = append(runs, r)

			go func() {
				defer close(r.ended)

				err := cmd.Wait()

				r.mu.Lock()
				r.err = err
				r.mu.Unlock()
			}()
		})
	}

	killWhileTheyWrite(t, runs)

	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) { r.check(t) })
	}
}

// manyDocuments makes the collection that all clients read.
func manyDocuments(t *testing.T) (ns string) {
	t.Helper()

	db := newDB(t)
	shardCollection(t, 0, db+".many", bson.D{{"_id", "hashed"}})

	docs := make([]any, manyDocs)
	for i := range docs {
		docs[i] = bson.D{{"_id", i}}
	}

	_, err := router(t, 0).Database(db).Collection("many").InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false))
	require.NoError(t, err)

	return db + ".many"
}

// prepareClient makes the collections of one client.
func prepareClient(t *testing.T, db string) {
	t.Helper()

	ctx := context.Background()
	d := router(t, 0).Database(db)
	require.NoError(t, d.Drop(ctx))
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	docs := make([]any, 1000)
	for i := range docs {
		docs[i] = bson.D{{"_id", i}}
	}

	_, err := d.Collection("plain").InsertMany(ctx, docs)
	require.NoError(t, err)
	_, err = d.Collection("c").InsertOne(ctx, bson.D{{"_id", "counter"}, {"writes", 0}})
	require.NoError(t, err)
}

// killWhileTheyWrite waits until all programs are about to write through the balancer, has them write, and kills and restarts the router that they
// write through.
func killWhileTheyWrite(t *testing.T, runs []*clientRun) {
	t.Helper()

	wait := func(what string, is func(*clientRun) bool) {
		t.Helper()

		for _, r := range runs {
			for end := time.Now().Add(clientsLimit); !r.over() && !is(r) && time.Now().Before(end); {
				time.Sleep(pollEvery)
			}

			t.Logf("%s: %s", r.name, what)
		}
	}
	written := func(r *clientRun) int64 {
		var d struct{ Writes int64 }
		require.NoError(t, router(t, 0).Database(r.db).Collection("c").FindOne(opContext(t, opLimit), bson.D{{"_id", "counter"}}).Decode(&d))

		return d.Writes
	}
	tell := func(what string) {
		for _, r := range runs {
			_, err := router(t, 0).Database(r.db).Collection("c").InsertOne(opContext(t, opLimit), bson.D{{"_id", what}})
			require.NoError(t, err)
		}
	}

	wait("ready", func(r *clientRun) bool { return r.steps()["ready"] == 1 })
	tell("go")

	before := map[*clientRun]int64{}

	wait("writes", func(r *clientRun) bool { return written(r) >= 5 })

	for _, r := range runs {
		before[r] = written(r)
	}

	down(t, shared.cluster.Router(victim))
	wait("goes on", func(r *clientRun) bool { return written(r) >= before[r]+20 })
	up(t, shared.cluster.Router(victim))
	tell("stop")
	wait("ends", func(r *clientRun) bool { return false })
}

// check checks that a program has done all of it.
func (r *clientRun) check(t *testing.T) {
	t.Helper()
	require.True(t, r.over(), "it has not ended:\n%s", r.text())
	require.NoError(t, r.err, r.text())

	got := r.steps()
	n := got["retry"]
	delete(got, "retry")
	require.Equal(t, clientSteps, got, r.text())
	require.GreaterOrEqual(t, n, 25)

	c := router(t, 0).Database(r.db).Collection("c")
	require.Equal(t, int64(n), count(t, c, bson.D{{"_id", bson.D{{"$regex", "^retry "}}}}), "each was written")
	require.Equal(t, int64(1), count(t, c, bson.D{{"_id", "counter"}, {"writes", n}}), "and once")
	require.Equal(t, map[byte]bool{1: true, 2: true, 3: true}, r.watcher.requests(), "compressors of requests")
	require.Equal(t, map[byte]bool{1: true, 2: true, 3: true}, r.watcher.replies(), "compressors of replies")
}

// watcher passes connections on to a router and sees which compressors are used.
type watcher struct {
	net.Listener

	asked, answered [256]atomic.Bool // by the compressor's number
}

// startWatcher puts a watcher before a router. Close ends it.
func startWatcher(t testing.TB, addr string) *watcher {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	w := &watcher{Listener: l}

	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}

			server, err := net.Dial("tcp", addr)
			if err != nil {
				_ = client.Close()
				continue
			}

			go passFrames(server, client, &w.asked)
			go passFrames(client, server, &w.answered)
		}
	}()

	return w
}

// passFrames copies messages, noting the compressor of those that are compressed.
func passFrames(to, from net.Conn, seen *[256]atomic.Bool) {
	defer to.Close()
	defer from.Close()

	for {
		var head [headerSize + 9]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}

		if binary.LittleEndian.Uint32(head[12:]) == opCompressed {
			seen[head[headerSize+8]].Store(true)
		}

		if _, err := to.Write(head[:]); err != nil {
			return
		}

		if _, err := io.CopyN(to, from, int64(binary.LittleEndian.Uint32(head[:]))-int64(len(head))); err != nil {
			return
		}
	}
}

func (w *watcher) requests() map[byte]bool { return used(&w.asked) }
func (w *watcher) replies() map[byte]bool  { return used(&w.answered) }

func used(seen *[256]atomic.Bool) map[byte]bool {
	all := map[byte]bool{}

	for i := range seen {
		if seen[i].Load() {
			all[byte(i)] = true
		}
	}

	return all
}
