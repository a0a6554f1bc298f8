package compat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// spilled lists the temporary collections on all shards.
func spilled(t testing.TB) []string {
	t.Helper()

	var list []string

	for i := range shardCount {
		names, err := shard(t, i).Database("__shardgate").ListCollectionNames(t.Context(), bson.D{{"name", bson.D{{"$regex", "^spill"}}}})
		require.NoError(t, err)

		list = append(list, names...)
	}

	return list
}

// noneSpilled waits until the temporary collections are gone.
func noneSpilled(t testing.TB) {
	t.Helper()
	eventually(t, opLimit, "temporary collections are dropped", func() error {
		if list := spilled(t); len(list) > 0 {
			return fmt.Errorf("there is %v", list)
		}

		return nil
	})
}

// TestMergingMoreThanOneMessage: the merging half of a pipeline gets more than 16 MB.
func TestMergingMoreThanOneMessage(t *testing.T) {
	const docs, groups = 300, 10

	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	coll := router(t, 0).Database(db).Collection("c")

	var list []any
	for i := range docs {
		list = append(list, bson.D{{"_id", i}, {"g", i % groups}, {"text", strings.Repeat("$x", 50_000)}})
	}

	_, err := coll.InsertMany(t.Context(), list)
	require.NoError(t, err)

	pipeline := mongo.Pipeline{
		{{"$sort", bson.D{{"_id", -1}}}},
		{{"$group", bson.D{{"_id", "$g"}, {"all", bson.D{{"$push", bson.D{{"i", "$_id"}, {"t", bson.D{{"$strLenBytes", "$text"}}}}}}}}}},
		{{"$sort", bson.D{{"_id", 1}}}},
	}

	for _, size := range []int32{2, 100} {
		cur, err := coll.Aggregate(t.Context(), pipeline, options.Aggregate().SetBatchSize(size))
		found := all(t, cur, err)
		require.Len(t, found, groups)

		for i, d := range found {
			require.Equal(t, int32(i), d.Lookup("_id").Int32())

			var g struct {
				All []struct{ I, T int }
			}

			require.NoError(t, bson.Unmarshal(d, &g))
			require.Len(t, g.All, docs/groups)

			for j, x := range g.All {
				require.Equal(t, docs-groups+i-j*groups, x.I, "they come in order")
				require.Equal(t, 100_000, x.T)
			}
		}

		noneSpilled(t)
	}

	// A cursor that is left, and a pipeline that fails.
	cur, err := coll.Aggregate(t.Context(), pipeline, options.Aggregate().SetBatchSize(1))
	require.NoError(t, err)
	require.True(t, cur.Next(t.Context()))
	require.Len(t, spilled(t), 1)
	require.NoError(t, cur.Close(t.Context()))
	noneSpilled(t)

	_, err = coll.Aggregate(t.Context(), append(pipeline[:2:2], bson.D{{"$project", bson.D{{"x", bson.D{{"$divide", bson.A{1, 0}}}}}}}))
	require.Equal(t, 2, code(err), "%v", err)
	noneSpilled(t)
}

// TestMergingWhatIsNoUsualMessage: very many small documents, which cost more in a command than
// they are long, and one that leaves no room for a pipeline.
func TestMergingWhatIsNoUsualMessage(t *testing.T) {
	const perDocument = 100_000

	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	coll := router(t, 0).Database(db).Collection("c")

	for _, list := range keysOn(t, db+".c", 1) {
		_, err := coll.InsertOne(t.Context(), bson.D{{"k", list[0]}})
		require.NoError(t, err)
	}

	cur, err := coll.Aggregate(t.Context(), mongo.Pipeline{
		{{"$project", bson.D{{"_id", 0}, {"a", bson.D{{"$range", bson.A{0, perDocument}}}}, {"text", strings.Repeat("x", 27)}}}},
		{{"$unwind", "$a"}},
		{{"$bucketAuto", bson.D{{"groupBy", "$a"}, {"buckets", 1}}}},
	}, options.Aggregate().SetAllowDiskUse(true))
	found := all(t, cur, err)
	require.Len(t, found, 1)
	require.Equal(t, int32(shardCount*perDocument), found[0].Lookup("count").Int32())
	noneSpilled(t)

	_, err = coll.InsertOne(t.Context(), bson.D{{"text", strings.Repeat("x", 15_800_000)}})
	require.NoError(t, err)

	cur, err = coll.Aggregate(t.Context(), mongo.Pipeline{
		{{"$match", bson.D{{"text", bson.D{{"$exists", true}}}, {"k", bson.D{{"$ne", 1}}}}}},
		{{"$bucketAuto", bson.D{{"groupBy", "$_id"}, {"buckets", 1}, {"output", bson.D{{"n", bson.D{{"$max", bson.D{{"$strLenBytes", "$text"}}}}}}}}}},
	})
	found = all(t, cur, err)
	require.Len(t, found, 1)
	require.Equal(t, int32(15_800_000), found[0].Lookup("n").Int32())
	noneSpilled(t)
}

// TestOrderedPipelines: sorts, samples and distances are merged; documents come without the
// keys by which they are.
func TestOrderedPipelines(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	coll := router(t, 1).Database(db).Collection("c")

	var list []any
	for i := range 100 {
		list = append(list, bson.D{{"_id", i}, {"v", i * 37 % 100}, {"at", bson.A{float64(i) / 10, 0}}})
	}

	_, err := coll.InsertMany(t.Context(), list)
	require.NoError(t, err)
	_, err = coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{"at", "2d"}}})
	require.NoError(t, err)

	run := func(stages ...bson.D) []bson.Raw {
		cur, err := coll.Aggregate(t.Context(), mongo.Pipeline(stages), options.Aggregate().SetBatchSize(7))
		return all(t, cur, err)
	}
	plain := func(docs []bson.Raw, fields ...string) {
		for _, d := range docs {
			elems, err := d.Elements()
			require.NoError(t, err)

			var names []string
			for _, e := range elems {
				names = append(names, e.Key())
			}

			require.Equal(t, fields, names)
		}
	}

	sorted := run(bson.D{{"$sort", bson.D{{"v", -1}}}}, bson.D{{"$skip", 3}}, bson.D{{"$limit", 90}}, bson.D{{"$project", bson.D{{"v", 1}}}}, bson.D{{"$limit", 80}})
	require.Len(t, sorted, 80)
	plain(sorted, "_id", "v")

	for i, d := range sorted {
		require.Equal(t, int32(96-i), d.Lookup("v").Int32())
	}

	near := run(bson.D{{"$geoNear", bson.D{{"near", bson.A{0, 0}}, {"distanceField", "far"}}}}, bson.D{{"$limit", 60}})
	require.Len(t, near, 60)
	plain(near, "_id", "v", "at", "far")

	for i, d := range near {
		require.Equal(t, int32(i), d.Lookup("_id").Int32())
	}

	sample := run(bson.D{{"$sample", bson.D{{"size", 50}}}})
	require.Len(t, sample, 50)
	plain(sample, "_id", "v", "at")

	counts := run(bson.D{{"$sortByCount", bson.D{{"$mod", bson.A{"$v", 3}}}}})
	require.Len(t, counts, 3)
	require.Equal(t, `{"_id": {"$numberInt":"0"},"count": {"$numberInt":"34"}}`, counts[0].String())
}
