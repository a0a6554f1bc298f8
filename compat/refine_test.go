package compat

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestRefineCollectionShardKey(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 3*opLimit)
	ns := db + ".c"
	coll := router(t, 0).Database(db).Collection("c")
	refine := func(r int, key bson.D) error {
		t.Helper()
		return runAdmin(t, r, bson.D{{"refineCollectionShardKey", ns}, {"key", key}})
	}

	shardCollection(t, 0, ns, bson.D{{"h", "hashed"}}) // chunks on all shards

	for i := range 100 {
		_, err := coll.InsertOne(ctx, bson.D{{"_id", i}, {"h", i % 10}, {"y", i}})
		require.NoError(t, err)
	}

	_, err := coll.InsertOne(ctx, bson.D{{"_id", "old"}, {"h", 3}})
	require.NoError(t, err)

	key := bson.D{{"h", "hashed"}, {"y", 1}}
	require.Equal(t, 72, code(refine(0, key)), "no index")

	_, err = coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: key, Options: options.Index().SetSparse(true).SetName("sparse")})
	require.NoError(t, err)
	require.Equal(t, 72, code(refine(0, key)), "a sparse index")
	_, err = coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: key})
	require.NoError(t, err)

	before := chunksOf(t, 0, ns)
	require.NoError(t, refine(1, key))
	require.NoError(t, refine(2, key), "it is so already")

	after := chunksOf(t, 0, ns)
	require.Len(t, after, len(before))

	for i, c := range after {
		require.Equal(t, before[i].Shard, c.Shard)

		if i > 0 {
			require.Equal(t, before[i].Min.Lookup("h"), c.Min.Lookup("h"))
		}

		require.Equal(t, bson.TypeMinKey, c.Min.Lookup("y").Type)
	}

	require.Equal(t, bson.TypeMaxKey, after[len(after)-1].Max.Lookup("y").Type)

	for r := range routerCount {
		c := router(t, r).Database(db).Collection("c")
		require.Equal(t, int64(101+2*r), count(t, c, bson.D{}))
		require.Equal(t, int64(1), count(t, c, bson.D{{"h", 5}, {"y", 15}}))
		require.Equal(t, int64(10+r), count(t, c, bson.D{{"h", 7}}), "the first field alone")

		// A document without the new field, and one that can be told by the new key alone.
		_, err := c.InsertOne(ctx, bson.D{{"h", 7}})
		require.NoError(t, err)
		_, err = c.InsertOne(ctx, bson.D{{"h", 8}, {"y", 1000 + r}})
		require.NoError(t, err)
		_, err = c.InsertOne(ctx, bson.D{{"h", 8}, {"y", bson.A{1}}})
		require.Equal(t, 61, code(err), "%v", err)
	}

	// What has the same first field can be parted now.
	hash := after[0].Max.Lookup("h").Int64()
	admin(t, 0, bson.D{{"split", ns}, {"middle", bson.D{{"h", hash - 1}, {"y", 50}}}})
	require.Len(t, chunksOf(t, 1, ns), len(after)+1)
	require.Equal(t, int64(107), count(t, coll, bson.D{}))

	_, err = coll.UpdateOne(ctx, bson.D{{"h", 5}, {"y", 15}}, bson.D{{"$set", bson.D{{"y", 16000}}}})
	require.NoError(t, err)
	require.Equal(t, int64(1), count(t, router(t, 2).Database(db).Collection("c"), bson.D{{"h", 5}, {"y", 16000}}))
	require.Equal(t, 370, code(coll.Indexes().DropOne(ctx, "h_hashed_y_1")), "the new key's index stays")
}

