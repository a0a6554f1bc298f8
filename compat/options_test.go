package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// listed returns what listCollections says of a collection.
func listed(t *testing.T, r int, db, coll string) bson.Raw {
	t.Helper()

	cur, err := router(t, r).Database(db).ListCollections(t.Context(), bson.D{{"name", coll}})
	docs := all(t, cur, err)
	require.Len(t, docs, 1)

	return docs[0]
}

func TestUnshardedCollectionsKeepTheirOptions(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d, there := router(t, 0).Database(db), router(t, 1).Database(db)

	require.NoError(t, d.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(100000).SetMaxDocuments(5)))

	for i := range 12 {
		_, err := there.Collection("capped").InsertOne(ctx, bson.D{{"_id", i}})
		require.NoError(t, err)
	}

	cur, err := there.Collection("capped").Find(ctx, bson.D{})
	docs := all(t, cur, err)
	require.Len(t, docs, 5)
	require.Equal(t, int32(7), docs[0].Lookup("_id").Int32(), "the order of insertion")
	require.True(t, listed(t, 1, db, "capped").Lookup("options", "capped").Boolean())
	require.Equal(t, int64(5), listed(t, 1, db, "capped").Lookup("options", "max").AsInt64())

	validator := bson.D{{"$jsonSchema", bson.D{{"required", bson.A{"name"}}}}}
	require.NoError(t, d.CreateCollection(ctx, "valid", options.CreateCollection().SetValidator(validator)))
	_, err = there.Collection("valid").InsertOne(ctx, bson.D{{"x", 1}})
	require.Equal(t, 121, code(err), "%v", err)
	_, err = there.Collection("valid").InsertOne(ctx, bson.D{{"name", 1}})
	require.NoError(t, err)
	require.Equal(t, bson.TypeEmbeddedDocument, listed(t, 1, db, "valid").Lookup("options", "validator", "$jsonSchema").Type)

	require.NoError(t, d.CreateCollection(ctx, "loose", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	_, err = there.Collection("loose").InsertMany(ctx, []any{bson.D{{"s", "Ann"}}, bson.D{{"s", "ANN"}}, bson.D{{"s", "Bob"}}})
	require.NoError(t, err)
	require.Equal(t, int64(2), count(t, there.Collection("loose"), bson.D{{"s", "ann"}}))
	require.Equal(t, int32(2), listed(t, 1, db, "loose").Lookup("options", "collation", "strength").Int32())

	// Sharded, the collection keeps its validator and collation on every shard.
	for _, coll := range []string{"valid", "loose"} {
		_, err = d.Collection(coll).DeleteMany(ctx, bson.D{})
		require.NoError(t, err)
		shardCollection(t, 0, db+"."+coll, bson.D{{"k", "hashed"}}, bson.E{Key: "collation", Value: bson.D{{"locale", "simple"}}})
	}

	for i := range 30 {
		_, err = there.Collection("valid").InsertOne(ctx, bson.D{{"k", i}})
		require.Equal(t, 121, code(err), "%d: %v", i, err)
		_, err = there.Collection("loose").InsertOne(ctx, bson.D{{"k", i}, {"s", "ANN"}})
		require.NoError(t, err)
	}

	require.Equal(t, int64(30), count(t, there.Collection("loose"), bson.D{{"s", "ann"}}))

	// The same again is no error, something else is 48.
	require.NoError(t, d.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(100000).SetMaxDocuments(5)))
	require.NoError(t, there.CreateCollection(ctx, "plain"))
	require.NoError(t, d.CreateCollection(ctx, "plain"))
	require.Equal(t, 48, code(d.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(200000))))
	require.Equal(t, 48, code(d.CreateCollection(ctx, "capped")))
	require.Equal(t, 72, code(d.RunCommand(ctx, bson.D{{"create", "x"}, {"capped", true}}).Err()))
}

// indexNames lists a collection's indexes on one shard, or through a router.
func indexNames(t *testing.T, coll *mongo.Collection) []string {
	t.Helper()

	specs, err := coll.Indexes().ListSpecifications(t.Context())
	require.NoError(t, err)

	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}

	return names
}

