package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestExplainShape checks the shapes that graphical clients read (CASES.md A27), with the
// shards' own plans inside and their numbers added up.
func TestExplainShape(t *testing.T) {
	db := router(t, 0).Database(newDB(t))
	shardCollection(t, 0, db.Name()+".c", bson.D{{"k", "hashed"}})
	var docs []any
	for i := range 60 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}, {"s", i % 7}})
	}
	_, err := db.Collection("c").InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	for _, c := range []struct {
		name    string
		command bson.D
		stage   string
		shards  int
		n       int32
	}{
		{"one shard", bson.D{{"find", "c"}, {"filter", bson.D{{"k", 5}}}}, "SINGLE_SHARD", 1, 1},
		{"all shards", bson.D{{"find", "c"}}, "SHARD_MERGE", shardCount, 60},
		{"sorted", bson.D{{"find", "c"}, {"sort", bson.D{{"s", 1}}}}, "SHARD_MERGE_SORT", shardCount, 60},
		{"count", bson.D{{"count", "c"}, {"query", bson.D{{"s", 1}}}}, "SHARD_MERGE", shardCount, 0},
		{"update", bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"k", 5}}}, {"u", bson.D{{"$set", bson.D{{"x", 1}}}}}}}}}, "SHARD_WRITE", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := db.RunCommand(opContext(t, opLimit), bson.D{{"explain", c.command}, {"verbosity", "executionStats"}}).Raw()
			require.NoError(t, err)
			plan := raw.Lookup("queryPlanner", "winningPlan").Document()
			require.Equal(t, c.stage, plan.Lookup("stage").StringValue())
			shards, err := plan.Lookup("shards").Array().Values()
			require.NoError(t, err)
			require.Len(t, shards, c.shards)
			for _, s := range shards {
				require.Contains(t, shardNames(), s.Document().Lookup("shardName").StringValue())
				require.NotEmpty(t, s.Document().Lookup("winningPlan", "stage").StringValue())
			}
			if c.n > 0 {
				require.Equal(t, c.n, raw.Lookup("executionStats", "nReturned").Int32())
			}
		})
	}
	require.Empty(t, count(t, db.Collection("c"), bson.D{{"x", 1}}), "an explained update must not run")
}

// TestDistinctOverShards: equal values of several shards are one, in order, under the
// collation of the command or else of the collection.
func TestDistinctOverShards(t *testing.T) {
	db := router(t, 0).Database(newDB(t))
	shardCollection(t, 1, db.Name()+".c", bson.D{{"_id", "hashed"}})
	values := []any{1, int64(1), 1.0, "a", "A", "b", nil, bson.A{3, 1}, bson.D{{"x", 1}}, true}
	var docs []any
	for i := range 90 {
		docs = append(docs, bson.D{{"_id", i}, {"v", values[i%len(values)]}})
	}
	_, err := db.Collection("c").InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	distinct := func(more ...bson.E) int {
		raw, err := db.RunCommand(opContext(t, opLimit), append(bson.D{{"distinct", "c"}, {"key", "v"}}, more...)).Raw()
		require.NoError(t, err)
		list, err := raw.Lookup("values").Array().Values()
		require.NoError(t, err)
		return len(list)
	}
	require.Equal(t, 8, distinct(), "null 1 3 a A b {x:1} true")
	require.Equal(t, 7, distinct(bson.E{"collation", bson.D{{"locale", "en"}, {"strength", 2}}}), "a and A are one")
	require.Equal(t, 1, distinct(bson.E{"query", bson.D{{"v", "b"}}}))
}

// TestCollModAndStats: options change on every owner and in the catalog, and a database's
// numbers are those of all shards.
func TestCollModAndStats(t *testing.T) {
	db := router(t, 0).Database(newDB(t))
	shardCollection(t, 0, db.Name()+".c", bson.D{{"k", "hashed"}})
	var docs []any
	for i := range 60 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}
	_, err := db.Collection("c").InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	require.NoError(t, db.RunCommand(opContext(t, opLimit), bson.D{{"collMod", "c"}, {"validator", bson.D{{"k", bson.D{{"$exists", true}}}}}}).Err())
	other := router(t, 1).Database(db.Name())
	infos, err := other.ListCollectionSpecifications(opContext(t, opLimit), bson.D{{"name", "c"}})
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.NotEmpty(t, infos[0].Options.Lookup("validator").Document())
	for i := range 20 { // whichever shard it goes to
		_, err = other.Collection("c").InsertOne(opContext(t, opLimit), bson.D{{"_id", 1000 + i}, {"x", i}})
		require.Equal(t, 121, code(err))
	}
	err = db.RunCommand(opContext(t, opLimit), bson.D{{"collMod", "c"}, {"index", bson.D{{"name", "k_hashed"}, {"hidden", true}}}}).Err()
	require.Equal(t, 72, code(err))

	raw, err := db.RunCommand(opContext(t, opLimit), bson.D{{"dbStats", 1}}).Raw()
	require.NoError(t, err)
	require.EqualValues(t, 60, raw.Lookup("objects").AsInt64())
	per, err := raw.Lookup("raw").Document().Elements()
	require.NoError(t, err)
	require.Len(t, per, shardCount)
}