func TestRefineRefused(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	ns := db + ".c"
	coll := router(t, 0).Database(db).Collection("c")
	shardCollection(t, 0, ns, bson.D{{"x", 1}}, bson.E{Key: "unique", Value: true})
	require.NoError(t, router(t, 0).Database(db).CreateCollection(ctx, "plain"))

	_, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"x", 1}, {"y", 1}}})
	require.NoError(t, err)

	for _, test := range []struct {
		cmd  bson.D
		code int
	}{
		{bson.D{{"refineCollectionShardKey", ns}}, 40414},
		{bson.D{{"refineCollectionShardKey", ns}, {"key", 1}}, 14},
		{bson.D{{"refineCollectionShardKey", 1}, {"key", bson.D{{"x", 1}}}}, 14},
		{bson.D{{"refineCollectionShardKey", db}, {"key", bson.D{{"x", 1}}}}, 73},
		{bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"x", -1}}}}, 2},
		{bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{}}}, 2},
		{bson.D{{"refineCollectionShardKey", db + ".none"}, {"key", bson.D{{"x", 1}}}}, 26},
		{bson.D{{"refineCollectionShardKey", db + ".plain"}, {"key", bson.D{{"x", 1}}}}, 118},
		{bson.D{{"refineCollectionShardKey", "config.collections"}, {"key", bson.D{{"_id", 1}, {"x", 1}}}}, 193},
		{bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"y", 1}, {"x", 1}}}}, 72},
		{bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"x", "hashed"}, {"y", 1}}}}, 72},
		{bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"y", 1}}}}, 72},
		// The unique index on x alone cannot be kept, and the one on both is not unique.
		{bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"x", 1}, {"y", 1}}}}, 72},
	} {
		err := runAdmin(t, 0, test.cmd)
		require.Equal(t, test.code, code(err), "%v: %v", test.cmd, err)
	}

	// A document with an array in the new field would belong nowhere.
	shardCollection(t, 0, db+".arrays", bson.D{{"x", 1}})

	arrays := router(t, 0).Database(db).Collection("arrays")
	refine := bson.D{{"refineCollectionShardKey", db + ".arrays"}, {"key", bson.D{{"x", 1}, {"y", 1}}}}
	_, err = arrays.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"x", 1}, {"y", 1}, {"z", 1}}})
	require.NoError(t, err)
	_, err = arrays.InsertMany(ctx, []any{bson.D{{"x", 4}, {"y", bson.A{1, 2}}}, bson.D{{"x", 5}, {"z", bson.A{1, 2}}}})
	require.NoError(t, err)
	require.Equal(t, 72, code(runAdmin(t, 0, refine)), "an array in the new field")
	_, err = arrays.DeleteOne(ctx, bson.D{{"x", 4}})
	require.NoError(t, err)
	// The index remembers, and is made anew. An array in another field of it does not matter.
	require.NoError(t, arrays.Indexes().DropOne(ctx, "x_1_y_1_z_1"))
	_, err = arrays.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"x", 1}, {"y", 1}, {"z", 1}}})
	require.NoError(t, err)
	require.NoError(t, runAdmin(t, 0, refine))
	require.Equal(t, int64(1), count(t, arrays, bson.D{{"x", 5}}))

	require.Equal(t, 13, code(router(t, 0).Database(db).RunCommand(ctx, bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"x", 1}}}}).Err()))
	require.NoError(t, runAdmin(t, 0, bson.D{{"refineCollectionShardKey", ns}, {"key", bson.D{{"x", 1}}}}))
}

