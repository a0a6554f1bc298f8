package compat

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// newChunked makes a collection that is sharded by k in a dozen chunks.
func newChunked(t *testing.T, key bson.D) string {
	t.Helper()

	db := newDB(t)

	if key[0].Value == "hashed" {
		shardCollection(t, 0, db+".c", key, bson.E{Key: "numInitialChunks", Value: 12})
		return db
	}

	shardCollection(t, 0, db+".c", key)

	for at := int32(80); at < keyValues; at += 80 {
		admin(t, 0, bson.D{{"split", db + ".c"}, {"middle", bson.D{{"k", at}}}})
	}

	return db
}

// startKeyed is startWorkload for a sharded collection.
func startKeyed(t *testing.T, db string, mortal bool, routers ...int) *workload {
	t.Helper()

	w := &workload{t: t, db: db, mortal: mortal, keyed: true, routers: routers, stop: make(chan struct{}), want: map[string]int64{}}
	w.start()

	return w
}

// moveAny moves some chunk to some other shard, and returns the chunk and the shard.
func moveAny(t *testing.T, rnd *rand.Rand, r int, db string) (chunkDoc, int, error) {
	t.Helper()

	chunks := chunksOf(t, 0, db+".c")
	c := chunks[rnd.IntN(len(chunks))]
	to := (shardIndex(t, c.Shard) + 1 + rnd.IntN(shardCount-1)) % shardCount

	return c, to, moveChunk(t, r, db+".c", &c, to)
}

// Chunks move at random between three shards while their collection is used through all routers.
func TestMoveChunksUnderLoad(t *testing.T) {
	for name, key := range map[string]bson.D{"ranged": {{"k", 1}}, "hashed": {{"k", "hashed"}}} {
		t.Run(name, func(t *testing.T) {
			db := newChunked(t, key)
			w := startKeyed(t, db, false, 0, 1, 2)
			rnd := random(t)
			moved, least := 0, time.Now().Add(10*time.Second)

			// However slow the machine is, some moves are made.
			for end := time.Now().Add(recoverLimit); moved < 4 && time.Now().Before(end) || time.Now().Before(least); {
				_, _, err := moveAny(t, rnd, rnd.IntN(routerCount), db)
				if code(err) == 46 {
					continue // what it had there is still read
				}

				require.NoError(t, err)

				moved++
			}

			require.GreaterOrEqual(t, moved, 4)
			w.check()
			require.Equal(t, still+len(w.want), inPlace(t, db, "c", key))
			t.Logf("moved %d times, %d times many", moved, w.many.Load())
		})
	}
}
