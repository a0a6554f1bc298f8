package compat

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// chunkDoc is a document of config.chunks.
type chunkDoc struct {
	ID       bson.ObjectID `bson:"_id"`
	Min, Max bson.Raw
	Shard    string
	LastMod  bson.Timestamp
	History  []struct{ Shard string }
}

// chunksOf lists a collection's chunks in their order, as a router shows them.
func chunksOf(t testing.TB, r int, ns string) []chunkDoc {
	t.Helper()

	c, err := router(t, r).Database("config").Collection("chunks").Aggregate(opContext(t, opLimit), mongo.Pipeline{
		{{"$match", bson.D{{"ns", ns}}}}, {{"$sort", bson.D{{"min", 1}}}},
	})
	require.NoError(t, err)

	var list []chunkDoc
	require.NoError(t, c.All(t.Context(), &list))

	return list
}

// borders are the values of a field in all lower bounds but the first.
func borders(t testing.TB, r int, ns, field string) []int64 {
	t.Helper()

	var list []int64
	for _, c := range chunksOf(t, r, ns)[1:] {
		list = append(list, c.Min.Lookup(field).AsInt64())
	}

	return list
}

// runAdmin runs an admin command that may fail.
func runAdmin(t testing.TB, r int, cmd bson.D) error {
	t.Helper()
	return router(t, r).Database("admin").RunCommand(opContext(t, opLimit), cmd).Err()
}

// refusedWithout checks that a command was refused, with that text and without a code.
func refusedWithout(t testing.TB, err error, text string) {
	t.Helper()

	var ce mongo.CommandError
	require.ErrorAs(t, err, &ce)
	require.Zero(t, ce.Code, "%v", err)
	require.Contains(t, ce.Message, text)
}

func TestSplit(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	ns := db + ".c"
	coll := router(t, 0).Database(db).Collection("c")
	shardCollection(t, 0, ns, bson.D{{"x", 1}})

	var docs []any
	for i := range 1000 {
		docs = append(docs, bson.D{{"x", i}})
	}

	_, err := coll.InsertMany(ctx, docs)
	require.NoError(t, err)

	before := chunksOf(t, 0, ns)
	require.Len(t, before, 1)
	admin(t, 0, bson.D{{"split", ns}, {"middle", bson.D{{"x", 100}}}})
	admin(t, 1, bson.D{{"split", ns}, {"find", bson.D{{"x", 500}}}}) // [100, MaxKey) has 900
	admin(t, 2, bson.D{{"split", ns}, {"bounds", bson.A{bson.D{{"x", bson.MinKey{}}}, bson.D{{"x", 100}}}}})
	require.Equal(t, []int64{50, 100, 550}, borders(t, 1, ns, "x"))

	after := chunksOf(t, 2, ns)
	require.Equal(t, before[0].ID, after[0].ID, "the lowest keeps the id")

	versions := map[bson.Timestamp]bool{}

	for _, c := range after {
		require.Equal(t, before[0].Shard, c.Shard)
		require.Equal(t, uint32(1), c.LastMod.T, "the major version stays")
		require.Len(t, c.History, 1)

		versions[c.LastMod] = true
	}

	require.Len(t, versions, len(after))

	// Writes of all routers go on, and find all there is.
	for r := range routerCount {
		c := router(t, r).Database(db).Collection("c")
		_, err := c.InsertOne(ctx, bson.D{{"x", 5000 + r}})
		require.NoError(t, err)
		require.Equal(t, int64(1001+r), count(t, c, bson.D{}))
		require.Equal(t, int64(50), count(t, c, bson.D{{"x", bson.D{{"$gte", 75}, {"$lt", 125}}}}))
	}

	for _, test := range []struct {
		cmd  bson.D
		text string
	}{
		{bson.D{{"middle", bson.D{{"x", 100}}}}, "is a boundary key of existing chunk [{ x: 100 },{ x: 550 })"},
		{bson.D{{"middle", bson.D{{"x", bson.MinKey{}}}}}, "is a boundary key"},
		{bson.D{{"middle", bson.D{{"x", bson.MaxKey{}}}}}, "is a boundary key"},
		{bson.D{{"middle", bson.D{{"z", 1}}}}, "new split key { z: 1 } is not valid for shard key pattern { x: 1 }"},
		{bson.D{{"middle", bson.D{{"x", bson.A{1}}}}}, "is not valid for shard key pattern"},
		{bson.D{{"middle", 7}}, "wrong type for 'middle' field"},
		{bson.D{}, "need to specify find/bounds or middle"},
		{bson.D{{"find", bson.D{}}}, "need to specify find/bounds or middle"},
		{bson.D{{"find", bson.D{{"x", 1}}}, {"middle", bson.D{{"x", 1}}}}, "cannot specify find and middle together"},
		{bson.D{{"bounds", bson.A{bson.D{{"x", 1}}, bson.D{{"x", 2}}}}, {"middle", bson.D{{"x", 1}}}}, "cannot specify bounds and middle together"},
		{bson.D{{"bounds", bson.A{bson.D{{"x", 1}}, bson.D{{"x", 2}}}}, {"find", bson.D{{"x", 1}}}}, "cannot specify bounds and find at the same time"},
		{bson.D{{"bounds", bson.A{bson.D{{"x", 1}}}}}, "upper bound not specified"},
		{bson.D{{"bounds", bson.A{bson.D{{"x", 1}}, bson.D{{"x", 2}}}}}, "no chunk found with the shard key bounds [{ x: 1 }, { x: 2 })"},
		{bson.D{{"bounds", bson.A{bson.D{{"y", 1}}, bson.D{{"x", 2}}}}}, "are not valid for shard key pattern"},
		{bson.D{{"find", bson.D{{"y", 1}}}}, "no shard key found in chunk query"},
	} {
		refusedWithout(t, runAdmin(t, 0, append(bson.D{{"split", ns}}, test.cmd...)), test.text)
	}

	require.Equal(t, 118, code(runAdmin(t, 0, bson.D{{"split", db + ".none"}, {"middle", bson.D{{"x", 1}}}})))
	require.Equal(t, 73, code(runAdmin(t, 0, bson.D{{"split", db}, {"middle", bson.D{{"x", 1}}}})))
	require.Equal(t, 13, code(router(t, 0).Database(db).RunCommand(ctx, bson.D{{"split", ns}, {"middle", bson.D{{"x", 1}}}}).Err()))

	// A chunk of one key has no middle.
	admin(t, 0, bson.D{{"split", ns}, {"middle", bson.D{{"x", 60}}}})
	admin(t, 0, bson.D{{"split", ns}, {"middle", bson.D{{"x", 61}}}})
	require.Equal(t, 87, code(runAdmin(t, 0, bson.D{{"split", ns}, {"find", bson.D{{"x", 60}}}})))

	var entry struct {
		Details struct {
			Before, Left, Right struct{ Min, Max bson.Raw }
			OwningShard         string
		}
	}
	require.NoError(t, router(t, 1).Database("config").Collection("changelog").FindOne(ctx, bson.D{{"what", "split"}, {"ns", ns}}).Decode(&entry))
	require.Equal(t, before[0].Shard, entry.Details.OwningShard)
	require.Equal(t, int64(100), entry.Details.Left.Max.Lookup("x").AsInt64())
	require.Equal(t, int64(100), entry.Details.Right.Min.Lookup("x").AsInt64())
}