func TestBalancerCommands(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	ns := db + ".c"
	config := router(t, 1).Database("config")
	shardCollection(t, 0, ns, bson.D{{"x", 1}})

	setting := func() bson.Raw {
		t.Helper()

		raw, err := config.Collection("settings").FindOne(ctx, bson.D{{"_id", "balancer"}}).Raw()
		require.NoError(t, err)

		return raw
	}

	_, err := config.Collection("settings").UpdateOne(ctx, bson.D{{"_id", "balancer"}},
		bson.D{{"$set", bson.D{{"activeWindow", bson.D{{"start", "23:00"}, {"stop", "06:00"}}}}}}, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := router(t, 0).Database("config").Collection("settings").UpdateOne(context.Background(), bson.D{{"_id", "balancer"}}, bson.D{{"$unset", bson.D{{"activeWindow", 1}}}})
		require.NoError(t, err)
		require.NoError(t, router(t, 0).Database("admin").RunCommand(context.Background(), bson.D{{"balancerStop", 1}}).Err(), "as it was")
	})
	admin(t, 0, bson.D{{"balancerStop", 1}})
	require.True(t, setting().Lookup("stopped").Boolean())
	require.Equal(t, "off", setting().Lookup("mode").StringValue())
	admin(t, 2, bson.D{{"balancerStart", 1}})
	require.False(t, setting().Lookup("stopped").Boolean())
	require.Equal(t, "full", setting().Lookup("mode").StringValue())
	require.Equal(t, "23:00", setting().Lookup("activeWindow", "start").StringValue(), "the rest stays")

	status := admin(t, 0, bson.D{{"balancerStatus", 1}})
	require.Equal(t, "off", status.Lookup("mode").StringValue(), "there is none")
	require.False(t, status.Lookup("inBalancerRound").Boolean())

	status = admin(t, 0, bson.D{{"balancerCollectionStatus", ns}})
	require.True(t, status.Lookup("balancerCompliant").Boolean())
	require.Equal(t, int64(128), status.Lookup("chunkSize").AsInt64())
	require.Equal(t, 118, code(runAdmin(t, 0, bson.D{{"balancerCollectionStatus", db + ".none"}})))
	require.Equal(t, 73, code(runAdmin(t, 0, bson.D{{"balancerCollectionStatus", db}})))

	// Three ranges' worth on one shard and nothing on the others.
	size := func(n any) error {
		_, err := config.Collection("settings").UpdateOne(ctx, bson.D{{"_id", "chunksize"}}, bson.D{{"$set", bson.D{{"value", n}}}}, options.UpdateOne().SetUpsert(true))
		return err
	}
	require.Equal(t, 121, code(size(0)))
	require.Equal(t, 121, code(size("x")))

	// Refused windows leave nothing behind.
	for _, w := range []any{1, "x", bson.D{{"start", "1:00"}}, bson.D{{"start", "25:00"}, {"stop", "2:00"}}} {
		_, err := config.Collection("settings").UpdateOne(ctx, bson.D{{"_id", "balancer"}}, bson.D{{"$set", bson.D{{"activeWindow", w}}}}, options.UpdateOne().SetUpsert(true))
		require.Equal(t, 121, code(err), w)
	}

	require.NoError(t, size(1))
	defer func() { require.NoError(t, size(128)) }()

	var docs []any
	for range 4 {
		docs = append(docs, bson.D{{"pad", make([]byte, 1<<20)}})
	}

	_, err = router(t, 0).Database(db).Collection("c").InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	status = admin(t, 0, bson.D{{"balancerCollectionStatus", ns}})
	require.False(t, status.Lookup("balancerCompliant").Boolean())
	require.Equal(t, "chunksImbalance", status.Lookup("firstComplianceViolation").StringValue())
	require.Equal(t, int64(1), status.Lookup("chunkSize").AsInt64())
}

