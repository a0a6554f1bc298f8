package compat

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestNoMoreIsRefusedThanByAMongod (CASES.md A3).
func TestNoMoreIsRefusedThanByAMongod(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	c := dialRaw(t, 0)

	ok(t, c.run(bson.D{{"serverStatus", 1}, {"$db", "admin"}}))

	reply := c.run(bson.D{{"getParameter", 1}, {"noSuch", 1}, {"$db", "admin"}})
	require.Zero(t, reply.Lookup("ok").Double())
	require.Equal(t, "no option found to get", reply.Lookup("errmsg").StringValue())
	require.Equal(t, bson.RawValue{}, reply.Lookup("code"))

	for _, d := range []bson.D{
		{{"_id", 1}, {"k", 1}, {"v", bson.D{{"_id", bson.A{"x"}}}}},
		{{"_id", 2}, {"k", 1}, {"a", 1}, {"a", 2}},
		{{"_id", 3}, {"k", 1}, {"a.b", 1}, {"$c", 2}, {"", 3}},
	} {
		require.Equal(t, int32(1), ok(t, c.run(bson.D{{"insert", "c"}, {"documents", bson.A{d}}, {"$db", db}})).Lookup("n").Int32(), "%v", d)

		stored := batch(t, ok(t, c.run(bson.D{{"find", "c"}, {"filter", bson.D{{"_id", d[0].Value}}}, {"$db", db}})), "firstBatch")
		require.Len(t, stored, 1)
		require.Equal(t, bson.Raw(raw(t, d)).String(), stored[0].Document().String())
	}

	refused(t, c.run(bson.D{{"ping", 1}, {"$db", db}, {"$db", db}}), 40413, "Location40413")
}

// TestHashedKeysThatCompareEqual: numbers that compare equal are found by every spelling, as
// far as a single mongod with a hashed index finds them (CASES.md A8).
func TestHashedKeysThatCompareEqual(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	judge := dialJudge(t)
	c := dialRaw(t, 1)
	dec := func(s string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(s)
		require.NoError(t, err)

		return d
	}
	values := []any{
		int32(2), int64(2), 2.0, 2.9, dec("2"), dec("2.9"), dec("3.5"), 3.5, math.NaN(), dec("NaN"), int32(0), math.Copysign(0, -1), nil,
		math.Inf(1), math.Inf(-1), dec("Infinity"), 1e300, math.Pow(2, 63), int64(math.MaxInt64),
		bson.D{{"a", 1}},
		bson.D{{"a", 1.0}},
		bson.D{{"a", 1.5}},
		bson.D{{"a", 1}, {"b", 2}},
		bson.D{{"b", 2}, {"a", 1}},
		"x", true,
		bson.MinKey{},
		bson.MaxKey{},
	}

	docs := bson.A{bson.D{{"_id", "missing"}}}
	for i, v := range values {
		docs = append(docs, bson.D{{"_id", fmt.Sprint(i)}, {"k", v}})
	}

	both := func(cmd bson.D) [2]bson.Raw {
		t.Helper()
		return [2]bson.Raw{ok(t, c.run(cmd)), ok(t, judge.run(cmd))}
	}
	both(bson.D{{"insert", "c"}, {"documents", docs}, {"$db", db}})
	ok(t, judge.run(bson.D{{"createIndexes", "c"}, {"indexes", bson.A{bson.D{{"key", bson.D{{"k", "hashed"}}}, {"name", "k_hashed"}}}}, {"$db", db}}))

	ids := func(reply bson.Raw) (list []string) {
		for _, d := range batch(t, reply, "firstBatch") {
			list = append(list, d.Document().Lookup("_id").StringValue())
		}

		slices.Sort(list)

		return list
	}

	for i, v := range values {
		for _, filter := range []bson.D{{{"k", v}}, {{"k", bson.D{{"$eq", v}}}}, {{"k", bson.D{{"$in", bson.A{v, "no"}}}}}, {{"$and", bson.A{bson.D{{"k", v}}, bson.D{{"k", v}}}}}} {
			found := both(bson.D{{"find", "c"}, {"filter", filter}, {"$db", db}})
			require.Equal(t, ids(found[1]), ids(found[0]), "%d: %v", i, filter)
		}
	}

	list := bson.A(values)
	found := both(bson.D{{"find", "c"}, {"filter", bson.D{{"k", bson.D{{"$in", list}}}}}, {"$db", db}})
	require.Len(t, ids(found[0]), len(docs))
	require.Equal(t, ids(found[1]), ids(found[0]))

	reply := ok(t, c.run(bson.D{{"insert", "c"}, {"documents", bson.A{bson.D{{"k", bson.A{1, 2}}}}}, {"$db", db}}))
	require.Equal(t, int32(61), reply.Lookup("writeErrors", "0", "code").Int32(), "an array is no key: %s", reply)
}