// TestSplitHashed: the middle of a hashed chunk is a hash, and documents stay where they
// are found.
func TestSplitHashed(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	ns := db + ".c"
	coll := router(t, 0).Database(db).Collection("c")
	shardCollection(t, 0, ns, bson.D{{"h", "hashed"}})

	for i := range 300 {
		_, err := coll.InsertOne(ctx, bson.D{{"_id", i}, {"h", i}})
		require.NoError(t, err)
	}

	n := len(chunksOf(t, 0, ns))
	admin(t, 1, bson.D{{"split", ns}, {"find", bson.D{{"h", 5}}}})
	admin(t, 2, bson.D{{"split", ns}, {"middle", bson.D{{"h", 12345}}}})
	admin(t, 2, bson.D{{"split", ns}, {"middle", bson.D{{"h", int64(-77)}}}})
	refusedWithout(t, runAdmin(t, 0, bson.D{{"split", ns}, {"middle", bson.D{{"h", "x"}}}}), "is not valid for shard key pattern")

	chunks := chunksOf(t, 0, ns)
	require.Len(t, chunks, n+3)

	for _, c := range chunks[1:] {
		require.Equal(t, bson.TypeInt64, c.Min.Lookup("h").Type)
	}

	for r := range routerCount {
		c := router(t, r).Database(db).Collection("c")
		for i := 0; i < 300; i += 17 {
			require.Equal(t, int64(1), count(t, c, bson.D{{"h", i}}))
		}

		require.Equal(t, int64(300), count(t, c, bson.D{}))
	}
}