func TestConfigUpdates(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, opLimit)
	ns := db + ".c"
	config := router(t, 0).Database("config")
	shardCollection(t, 0, ns, bson.D{{"x", 1}})

	collection := func() bson.Raw {
		t.Helper()

		raw, err := router(t, 1).Database("config").Collection("collections").FindOne(ctx, bson.D{{"_id", ns}}).Raw()
		require.NoError(t, err)

		return raw
	}
	no := func(v bool) bson.D { return bson.D{{"$set", bson.D{{"noBalance", v}}}} }

	res, err := config.Collection("collections").UpdateOne(ctx, bson.D{{"_id", ns}}, no(true))
	require.NoError(t, err)
	require.Equal(t, [2]int64{1, 1}, [2]int64{res.MatchedCount, res.ModifiedCount})
	require.True(t, collection().Lookup("noBalance").Boolean())
	res, err = config.Collection("collections").UpdateOne(ctx, bson.D{{"_id", ns}}, no(true))
	require.NoError(t, err)
	require.Equal(t, [2]int64{1, 0}, [2]int64{res.MatchedCount, res.ModifiedCount})
	_, err = config.Collection("collections").UpdateOne(ctx, bson.D{{"_id", ns}}, no(false))
	require.NoError(t, err)
	require.False(t, collection().Lookup("noBalance").Boolean())
	res, err = config.Collection("collections").UpdateOne(ctx, bson.D{{"_id", db + ".none"}}, no(true))
	require.NoError(t, err)
	require.Zero(t, res.MatchedCount)

	admin(t, 0, bson.D{{"setAllowMigrations", ns}, {"allowMigrations", false}})
	require.False(t, collection().Lookup("permitMigrations").Boolean())
	admin(t, 0, bson.D{{"setAllowMigrations", ns}, {"allowMigrations", true}})
	_, err = collection().LookupErr("permitMigrations")
	require.Error(t, err)
	require.Equal(t, 40414, code(runAdmin(t, 0, bson.D{{"setAllowMigrations", ns}})))
	require.Equal(t, 118, code(runAdmin(t, 0, bson.D{{"setAllowMigrations", db + ".none"}, {"allowMigrations", true}})))

	for _, test := range []struct {
		coll string
		q, u bson.D
		code int
	}{
		{"settings", bson.D{{"_id", "shardgate.clusterId"}}, bson.D{{"$set", bson.D{{"value", 1}}}}, 20},
		{"settings", bson.D{{"_id", "x"}, {"y", 1}}, bson.D{{"$set", bson.D{{"value", 1}}}}, 238},
		{"settings", bson.D{}, bson.D{{"$set", bson.D{{"value", 1}}}}, 238},
		{"settings", bson.D{{"_id", "x"}}, bson.D{{"$inc", bson.D{{"value", 1}}}}, 238},
		{"settings", bson.D{{"_id", "x"}}, bson.D{{"$set", bson.D{{"a.b", 1}}}}, 238},
		{"collections", bson.D{{"_id", ns}}, bson.D{{"$set", bson.D{{"key", bson.D{{"y", 1}}}}}}, 238},
		{"collections", bson.D{{"_id", ns}}, bson.D{{"$set", bson.D{{"noBalance", 7}}}}, 121},
		{"chunks", bson.D{{"_id", 1}}, bson.D{{"$set", bson.D{{"shard", "x"}}}}, 238},
	} {
		_, err := config.Collection(test.coll).UpdateOne(ctx, test.q, test.u, options.UpdateOne().SetUpsert(test.coll == "settings"))
		require.Equal(t, test.code, code(err), "%v %v: %v", test.q, test.u, err)
	}

	require.Equal(t, 51260, code(runAdmin(t, 0, bson.D{{"clearJumboFlag", ns}, {"find", bson.D{{"y", 1}}}})))
	require.Equal(t, 51261, code(runAdmin(t, 0, bson.D{{"clearJumboFlag", ns}, {"bounds", bson.A{bson.D{{"x", 1}}, bson.D{{"x", 2}}}}})))
	require.Equal(t, 72, code(runAdmin(t, 0, bson.D{{"clearJumboFlag", ns}})))
	require.Equal(t, 72, code(runAdmin(t, 0, bson.D{{"clearJumboFlag", ns}, {"bounds", bson.A{bson.D{{"x", 1}}}}})))
	require.Equal(t, 118, code(runAdmin(t, 0, bson.D{{"clearJumboFlag", db + ".none"}, {"find", bson.D{{"x", 1}}}})))
	admin(t, 0, bson.D{{"clearJumboFlag", ns}, {"find", bson.D{{"x", 1}}}}) // nothing to do
}

// TestShardingHelpers: what mongosh's helpers send works, and reads as it should.
func TestShardingHelpers(t *testing.T) {
	db := newDB(t)
	t.Cleanup(func() {
		require.NoError(t, router(t, 0).Database("admin").RunCommand(context.Background(), bson.D{{"balancerStop", 1}}).Err(), "as it was")
	})
	out := mongosh(t, "--quiet", "--norc", shared.cluster.RouterURI(0), "--eval", "const name = '"+db+"'", "--file", "testdata/helpers.js")
	require.Contains(t, out, "helpers done")
	require.Regexp(t, `'?Currently enabled'?: 'yes'`, out)
	require.Regexp(t, `nChunks: 4`, out)
	require.Regexp(t, `estimated docs per chunk`, out)
}