// TestShardKeyDemandedTwice: equal demands meet the document, contradictory ones nothing, and
// never one shard's guess (CASES.md A9).
func TestShardKeyDemandedTwice(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	coll := router(t, 0).Database(db).Collection("c")

	var docs []any
	for i := range 20 {
		docs = append(docs, bson.D{{"_id", i}, {"n", 0}})
	}

	_, err := coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)

	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}

	for x := range 20 {
		for _, filter := range []bson.D{
			{{"$and", bson.A{bson.D{{"_id", x}}, bson.D{{"_id", x}}}}}, {{"_id", bson.D{{"$eq", x}}}}, {{"_id", bson.D{{"$in", bson.A{x}}}}},
		} {
			require.NoError(t, coll.FindOneAndUpdate(t.Context(), filter, inc).Err(), "%v", filter)

			res, err := coll.UpdateOne(t.Context(), filter, inc)
			require.NoError(t, err)
			require.Equal(t, int64(1), res.ModifiedCount, "%v", filter)
		}

		none := bson.D{{"$and", bson.A{bson.D{{"_id", x}}, bson.D{{"_id", (x + 1) % 20}}}}}
		require.ErrorIs(t, coll.FindOneAndUpdate(t.Context(), none, inc).Err(), mongo.ErrNoDocuments)

		res, err := coll.UpdateOne(t.Context(), none, inc)
		require.NoError(t, err)
		require.Zero(t, res.MatchedCount)

		del, err := coll.DeleteOne(t.Context(), none)
		require.NoError(t, err)
		require.Zero(t, del.DeletedCount)
	}

	require.Equal(t, int64(20), count(t, coll, bson.D{{"n", 6}}))
}

// TestMissingNullAndDottedShardKeys (CASES.md A10).
func TestMissingNullAndDottedShardKeys(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"loc.id", "hashed"}})
	coll := router(t, 0).Database(db).Collection("c")

	for _, d := range []bson.D{{{"_id", 1}, {"loc", bson.D{{"id", 7}}}}, {{"_id", 2}, {"loc", bson.D{}}}, {{"_id", 3}}, {{"_id", 4}, {"loc", nil}}} {
		_, err := coll.InsertOne(t.Context(), d)
		require.NoError(t, err)
	}

	for _, d := range []bson.D{{{"_id", 5}, {"loc", bson.A{bson.D{{"id", 7}}}}}, {{"_id", 6}, {"loc", bson.D{{"id", bson.A{1}}}}}} {
		_, err := coll.InsertOne(t.Context(), d)
		require.Equal(t, 61, code(err), "%v", err)
	}

	for _, c := range []struct {
		filter bson.D
		ids    []int32
	}{
		{bson.D{{"loc.id", 7}}, []int32{1}},
		{bson.D{{"loc", bson.D{{"id", 7}}}}, []int32{1}},
		{bson.D{{"loc.id", nil}}, []int32{2, 3, 4}},
		{bson.D{{"loc.id", bson.D{{"$exists", false}}}}, []int32{2, 3, 4}},
		{bson.D{{"loc", nil}}, []int32{3, 4}},
	} {
		cur, err := router(t, 1).Database(db).Collection("c").Find(t.Context(), c.filter, options.Find().SetSort(bson.D{{"_id", 1}}))

		var ids []int32
		for _, d := range all(t, cur, err) {
			ids = append(ids, d.Lookup("_id").Int32())
		}

		require.Equal(t, c.ids, ids, "%v", c.filter)
	}

	res, err := coll.UpdateOne(t.Context(), bson.D{{"loc.id", nil}, {"_id", 9}}, bson.D{{"$set", bson.D{{"x", 1}}}}, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.Equal(t, int32(9), res.UpsertedID)
	require.Equal(t, int64(1), count(t, coll, bson.D{{"loc.id", nil}, {"_id", 9}, {"x", 1}}))
}

