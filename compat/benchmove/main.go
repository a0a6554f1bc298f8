package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
)

const (
	database = "bench"
	large    = "large"
	small    = "small"

	payload = 960 // bytes; with the other fields a document has 1 KiB
	perRun  = 500 // documents of one insertMany
)

type settings struct {
	binary   string
	docs     int
	clients  int
	switches int
	quiet    time.Duration // how long the workload runs alone before it is compared
}

// bench is what runs.
type bench struct {
	settings
	cluster *cluster.Cluster
	router  *mongo.Client
	out     *os.File
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmove:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	b := bench{out: os.Stdout}
	flags := flag.NewFlagSet("benchmove", flag.ContinueOnError)
	flags.StringVar(&b.binary, "binary", "bin/shardgate", "the shardgate program, not built with -race")
	flags.IntVar(&b.docs, "docs", 1_000_000, "documents of 1 KiB that move")
	flags.IntVar(&b.clients, "clients", 8, "clients of the workload")
	flags.IntVar(&b.switches, "switches", 50, "moves of a small collection, for the wait at the switch")
	flags.DurationVar(&b.quiet, "quiet", 5*time.Second, "how long the workload runs before a move")

	if err := flags.Parse(args); err != nil {
		return err
	}

	var err error
	if b.cluster, err = cluster.Start(ctx, cluster.Options{Shards: 2, Members: 1, Routers: 1, Binary: b.binary}); err != nil {
		return err
	}
	defer func() { _ = b.cluster.Close() }()

	if b.router, err = mongo.Connect(options.Client().ApplyURI(b.cluster.RouterURI(0))); err != nil {
		return err
	}
	defer func() { _ = b.router.Disconnect(context.WithoutCancel(ctx)) }()

	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		b.say("load at the beginning: %s", strings.TrimSpace(string(load)))
	}

	for _, step := range []func(context.Context) error{b.fill, b.copies, b.underLoad, b.waits} {
		if err := step(ctx); err != nil {
			return err
		}
	}

	return nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }

func (b *bench) coll(name string) *mongo.Collection {
	return b.router.Database(database).Collection(name)
}

// doc is a document of 1 KiB whose bytes do not compress to nothing.
func doc(i int) bson.D {
	text := make([]byte, payload)
	x := uint64(i)*0x9e3779b97f4a7c15 + 1

	for j := range text {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		text[j] = 'a' + byte(x%26)
	}

	return bson.D{{Key: "_id", Value: int64(i)}, {Key: "n", Value: int64(0)}, {Key: "text", Value: string(text)}}
}

func (b *bench) fill(ctx context.Context) error {
	for name, n := range map[string]int{large: b.docs, small: 1000} {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(4)

		for at := 0; at < n; at += perRun {
			group.Go(func() error {
				list := make([]any, 0, perRun)
				for i := at; i < min(at+perRun, n); i++ {
					list = append(list, doc(i))
				}

				_, err := b.coll(name).InsertMany(ctx, list)

				return err
			})
		}

		if err := group.Wait(); err != nil {
			return err
		}
	}

	return nil
}

// home is the number of the shard on which a collection is.
func (b *bench) home(ctx context.Context, name string) (int, error) {
	var chunk struct{ Shard string }

	err := b.router.Database("config").Collection("chunks").FindOne(ctx, bson.D{{Key: "ns", Value: database + "." + name}}).Decode(&chunk)
	if err != nil {
		return 0, err
	}

	i := slices.IndexFunc(b.cluster.Shards(), func(s *cluster.Shard) bool { return s.Name() == chunk.Shard })
	if i < 0 {
		return 0, fmt.Errorf("%w: %s", errUnknownShard, chunk.Shard)
	}

	return i, nil
}

var errUnknownShard = errors.New("no such shard")

// move moves a collection to the other shard. What the last move has left goes first, where it is in the way.
func (b *bench) move(ctx context.Context, name string) (took time.Duration, err error) {
	home, err := b.home(ctx, name)
	if err != nil {
		return 0, err
	}

	to := b.cluster.Shard(1 - home).Name()

	for {
		begun := time.Now()

		err = b.router.Database("admin").RunCommand(ctx, bson.D{{Key: "moveCollection", Value: database + "." + name}, {Key: "toShard", Value: to}}).Err()
		if e := mongo.ServerError(nil); !errors.As(err, &e) || !e.HasErrorCode(lockBusy) {
			return time.Since(begun), err
		}
	}
}

// lockBusy is what a move answers whose target is still read.
const lockBusy = 46

// isCanceled reports whether an error is of the end of the workload.
func isCanceled(err error) bool { return errors.Is(err, context.Canceled) || mongo.IsTimeout(err) }
