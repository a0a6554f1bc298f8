package compat

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// benchRound is how long one side runs before the other has its turn.
const benchRound = 200 * time.Millisecond

// BenchmarkSideBySide runs point operations directly on a shard and through a router, in
// turns within one run, and reports the router's share: the machine's own speed cancels
// out (`make bench`; PERF.md, goals 3, 5 and 7).
func BenchmarkSideBySide(b *testing.B) {
	const docs = 2000
	admin(b, 0, bson.D{{"shardCollection", "bench.c"}, {"key", bson.D{{"_id", "hashed"}}}})
	var batch []any
	for i := range docs {
		batch = append(batch, bson.D{{"_id", i}, {"name", "a document of some size"}, {"n", 0}})
	}
	_, err := router(b, 0).Database("bench").Collection("c").InsertMany(b.Context(), batch, options.InsertMany().SetOrdered(false))
	require.NoError(b, err)
	// Only documents of one shard: both sides ask for the same.
	var ids []int
	cur, err := shard(b, 0).Database("bench").Collection("c").Find(b.Context(), bson.D{})
	require.NoError(b, err)
	for cur.Next(b.Context()) {
		ids = append(ids, int(cur.Current.Lookup("_id").Int32()))
	}
	require.NotEmpty(b, ids)
	b.Cleanup(func() { _ = router(b, 0).Database("bench").Drop(context.Background()) })

	operations := map[string]func(context.Context, *mongo.Collection, int) error{
		"find": func(ctx context.Context, c *mongo.Collection, i int) error {
			return c.FindOne(ctx, bson.D{{"_id", ids[i%len(ids)]}}).Err()
		},
		"update": func(ctx context.Context, c *mongo.Collection, i int) error {
			_, err := c.UpdateOne(ctx, bson.D{{"_id", ids[i%len(ids)]}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
			return err
		},
	}
	for _, name := range []string{"find", "update"} {
		for _, clients := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/clients=%d", name, clients), func(b *testing.B) {
				direct := shard(b, 0).Database("bench").Collection("c")
				through := router(b, 0).Database("bench").Collection("c")
				var share, added []float64
				for b.Loop() {
					d := benchSide(b, direct, clients, operations[name])
					r := benchSide(b, through, clients, operations[name])
					share = append(share, d.Seconds()/r.Seconds())
					added = append(added, float64((r - d).Microseconds()))
				}
				b.ReportMetric(median(share), "x-direct")
				b.ReportMetric(median(added), "added-µs/op")
			})
		}
	}
}

// benchSide runs an operation from a number of clients for a round and returns the time
// that one operation took one client.
func benchSide(b *testing.B, c *mongo.Collection, clients int, op func(context.Context, *mongo.Collection, int) error) time.Duration {
	b.Helper()
	var wg sync.WaitGroup
	counts := make([]int, clients)
	start := time.Now()
	for n := range clients {
		wg.Go(func() {
			for i := n; time.Since(start) < benchRound; i += clients {
				if err := op(b.Context(), c, i); err != nil {
					b.Error(err)
					return
				}
				counts[n]++
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return time.Since(start) * time.Duration(clients) / time.Duration(max(total, 1))
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