func TestMergeChunks(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	ns := db + ".c"
	coll := router(t, 0).Database(db).Collection("c")
	shardCollection(t, 0, ns, bson.D{{"x", 1}})

	for i := range 100 {
		_, err := coll.InsertOne(ctx, bson.D{{"x", i}})
		require.NoError(t, err)
	}

	for i := 10; i < 100; i += 10 {
		admin(t, i%routerCount, bson.D{{"split", ns}, {"middle", bson.D{{"x", i}}}})
	}

	low := bson.D{{"x", bson.MinKey{}}}
	at := func(i int) bson.D { return bson.D{{"x", i}} }

	admin(t, 0, bson.D{{"mergeChunks", ns}, {"bounds", bson.A{low, at(30)}}})
	admin(t, 1, bson.D{{"mergeChunks", ns}, {"bounds", bson.A{at(40), at(60)}}})
	require.Equal(t, []int64{30, 40, 60, 70, 80, 90}, borders(t, 2, ns, "x"))
	// One chunk is merged already.
	admin(t, 2, bson.D{{"mergeChunks", ns}, {"bounds", bson.A{at(40), at(60)}}})

	for _, bounds := range []bson.A{{at(41), at(60)}, {at(40), at(65)}, {at(35), at(36)}, {at(60), at(40)}, {at(40), at(40)}} {
		require.Equal(t, 20, code(runAdmin(t, 0, bson.D{{"mergeChunks", ns}, {"bounds", bounds}})), "%v", bounds)
	}

	for _, test := range []struct {
		bounds any
		text   string
	}{
		{bson.A{}, "no bounds were specified"},
		{bson.A{low}, "only a min and max bound may be specified"},
		{bson.A{bson.D{}, at(30)}, "no min key specified"},
		{bson.A{low, bson.D{}}, "no max key specified"},
		{bson.A{bson.D{{"y", 1}}, at(30)}, "are not valid for shard key pattern"},
		{7, "wrong type for 'bounds' field"},
	} {
		refusedWithout(t, runAdmin(t, 0, bson.D{{"mergeChunks", ns}, {"bounds", test.bounds}}), test.text)
	}

	owner := chunksOf(t, 0, ns)[0].Shard
	require.Equal(t, 118, code(runAdmin(t, 0, bson.D{{"mergeAllChunksOnShard", db + ".none"}, {"shard", owner}})))
	require.Equal(t, 70, code(runAdmin(t, 0, bson.D{{"mergeAllChunksOnShard", ns}, {"shard", "nowhere"}})))
	require.Equal(t, 40414, code(runAdmin(t, 0, bson.D{{"mergeAllChunksOnShard", ns}})))
	require.Equal(t, 2, code(runAdmin(t, 0, bson.D{{"mergeAllChunksOnShard", ns}, {"shard", owner}, {"maxNumberOfChunksToMerge", 1}})))

	admin(t, 0, bson.D{{"mergeAllChunksOnShard", ns}, {"shard", owner}, {"maxNumberOfChunksToMerge", 3}})
	require.Equal(t, []int64{60, 70, 80, 90}, borders(t, 1, ns, "x"))
	admin(t, 0, bson.D{{"mergeAllChunksOnShard", ns}, {"shard", shardNames()[otherThan(shardIndex(t, owner))]}})
	require.Len(t, chunksOf(t, 1, ns), 5)
	admin(t, 2, bson.D{{"mergeAllChunksOnShard", ns}, {"shard", owner}})
	require.Len(t, chunksOf(t, 1, ns), 1)

	for r := range routerCount {
		require.Equal(t, int64(100), count(t, router(t, r).Database(db).Collection("c"), bson.D{}))
	}

	var entry struct {
		Details struct {
			Min, Max    bson.Raw
			NumChunks   int
			OwningShard string
		}
	}
	require.NoError(t, router(t, 1).Database("config").Collection("changelog").FindOne(ctx, bson.D{{"what", "merge"}, {"ns", ns}}).Decode(&entry))
	require.Equal(t, 3, entry.Details.NumChunks)
	require.Equal(t, owner, entry.Details.OwningShard)
}

var errLost = errors.New("a document is not found")

// TestSplitsUnderWrites: chunks are split and merged while all routers write and read, and
// nothing is noticed.
func TestSplitsUnderWrites(t *testing.T) {
	db := newDB(t)
	ns := db + ".c"
	ctx, cancel := context.WithCancel(opContext(t, 2*opLimit))
	shardCollection(t, 0, ns, bson.D{{"x", 1}})

	done := make(chan error, routerCount)
	written := make([]int, routerCount)

	for r := range routerCount {
		go func() {
			c := router(t, r).Database(db).Collection("c")
			for i := 0; ctx.Err() == nil; i++ {
				x := i*routerCount + r
				if _, err := c.InsertOne(t.Context(), bson.D{{"x", x % 1000}, {"n", x}}); err != nil {
					done <- err
					return
				}

				written[r]++

				n, err := c.CountDocuments(t.Context(), bson.D{{"x", x % 1000}, {"n", x}})
				if err != nil || n != 1 {
					done <- fmt.Errorf("%d: %w, %w", x, errLost, err)
					return
				}
			}

			done <- nil
		}()
	}

	for round := range 3 {
		for i := 50; i < 1000; i += 100 {
			admin(t, i%routerCount, bson.D{{"split", ns}, {"middle", bson.D{{"x", i + round}}}})
		}

		admin(t, round, bson.D{{"mergeAllChunksOnShard", ns}, {"shard", chunksOf(t, 0, ns)[0].Shard}})
	}

	cancel()

	for range routerCount {
		require.NoError(t, <-done)
	}

	total := 0
	for _, n := range written {
		total += n
	}

	require.Positive(t, total)
	require.Equal(t, int64(total), count(t, router(t, 1).Database(db).Collection("c"), bson.D{}))
}