func TestIndexesOfShardedCollections(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)

	shardCollection(t, 0, db+".h", bson.D{{"k", "hashed"}})
	shardCollection(t, 0, db+".r", bson.D{{"a", 1}, {"b", 1}})

	hashed, ranged := router(t, 1).Database(db).Collection("h"), router(t, 1).Database(db).Collection("r")
	unique := func(c *mongo.Collection, keys bson.D) int {
		_, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: keys, Options: options.Index().SetUnique(true)})
		return code(err)
	}

	require.Equal(t, 67, unique(hashed, bson.D{{"u", 1}}))
	require.Equal(t, 67, unique(hashed, bson.D{{"u", 1}, {"k", 1}}))
	require.Equal(t, 0, unique(hashed, bson.D{{"k", 1}, {"u", 1}}))
	require.Equal(t, 67, unique(ranged, bson.D{{"a", 1}}))
	require.Equal(t, 67, unique(ranged, bson.D{{"b", 1}, {"a", 1}}))
	require.Equal(t, 0, unique(ranged, bson.D{{"a", 1}, {"b", 1}, {"c", 1}}))
	require.Equal(t, 0, unique(ranged, bson.D{{"_id", 1}, {"x", 1}}), "what begins with _id is taken")

	_, err := hashed.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"plain", 1}}})
	require.NoError(t, err)

	for i := range shardCount {
		require.ElementsMatch(t, []string{"_id_", "k_hashed", "k_1_u_1", "plain_1"}, indexNames(t, shard(t, i).Database(db).Collection("h")))
	}

	require.ElementsMatch(t, []string{"_id_", "k_hashed", "k_1_u_1", "plain_1"}, indexNames(t, hashed))

	require.NoError(t, hashed.Indexes().DropOne(ctx, "plain_1"))
	require.Equal(t, 27, code(hashed.Indexes().DropOne(ctx, "plain_1")))
	require.Equal(t, 370, code(hashed.Indexes().DropOne(ctx, "k_hashed")))
	require.Equal(t, 370, code(hashed.Database().RunCommand(ctx, bson.D{{"dropIndexes", "h"}, {"index", bson.D{{"k", "hashed"}}}}).Err()))
	require.Equal(t, 370, code(hashed.Database().RunCommand(ctx, bson.D{{"dropIndexes", "h"}, {"index", bson.A{"k_1_u_1", "k_hashed"}}}).Err()))
	require.Equal(t, 72, code(hashed.Indexes().DropOne(ctx, "_id_")))

	// The index on (a, b, c) supports the key too, so that on (a, b) may go, but not both.
	require.NoError(t, ranged.Indexes().DropOne(ctx, "a_1_b_1"))
	require.Equal(t, 370, code(ranged.Indexes().DropOne(ctx, "a_1_b_1_c_1")))

	// "*" means all but _id's and the shard key's last one.
	for range 2 {
		require.NoError(t, hashed.Indexes().DropAll(ctx))
		require.NoError(t, ranged.Indexes().DropAll(ctx))
	}

	for i := range shardCount {
		require.ElementsMatch(t, []string{"_id_", "k_hashed"}, indexNames(t, shard(t, i).Database(db).Collection("h")))
	}

	require.ElementsMatch(t, []string{"_id_", "a_1_b_1_c_1"}, indexNames(t, ranged))

	// An unsharded collection has no such rules, and an index makes it.
	plain := router(t, 0).Database(db).Collection("plain")
	require.Equal(t, 0, unique(plain, bson.D{{"u", 1}}))
	require.NoError(t, plain.Indexes().DropAll(ctx))
	require.Equal(t, []string{"_id_"}, indexNames(t, router(t, 1).Database(db).Collection("plain")))
	require.Equal(t, 26, code(router(t, 0).Database(db).Collection("nothing").Indexes().DropOne(ctx, "x_1")))
	require.Equal(t, 26, code(router(t, 0).Database(db).RunCommand(ctx, bson.D{{"listIndexes", "nothing"}}).Err()))
}
