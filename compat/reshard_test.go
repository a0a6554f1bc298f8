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

// reshard gives a collection another key through a router.
func reshard(t testing.TB, r int, ns string, key bson.D, more ...bson.E) error {
	t.Helper()

	return router(t, r).Database("admin").RunCommand(opContext(t, 3*opLimit), append(bson.D{{"reshardCollection", ns}, {"key", key}}, more...)).Err()
}

// noCopies checks that no shard has a copy of a resharding in a database, and that the collection is where it owns chunks and
// nowhere else.
func noCopies(t testing.TB, db, coll string) {
	t.Helper()

	owns := map[string]bool{}
	for _, c := range chunksOf(t, 0, db+"."+coll) {
		owns[c.Shard] = true
	}

	for i, name := range shardNames() {
		names, err := shard(t, i).Database(db).ListCollectionNames(opContext(t, opLimit), bson.D{})
		require.NoError(t, err)

		for _, n := range names {
			require.False(t, strings.HasPrefix(n, "shardgate."), "shard %s has %s", name, n)
		}

		require.Equal(t, owns[name], strings.Contains(" "+strings.Join(names, " ")+" ", " "+coll+" "), "shard %s has %v", name, names)
	}
}

// A collection gets one key after another, and none at last.
func TestReshardCollection(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 4*opLimit)
	ns := db + ".c"
	coll := router(t, 0).Database(db).Collection("c")

	require.NoError(t, router(t, 0).Database(db).CreateCollection(ctx, "c", options.CreateCollection().SetValidator(bson.D{{"n", bson.D{{"$not", bson.D{{"$gt", 10000}}}}}})))
	shardCollection(t, 0, ns, bson.D{{"k", "hashed"}})

	_, err := coll.Indexes().CreateMany(ctx, []mongo.IndexModel{
		{Keys: bson.D{{"t", 1}}, Options: options.Index().SetExpireAfterSeconds(3600).SetPartialFilterExpression(bson.D{{"n", bson.D{{"$gt", 1}}}})},
		{Keys: bson.D{{"w", "text"}}, Options: options.Index().SetDefaultLanguage("german")},
	})
	require.NoError(t, err)

	docs := make([]any, 0, 2010)
	for i := range 2000 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}, {"n", i}, {"name", bson.D{{"last", fmt.Sprint("L", i%97)}, {"first", i % 13}}}})
	}

	docs = append(docs,
		bson.D{{"_id", "missing"}, {"k", 1}}, bson.D{{"_id", "null"}, {"k", nil}, {"name", bson.D{{"last", nil}}}}, bson.D{{"_id", "none"}, {"name", 7}},
		bson.D{{"_id", "max"}, {"k", bson.MaxKey{}}, {"name", bson.D{{"last", bson.MaxKey{}}, {"first", bson.MaxKey{}}}}},
		bson.D{{"_id", "min"}, {"k", bson.MinKey{}}, {"name", bson.D{{"last", bson.MinKey{}}}}},
		bson.D{{"_id", "large"}, {"k", 5}, {"x", strings.Repeat("x", 16<<20-200)}},
	)
	_, err = coll.InsertMany(ctx, docs)
	require.NoError(t, err)
	_, err = coll.InsertOne(ctx, bson.D{{"_id", "bad"}, {"k", 3}, {"n", 10001}}, options.InsertOne().SetBypassDocumentValidation(true))
	require.NoError(t, err)

	total := len(docs) + 1
	before := listed(t, 0, db, "c")

	for i, step := range []struct {
		key  bson.D
		more []bson.E
		n    int // chunks, 0: any number
	}{
		{bson.D{{"name.last", 1}, {"name.first", 1}}, []bson.E{{"numInitialChunks", 12}}, 12},
		{bson.D{{"name.last", 1}, {"k", "hashed"}}, []bson.E{{"unique", false}, {"collation", bson.D{{"locale", "simple"}}}, {"zones", bson.A{}}}, 0},
		{bson.D{{"k", "hashed"}}, []bson.E{{"numInitialChunks", 6}}, 6},
		{bson.D{{"k", "hashed"}}, []bson.E{{"numInitialChunks", 9}}, 6},
		{bson.D{{"k", "hashed"}}, []bson.E{{"shardDistribution", bson.A{bson.D{{"shard", shardNames()[1]}}, bson.D{{"shard", shardNames()[2]}}}}, {"forceRedistribution", true}}, 90},
		{bson.D{{"n", 1}}, []bson.E{{"_presetReshardedChunks", bson.A{
			bson.D{{"recipientShardId", shardNames()[2]}, {"min", bson.D{{"n", 500}}}, {"max", bson.D{{"n", bson.MaxKey{}}}}},
			bson.D{{"recipientShardId", shardNames()[0]}, {"min", bson.D{{"n", bson.MinKey{}}}}, {"max", bson.D{{"n", 500}}}},
		}}}, 2},
	} {
		was, _ := uuidOn(t, shardIndex(t, chunksOf(t, 0, ns)[0].Shard), db, "c")
		same := i == 3 // nothing is to be done
		require.NoError(t, reshard(t, i%routerCount, ns, step.key, step.more...), "%v", step)
		noCopies(t, db, "c")

		chunks := chunksOf(t, (i+1)%routerCount, ns)
		if step.n > 0 {
			require.Len(t, chunks, step.n)
		}

		is, _ := uuidOn(t, shardIndex(t, chunks[0].Shard), db, "c")
		require.Equal(t, same, was.Equal(is))
		require.Equal(t, total, inPlace(t, db, "c", step.key))

		for r := range routerCount {
			c := router(t, r).Database(db).Collection("c")
			require.Equal(t, int64(total), count(t, c, bson.D{}))
			require.Equal(t, int64(1), count(t, c, bson.D{{"_id", 77}}))
			require.Equal(t, int64(1), count(t, c, bson.D{{"k", 77}}))
		}

		var row struct{ Key bson.D }
		require.NoError(t, router(t, 2).Database("config").Collection("collections").FindOne(ctx, bson.D{{"_id", ns}}).Decode(&row))
		require.Equal(t, fmt.Sprint(step.key), fmt.Sprint(row.Key))

		_, err = coll.InsertOne(ctx, bson.D{{"_id", "refused"}, {"n", 10002}})
		require.Equal(t, 121, code(err), "the validator: %v", err)
	}

	require.Equal(t, len(before), len(listed(t, 0, db, "c")))
	require.Subset(t, indexNames(t, coll), []string{"_id_", "k_hashed", "t_1", "w_text", "n_1"})

	var info bson.Raw
	require.NoError(t, router(t, 0).Database("config").Collection("changelog").FindOne(ctx, bson.D{{"what", "reshardCollection.commit"}, {"ns", ns}}).Decode(&info))

	admin(t, 1, bson.D{{"unshardCollection", ns}, {"toShard", shardNames()[1]}})
	noCopies(t, db, "c")
	aloneOn(t, db, "c", 1)
	require.Equal(t, 1, homeOf(t, 2, ns))
	require.Equal(t, int64(total), count(t, coll, bson.D{}))
	admin(t, 2, bson.D{{"unshardCollection", ns}, {"toShard", shardNames()[1]}})
	shardCollection(t, 0, ns, bson.D{{"k", "hashed"}})
	admin(t, 1, bson.D{{"unshardCollection", ns}})
	require.Equal(t, int64(total), count(t, coll, bson.D{}))
	require.NoError(t, coll.Drop(ctx))
}

// Where a recipient has something of the collection's name that the cluster does not know, it makes room if it is empty; else nothing
// is done.
func TestReshardOverStrangers(t *testing.T) {
	db, _, _ := newHalves(t, 40)
	ns := db + ".c"
	ctx := opContext(t, 3*opLimit)
	stranger := shard(t, 2).Database(db)

	require.NoError(t, stranger.CreateCollection(ctx, "c"))
	_, err := stranger.Collection("c").InsertOne(ctx, bson.D{{"_id", "stranger"}})
	require.NoError(t, err)

	err = reshard(t, 0, ns, bson.D{{"_id", "hashed"}})
	require.Equal(t, 48, code(err), "%v", err)
	require.Equal(t, int64(40), count(t, router(t, 1).Database(db).Collection("c"), bson.D{}))

	_, err = stranger.Collection("c").DeleteOne(ctx, bson.D{})
	require.NoError(t, err)
	require.NoError(t, reshard(t, 1, ns, bson.D{{"_id", "hashed"}}))
	require.Equal(t, 40, inPlace(t, db, "c", bson.D{{"_id", "hashed"}}))
	require.Equal(t, int64(40), count(t, router(t, 0).Database(db).Collection("c"), bson.D{}))
}
