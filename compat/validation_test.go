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

var hashedK = bson.D{{"k", "hashed"}}

// prepared are the collections of the table below.
func prepared(t *testing.T, db string) {
	t.Helper()

	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)
	german := &options.Collation{Locale: "de"}

	shardCollection(t, 0, db+".done", hashedK)
	shardCollection(t, 0, db+".ranged", bson.D{{"a", 1}, {"b", 1}})
	shardCollection(t, 0, db+".unique", bson.D{{"a", 1}}, bson.E{Key: "unique", Value: true})
	require.NoError(t, d.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)))
	require.NoError(t, d.CreateCollection(ctx, "german", options.CreateCollection().SetCollation(german)))

	full := func(coll string, indexes ...mongo.IndexModel) {
		_, err := d.Collection(coll).InsertOne(ctx, bson.D{{"k", 1}, {"a", 1}})
		require.NoError(t, err)

		if len(indexes) > 0 {
			_, err = d.Collection(coll).Indexes().CreateMany(ctx, indexes)
			require.NoError(t, err)
		}
	}

	full("full")
	full("sparse", mongo.IndexModel{Keys: bson.D{{"k", 1}}, Options: options.Index().SetSparse(true)})
	full("partial", mongo.IndexModel{Keys: bson.D{{"k", 1}}, Options: options.Index().SetPartialFilterExpression(bson.D{{"k", bson.D{{"$gt", 0}}}})})
	full("collated", mongo.IndexModel{Keys: bson.D{{"k", 1}}, Options: options.Index().SetCollation(german)})
	full("indexed", mongo.IndexModel{Keys: bson.D{{"k", 1}, {"a", 1}}}, mongo.IndexModel{Keys: hashedK})
	full("foreign", mongo.IndexModel{Keys: bson.D{{"z", 1}}, Options: options.Index().SetUnique(true)})
}

func TestShardCollectionValidation(t *testing.T) {
	db := newDB(t)
	prepared(t, db)

	long := strings.Repeat("x", 260)
	e := func(key string, value any) bson.E { return bson.E{Key: key, Value: value} }

	for _, test := range []struct {
		ns   any
		key  any // nil: left out
		code int
		more []bson.E
	}{
		// Namespaces.
		{"", hashedK, 73, nil},
		{"nodot", hashedK, 73, nil},
		{".coll", hashedK, 73, nil},
		{db + ".", hashedK, 73, nil},
		{db + ".$x", hashedK, 73, nil},
		{"a/b.c", hashedK, 73, nil},
		{"a b.c", hashedK, 73, nil},
		{strings.Repeat("d", 64) + ".c", hashedK, 73, nil},
		{db + "." + long, hashedK, 73, nil},
		{5, hashedK, 14, nil},
		{db + ".system.views", hashedK, 20, nil},
		{db + ".system.buckets.x", hashedK, 5731501, nil},
		{"config.x", hashedK, 20, nil},
		{"admin.x", hashedK, 20, nil},
		// Keys.
		{db + ".new", nil, 40414, nil},
		{db + ".new", 5, 14, nil},
		{db + ".new", "k", 14, nil},
		{db + ".new", bson.D{}, 2, nil},
		{db + ".new", bson.D{{"k", 2}}, 2, nil},
		{db + ".new", bson.D{{"k", -1}}, 2, nil},
		{db + ".new", bson.D{{"k", 0}}, 2, nil},
		{db + ".new", bson.D{{"k", "text"}}, 2, nil},
		{db + ".new", bson.D{{"k", "hashed"}, {"l", "hashed"}}, 2, nil},
		{db + ".new", bson.D{{"", 1}}, 2, nil},
		{db + ".new", bson.D{{"a.", 1}}, 2, nil},
		{db + ".new", bson.D{{".a", 1}}, 2, nil},
		{db + ".new", bson.D{{"a..b", 1}}, 2, nil},
		{db + ".new", bson.D{{"$a", 1}}, 2, nil},
		// Sharded already.
		{db + ".done", hashedK, 0, nil},
		{db + ".done", hashedK, 0, []bson.E{e("unique", false)}},
		{db + ".done", bson.D{{"k", 1}}, 23, nil},
		{db + ".done", bson.D{{"l", "hashed"}}, 23, nil},
		{db + ".ranged", bson.D{{"a", 1}, {"b", 1.0}}, 0, nil},
		{db + ".ranged", bson.D{{"b", 1}, {"a", 1}}, 23, nil},
		{db + ".ranged", bson.D{{"a", 1}, {"b", 1}}, 23, []bson.E{e("unique", true)}},
		{db + ".unique", bson.D{{"a", 1}}, 0, []bson.E{e("unique", true)}},
		{db + ".unique", bson.D{{"a", 1}}, 23, nil},
		// Options.
		{db + ".new", hashedK, 72, []bson.E{e("unique", true)}},
		{db + ".capped", hashedK, 72, nil},
		{db + ".new", hashedK, 2, []bson.E{e("collation", bson.D{{"locale", "de"}})}},
		{db + ".german", hashedK, 2, nil},
		{db + ".new", bson.D{{"k", 1}}, 72, []bson.E{e("numInitialChunks", 4)}},
		{db + ".indexed", hashedK, 72, []bson.E{e("numInitialChunks", 4)}},
		{db + ".new", hashedK, 72, []bson.E{e("numInitialChunks", 8192*shardCount+1)}},
		{db + ".new", hashedK, 72, []bson.E{e("numInitialChunks", 1000001)}},
		{db + ".new", hashedK, 40415, []bson.E{e("noSuchOption", 1)}},
		{db + ".new", hashedK, 6373200, []bson.E{e("implicitlyCreateIndex", false)}},
		{db + ".new", hashedK, 238, []bson.E{e("presplitHashedZones", true)}},
		{db + ".new", hashedK, 238, []bson.E{e("timeseries", bson.D{{"timeField", "t"}})}},
		// What is in the collection.
		{db + ".full", hashedK, 72, nil},
		{db + ".sparse", bson.D{{"k", 1}}, 72, nil},
		{db + ".partial", bson.D{{"k", 1}}, 72, nil},
		{db + ".collated", bson.D{{"k", 1}}, 72, nil},
		{db + ".foreign", bson.D{{"_id", 1}}, 72, nil},
		{db + ".indexed", bson.D{{"k", 1}}, 72, []bson.E{e("unique", true)}},
		{db + ".indexed", bson.D{{"a", 1}}, 72, nil},
		// What is right.
		{db + ".german", hashedK, 0, []bson.E{e("collation", bson.D{{"locale", "simple"}})}},
		{db + ".indexed", bson.D{{"k", 1}}, 0, nil},
		{db + ".full", bson.D{{"_id", 1}}, 0, []bson.E{e("unique", true)}},
		{db + ".fine1", bson.D{{"a", 1}, {"b.c", "hashed"}, {"d", 1}}, 0, nil},
		{db + ".fine2", hashedK, 0, []bson.E{e("numInitialChunks", 7), e("collation", bson.D{{"locale", "simple"}})}},
		{db + ".fine3", bson.D{{"a", int64(1)}}, 0, []bson.E{e("unique", true), e("implicitlyCreateIndex", true), e("enforceUniquenessCheck", true)}},
	} {
		cmd := bson.D{{"shardCollection", test.ns}}
		if test.key != nil {
			cmd = append(cmd, bson.E{Key: "key", Value: test.key})
		}

		cmd = append(cmd, test.more...)
		name := fmt.Sprint(test.code, " ", cmd)

		t.Run(strings.ReplaceAll(name[:min(len(name), 120)], db, "db"), func(t *testing.T) {
			err := router(t, 1).Database("admin").RunCommand(opContext(t, opLimit), cmd).Err()
			require.Equal(t, test.code, code(err), "%v: %v", cmd, err)

			names, err := router(t, 0).Database(db).ListCollectionNames(t.Context(), bson.D{{"name", "new"}})
			require.NoError(t, err)
			require.Empty(t, names, "what is refused makes no collection")
		})
	}

	err := router(t, 1).Database(db).RunCommand(t.Context(), bson.D{{"shardCollection", db + ".new"}, {"key", hashedK}}).Err()
	require.Equal(t, 13, code(err), "only on admin")
}

