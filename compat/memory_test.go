package compat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// What TestMemoryOfMerges merges.
const (
	bigDocs  = 2048
	bigText  = 100 << 10 // bytes of a document
	bigBatch = 5         // documents of a batch
)

// residentPeak returns the greatest resident memory of a process since it was last reset, and resets it.
func residentPeak(t testing.TB, pid int) int64 {
	t.Helper()

	peak := int64(-1)

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)

	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			require.NoError(t, err)

			peak = kb << 10
		}
	}

	require.Positive(t, peak)
	require.NoError(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0o600))

	return peak
}

// fillBig makes documents of bigText bytes: small ones are inserted, and grow on the shards.
func fillBig(t testing.TB, c *mongo.Collection) {
	t.Helper()

	seed := string(bytes.Repeat([]byte("0123456789abcdef"), 100))

	docs := make([]any, bigDocs)
	for i := range docs {
		docs[i] = bson.D{{"_id", i}, {"s", i * 1009 % bigDocs}, {"text", seed}}
	}

	_, err := c.InsertMany(t.Context(), docs)
	require.NoError(t, err)

	var grow mongo.Pipeline
	for n := len(seed); n < bigText; n *= 2 {
		grow = append(grow, bson.D{{"$set", bson.D{{"text", bson.D{{"$concat", bson.A{"$text", "$text"}}}}}}})
	}

	res, err := c.UpdateMany(t.Context(), bson.D{}, grow)
	require.NoError(t, err)
	require.Equal(t, int64(bigDocs), res.ModifiedCount)
}

// slowCursor reads a merge of all shards batch by batch.
type slowCursor struct {
	conn  *rawConn
	id    int64
	given int
	bytes int64
	last  int32 // the greatest value so far, of a sorted one
}

// take notes a batch.
func (c *slowCursor) take(t testing.TB, reply bson.Raw, name string) {
	t.Helper()
	ok(t, reply)

	docs := batch(t, reply, name)
	c.given, c.bytes = c.given+len(docs), c.bytes+int64(len(reply))
	c.id = reply.Lookup("cursor", "id").Int64()

	for _, doc := range docs {
		if c.last >= 0 {
			s := doc.Document().Lookup("s").Int32()
			require.Equal(t, c.last, s)
			c.last = s + 1
		}
	}
}

// TestMemoryOfMerges: what a router holds of the results that it merges depends on the batches that clients ask for, not on how much there
// is, whether it sorts or not.
func TestMemoryOfMerges(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	fillBig(t, router(t, 0).Database(db).Collection("c"))

	pid := shared.cluster.Routers()[1].PID()
	open := func(sorted bool) *slowCursor {
		c := &slowCursor{conn: dialRaw(t, 1), last: -1}
		cmd := bson.D{{"find", "c"}, {"batchSize", bigBatch}, {"$db", db}}

		if sorted {
			cmd, c.last = append(cmd, bson.E{Key: "sort", Value: bson.D{{"s", 1}}}), 0
		}

		c.take(t, c.conn.run(cmd), "firstBatch")

		return c
	}
	more := func(c *slowCursor) {
		c.take(t, c.conn.run(bson.D{{"getMore", c.id}, {"collection", "c"}, {"batchSize", bigBatch}, {"$db", db}}), "nextBatch")
	}

	// merge has all cursors open from the beginning to the end, and reads them in turn until each has given so much.
	merge := func(docs int) (peak, read int64) {
		cursors := []*slowCursor{open(true), open(false), open(true), open(false)}
		for left := len(cursors); left > 0; {
			left = 0

			for _, c := range cursors {
				if c.id != 0 && c.given < docs {
					more(c)

					left++
				}
			}
		}

		for _, c := range cursors {
			require.GreaterOrEqual(t, c.given, docs)
			require.NoError(t, c.conn.Close())

			read += c.bytes
		}

		return residentPeak(t, pid), read
	}

	residentPeak(t, pid)
	before := residentPeak(t, pid) // what is resident now
	few, readFew := merge(bigDocs / 8)
	all, readAll := merge(bigDocs)

	const cursors = 4

	batches := int64(cursors) * (shardCount + 1) * bigBatch * bigText // each cursor holds one of every shard and makes one of them
	t.Logf("%d cursors, their batches are %d MB; resident memory grew from %d MB by %d MB as %d MB were merged, and by %d MB as %d MB were",
		cursors, batches>>20, before>>20, (few-before)>>20, readFew>>20, (all-before)>>20, readAll>>20)

	// The program that looks for races needs many times what it holds, and the heap doubles before the garbage is collected; but that
	// is so however much is merged. What is kept would be seven times what was merged first.
	require.Less(t, all-few, readFew, "eight times as much needs no more")
	require.Less(t, all-before, readAll/2)
}