// TestSameIDOnTwoShards: both documents are there, and a write of one changes one
// (CASES.md A11).
func TestSameIDOnTwoShards(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 2)
	coll := router(t, 0).Database(db).Collection("c")
	a, b := keys["shard_0"], keys["shard_1"]

	for _, k := range []int32{a[0], b[0]} {
		_, err := coll.InsertOne(t.Context(), bson.D{{"_id", 1}, {"k", k}, {"n", 0}})
		require.NoError(t, err)
	}

	_, err := coll.InsertOne(t.Context(), bson.D{{"_id", 1}, {"k", a[1]}})
	require.Equal(t, 11000, code(err), "the shard has this _id: %v", err)
	require.Equal(t, int64(2), count(t, coll, bson.D{{"_id", 1}}))

	cur, err := coll.Find(t.Context(), bson.D{{"_id", 1}}, options.Find().SetSort(bson.D{{"_id", 1}}).SetSkip(1).SetLimit(1))
	require.Len(t, all(t, cur, err), 1)

	res, err := coll.UpdateOne(t.Context(), bson.D{{"_id", 1}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
	require.NoError(t, err)
	require.Equal(t, int64(1), res.ModifiedCount)
	require.Equal(t, int64(1), count(t, coll, bson.D{{"n", 1}}))

	// To another shard: refused whole, the twin there is as it was.
	_, err = coll.UpdateOne(t.Context(), bson.D{{"_id", 1}, {"k", a[0]}}, bson.D{{"$set", bson.D{{"k", b[1]}}}})
	require.Equal(t, 238, code(err), "%v", err)
	require.Equal(t, int64(1), count(t, coll, bson.D{{"k", a[0]}}))

	del, err := coll.DeleteOne(t.Context(), bson.D{{"_id", 1}})
	require.NoError(t, err)
	require.Equal(t, int64(1), del.DeletedCount)
	require.Equal(t, int64(1), count(t, coll, bson.D{{"_id", 1}}))
}

// TestBatchSizesAndLimits (CASES.md A15).
func TestBatchSizesAndLimits(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	var docs []any
	for i := range 200 {
		docs = append(docs, bson.D{{"_id", i}})
	}

	_, err := router(t, 0).Database(db).Collection("c").InsertMany(t.Context(), docs)
	require.NoError(t, err)

	c := dialRaw(t, 0)

	for _, x := range []struct {
		name string
		more bson.D
		n    int
		open bool
	}{
		{"batchSize 0", bson.D{{"batchSize", 0}}, 0, true},
		{"no batchSize", nil, 101, true},
		{"a double", bson.D{{"batchSize", 2.0}}, 2, true},
		{"limit as batchSize", bson.D{{"limit", 2}, {"batchSize", 2}}, 2, false},
		{"limit less than batchSize", bson.D{{"limit", 2}, {"batchSize", 50}}, 2, false},
		{"single", bson.D{{"singleBatch", true}, {"batchSize", 1}}, 1, false},
		{"a window", bson.D{{"skip", 150}, {"limit", 10}, {"sort", bson.D{{"_id", 1}}}}, 10, false},
		{"a window beyond", bson.D{{"skip", 195}, {"limit", 10}}, 5, false},
		{"nothing", bson.D{{"skip", 500}}, 0, false},
	} {
		reply := ok(t, c.run(append(append(bson.D{{"find", "c"}}, x.more...), bson.E{Key: "$db", Value: db})))
		require.Len(t, batch(t, reply, "firstBatch"), x.n, x.name)
		require.Equal(t, x.open, reply.Lookup("cursor", "id").Int64() != 0, x.name)
	}

	refused(t, c.run(bson.D{{"find", "c"}, {"limit", -1}, {"$db", db}}), 51024, "Location51024")

	reply := ok(t, c.run(bson.D{{"aggregate", "c"}, {"pipeline", bson.A{}}, {"cursor", bson.D{{"batchSize", 0}}}, {"$db", db}}))
	require.Empty(t, batch(t, reply, "firstBatch"))
	require.NotZero(t, reply.Lookup("cursor", "id").Int64())
	require.NoError(t, c.Close())
	eventually(t, opLimit, "the shards' cursors are closed", func() error {
		if n := openOnShards(t, db+".c"); n > 0 {
			return fmt.Errorf("%d are open", n)
		}

		return nil
	})
}

// TestMergeOrderIsAMongods: collations, missing fields, arrays and mixed types (CASES.md A16).
func TestMergeOrderIsAMongods(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	judge, c := dialJudge(t), dialRaw(t, 1)
	ten, err := bson.ParseDecimal128("10")
	require.NoError(t, err)

	values := []any{"b", "A", "a", "B", "é", "E", "e", int32(10), "9", "10", nil, bson.A{3, 1}, bson.D{{"x", 1}}, ten, 2.5, true, "ß", "ss"}

	var docs []any
	for i := range 200 {
		d := bson.D{{"_id", i}}
		if j := i % (len(values) + 1); j < len(values) {
			d = append(d, bson.E{Key: "s", Value: values[j]})
		}

		docs = append(docs, d)
	}

	for _, conn := range []*rawConn{c, judge} {
		ok(t, conn.run(bson.D{{"insert", "c"}, {"$db", db}}, sequence{"documents", docs}))
	}

	for _, collation := range []bson.D{nil, {{"locale", "en"}, {"strength", 2}}, {{"locale", "en"}, {"numericOrdering", true}}, {{"locale", "de"}}} {
		for _, sort := range []bson.D{{{"s", 1}, {"_id", 1}}, {{"s", -1}, {"_id", -1}}} {
			cmd := bson.D{{"find", "c"}, {"sort", sort}, {"skip", 37}, {"limit", 120}, {"batchSize", 1000}, {"$db", db}}
			if collation != nil {
				cmd = append(cmd, bson.E{Key: "collation", Value: collation})
			}

			require.Equal(t, batch(t, ok(t, judge.run(cmd)), "firstBatch"), batch(t, ok(t, c.run(cmd)), "firstBatch"), "%v, %v", collation, sort)
		}
	}
}

// TestGreatestDocuments of exactly 16 MiB come through a sorted merge, where the shards add
// their sort keys.
func TestGreatestDocuments(t *testing.T) {
	const size = 16 << 20

	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	coll := router(t, 0).Database(db).Collection("c")

	for i := range 4 {
		d := bson.D{{"_id", i}, {"text", ""}}
		d[1].Value = strings.Repeat("x", size-len(raw(t, d)))
		require.Len(t, raw(t, d), size)
		_, err := coll.InsertOne(t.Context(), d)
		require.NoError(t, err)
	}

	cur, err := router(t, 1).Database(db).Collection("c").Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", -1}}))
	found := all(t, cur, err)
	require.Len(t, found, 4)

	for i, d := range found {
		require.Len(t, d, size)
		require.Equal(t, int32(3-i), d.Lookup("_id").Int32())
	}
}

// TestPipelinesThatReachOtherCollections run where one shard holds them all, and are refused
// elsewhere: never is a join half done (CASES.md A18).
func TestPipelinesThatReachOtherCollections(t *testing.T) {
	db := newDB(t)
	d := router(t, 0).Database(db)
	shardCollection(t, 0, db+".sharded", bson.D{{"_id", "hashed"}})

	homes := map[string][]string{} // shard → unsharded collections
	for i := range 2 * shardCount {
		name := fmt.Sprint("plain", i)
		_, err := d.Collection(name).InsertMany(t.Context(), []any{bson.D{{"_id", 1}, {"to", 1}}, bson.D{{"_id", 2}, {"to", 1}}})
		require.NoError(t, err)

		var row struct{ Shard string }

		require.NoError(t, router(t, 0).Database("config").Collection("chunks").FindOne(t.Context(), bson.D{{"ns", db + "." + name}}).Decode(&row))
		homes[row.Shard] = append(homes[row.Shard], name)
	}

	_, err := d.Collection("sharded").InsertOne(t.Context(), bson.D{{"_id", 1}, {"to", 1}})
	require.NoError(t, err)

	stages := func(from string) []bson.D {
		lookup := bson.D{{"$lookup", bson.D{{"from", from}, {"localField", "to"}, {"foreignField", "_id"}, {"as", "found"}}}}

		return []bson.D{
			lookup,
			{{"$lookup", bson.D{{"from", from}, {"pipeline", bson.A{}}, {"as", "found"}}}},
			{{"$unionWith", from}},
			{{"$graphLookup", bson.D{{"from", from}, {"startWith", "$to"}, {"connectFromField", "to"}, {"connectToField", "_id"}, {"as", "found"}}}},
			{{"$facet", bson.D{{"x", bson.A{lookup}}}}},
		}
	}
	run := func(on string, stage bson.D) int {
		_, err := d.Collection(on).Aggregate(t.Context(), mongo.Pipeline{stage})
		return code(err)
	}

	var last string

	for shard, list := range homes {
		for _, stage := range stages(list[0]) {
			require.Zero(t, run(list[len(list)-1], stage), "%v", stage)
			require.Equal(t, 238, run("sharded", stage), "%v", stage)
		}

		for _, stage := range stages("sharded") {
			require.Equal(t, 238, run(list[0], stage), "%v", stage)
		}

		if last != "" {
			for _, stage := range stages(homes[last][0]) {
				require.Equal(t, 238, run(list[0], stage), "%v", stage)
			}
		}

		last = shard
	}
}

// TestRefusalsAreNotByAStaleTable: what another router has made of the collection decides
// (CASES.md A25).
func TestRefusalsAreNotByAStaleTable(t *testing.T) {
	db := newDB(t)
	warm, other := router(t, 1).Database(db), router(t, 0).Database(db)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	unique := mongo.IndexModel{Keys: bson.D{{"u", 1}}, Options: options.Index().SetUnique(true)}

	require.Zero(t, count(t, warm.Collection("c"), bson.D{}))
	_, err := warm.Collection("c").Indexes().CreateOne(t.Context(), unique)
	require.Equal(t, 67, code(err), "%v", err)

	require.NoError(t, other.Collection("c").Drop(t.Context()))
	require.NoError(t, other.CreateCollection(t.Context(), "c", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<16)))

	_, err = warm.Collection("c").InsertOne(t.Context(), bson.D{{"_id", 1}})
	require.NoError(t, err)

	cur, err := warm.Collection("c").Find(t.Context(), bson.D{}, options.Find().SetCursorType(options.Tailable))
	require.NoError(t, err)
	require.True(t, cur.Next(t.Context()))
	require.NoError(t, cur.Close(t.Context()))

	_, err = warm.Collection("c").Indexes().CreateOne(t.Context(), unique)
	require.NoError(t, err)

	// And the other way.
	require.NoError(t, other.Collection("c").Drop(t.Context()))
	_, err = warm.Collection("c").InsertOne(t.Context(), bson.D{{"k", 1}})
	require.NoError(t, err)
	_, err = other.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{"k", "hashed"}}})
	require.NoError(t, err)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	_, err = warm.Collection("c").Indexes().CreateOne(t.Context(), unique)
	require.Equal(t, 67, code(err), "%v", err)

	for i := range shardCount {
		names := indexNames(t, shard(t, i).Database(db).Collection("c"))
		require.NotContains(t, names, "u_1")
	}
}
