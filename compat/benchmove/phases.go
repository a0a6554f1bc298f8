package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
)

// copies compares a move with mongodump and mongorestore, while nothing else goes on.
func (b *bench) copies(ctx context.Context) error {
	mib := float64(b.docs) / 1024

	took, err := b.move(ctx, large)
	if err != nil {
		return err
	}

	moved := mib / took.Seconds()
	b.say("moveCollection of %d documents of 1 KiB: %.1f s, %.1f MiB/s", b.docs, took.Seconds(), moved)

	dumped, err := b.dump(ctx)
	if err != nil {
		return err
	}

	if dumped == 0 {
		b.say("mongodump | mongorestore: not measured, as these programs are not in PATH (nor in MONGODUMP and MONGORESTORE)")
		return nil
	}

	b.say("mongodump | mongorestore of the same, write concern majority: %.1f s, %.1f MiB/s; moveCollection does %.2f x that",
		dumped.Seconds(), mib/dumped.Seconds(), dumped.Seconds()/took.Seconds())

	return nil
}

// dump copies the collection from its shard to the other under another name, by mongodump and mongorestore; 0 where they are missing.
func (b *bench) dump(ctx context.Context) (time.Duration, error) {
	tools := map[string]string{"MONGODUMP": "mongodump", "MONGORESTORE": "mongorestore"}
	for env, name := range tools {
		if path := os.Getenv(env); path != "" {
			tools[env] = path
		} else if path, err := exec.LookPath(name); err == nil {
			tools[env] = path
		} else {
			return 0, nil
		}
	}

	home, err := b.home(ctx, large)
	if err != nil {
		return 0, err
	}

	from := exec.CommandContext(ctx, tools["MONGODUMP"], "--quiet", "--uri", b.cluster.Shard(home).URI(), "--db", database, "--collection", large, "--archive")
	to := exec.CommandContext(ctx, tools["MONGORESTORE"], "--quiet", "--uri", b.cluster.Shard(1-home).URI(), "--archive",
		"--writeConcern", "{w: 'majority'}", "--nsFrom", database+"."+large, "--nsTo", "restored."+large)
	from.Stderr, to.Stderr = os.Stderr, os.Stderr

	if to.Stdin, err = from.StdoutPipe(); err != nil {
		return 0, err
	}

	begun := time.Now()

	for _, cmd := range []*exec.Cmd{to, from} {
		if err := cmd.Start(); err != nil {
			return 0, fmt.Errorf("%s: %w", cmd.Path, err)
		}
	}

	for _, cmd := range []*exec.Cmd{from, to} {
		if err := cmd.Wait(); err != nil {
			return 0, fmt.Errorf("%s: %w", cmd.Path, err)
		}
	}

	return time.Since(begun), nil
}

// load is a workload: each client reads one document and increments another, in turns.
type load struct {
	cancel context.CancelFunc
	group  *errgroup.Group

	mu      sync.Mutex
	ops     int
	longest time.Duration // of a write
}

func (b *bench) start(ctx context.Context, name string, docs int) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel, group: &errgroup.Group{}}

	for range b.clients {
		l.group.Go(func() error {
			coll := b.coll(name)

			for ctx.Err() == nil {
				if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: rand.Int64N(int64(docs))}}).Err(); err != nil {
					return err
				}

				begun := time.Now()

				if _, err := coll.UpdateByID(ctx, rand.Int64N(int64(docs)), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
					return err
				}

				l.mu.Lock()
				l.ops += 2
				l.longest = max(l.longest, time.Since(begun))
				l.mu.Unlock()
			}

			return nil
		})
	}

	return l
}

// taken returns what was done since it was asked last.
func (l *load) taken() (ops int, longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	ops, longest, l.ops, l.longest = l.ops, l.longest, 0, 0

	return ops, longest
}

// end ends the workload; an error that is not its end is one.
func (l *load) end(ctx context.Context) error {
	l.cancel()

	if err := l.group.Wait(); ctx.Err() != nil || err != nil && !isCanceled(err) {
		return fmt.Errorf("the workload: %w", err)
	}

	return nil
}

// wait waits for so long.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// underLoad compares a workload's throughput during a move with that before.
func (b *bench) underLoad(ctx context.Context) error {
	l := b.start(ctx, large, b.docs)

	if err := wait(ctx, b.quiet/5); err != nil { // it gets going
		return err
	}

	l.taken()

	if err := wait(ctx, b.quiet); err != nil {
		return err
	}

	before, longest := l.taken()
	b.say("a workload of %d clients, reads and updates by _id: %.0f operations/s, longest update %v", b.clients, float64(before)/b.quiet.Seconds(), longest.Round(time.Millisecond))

	took, err := b.move(ctx, large)
	if err != nil {
		return err
	}

	during, longest := l.taken()
	ratio := float64(during) / took.Seconds() / (float64(before) / b.quiet.Seconds())
	b.say("while the collection moves: %.0f operations/s, %.2f x before; %.1f s, %.1f MiB/s; longest update %v",
		float64(during)/took.Seconds(), ratio, took.Seconds(), float64(b.docs)/1024/took.Seconds(), longest.Round(time.Millisecond))

	return l.end(ctx)
}

// waits tells how long the slowest write waited, move by move.
func (b *bench) waits(ctx context.Context) error {
	l := b.start(ctx, small, 1000)

	var list []time.Duration

	for range b.switches {
		l.taken()

		if _, err := b.move(ctx, small); err != nil {
			return err
		}

		_, longest := l.taken()
		list = append(list, longest)
	}

	if len(list) > 0 {
		slices.Sort(list)
		b.say("the longest update during each of %d moves of a small collection: p50 %v, p99 %v",
			len(list), list[len(list)/2].Round(time.Millisecond), list[min(len(list)*99/100, len(list)-1)].Round(time.Millisecond))
	}

	return l.end(ctx)
}