func TestEnableShardingValidation(t *testing.T) {
	db := newDB(t)

	for _, test := range []struct {
		cmd  bson.D
		code int
	}{
		{bson.D{{"enableSharding", db}, {"primaryShard", "nobody"}}, 70},
		{bson.D{{"enableSharding", db}, {"primaryShard", "shard_1"}}, 0},
		{bson.D{{"enableSharding", db}, {"primaryShard", "shard_1"}}, 0},
		{bson.D{{"enableSharding", db}}, 0},
		{bson.D{{"enableSharding", db}, {"primaryShard", "shard_2"}}, 48},
		{bson.D{{"enableSharding", strings.ToUpper(db)}}, 13297},
		{bson.D{{"enableSharding", "admin"}}, 72},
		{bson.D{{"enableSharding", "local"}}, 72},
		{bson.D{{"enableSharding", "config"}}, 0},
		{bson.D{{"enableSharding", ""}}, 73},
		{bson.D{{"enableSharding", "a.b"}}, 73},
		{bson.D{{"enableSharding", "a b"}}, 73},
		{bson.D{{"enableSharding", "a\x00b"}}, 73},
		{bson.D{{"enableSharding", db}, {"primaryShard", 7}}, 14},
		{bson.D{{"enableSharding", 7}}, 14},
		{bson.D{{"enableSharding", db}, {"unknown", 1}}, 40415},
	} {
		t.Run(fmt.Sprint(test.code, " ", test.cmd), func(t *testing.T) {
			err := router(t, 0).Database("admin").RunCommand(opContext(t, opLimit), test.cmd).Err()
			require.Equal(t, test.code, code(err), "%v", err)
		})
	}

	var row bson.Raw

	require.NoError(t, router(t, 1).Database("config").Collection("databases").FindOne(t.Context(), bson.D{{"_id", db}}).Decode(&row))
	require.Equal(t, "shard_1", row.Lookup("primary").StringValue())

	// A write to a database whose name differs in case only is refused as well.
	_, err := router(t, 0).Database(strings.ToUpper(db)).Collection("c").InsertOne(t.Context(), bson.D{})
	require.Equal(t, 13297, code(err), "%v", err)
}
