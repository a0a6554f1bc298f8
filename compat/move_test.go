package compat

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// moveTo moves a collection through a router.
func moveTo(t testing.TB, r int, ns string, to int) error {
	t.Helper()

	return router(t, r).Database("admin").RunCommand(opContext(t, 3*opLimit), bson.D{{"moveCollection", ns}, {"toShard", shardNames()[to]}}).Err()
}

// homeOf returns the number of an unsharded collection's shard, as a router shows it.
func homeOf(t testing.TB, r int, ns string) int {
	t.Helper()

	var chunk struct{ Shard string }
	require.NoError(t, router(t, r).Database("config").Collection("chunks").FindOne(t.Context(), bson.D{{"ns", ns}}).Decode(&chunk))

	return shardIndex(t, chunk.Shard)
}

// otherThan is another shard.
func otherThan(home int) int { return (home + 1) % shardCount }

// aloneOn waits until a collection is on its shard and nowhere else.
func aloneOn(t testing.TB, db, coll string, home int) {
	t.Helper()
	eventually(t, recoverLimit, "the former copy goes", func() error {
		for i := range shardCount {
			specs, err := shard(t, i).Database(db).ListCollectionSpecifications(t.Context(), bson.D{{"name", coll}})
			if err != nil || (len(specs) > 0) != (i == home) {
				return fmt.Errorf("shard %d: %v, %w", i, specs, errors.Join(err, errNotAlone))
			}
		}

		return nil
	})
}

var errNotAlone = errors.New("it is there, or it is not")

func TestMoveCollection(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 3*opLimit)
	d := router(t, 0).Database(db)
	coll := d.Collection("c")
	de := &options.Collation{Locale: "de", Strength: 2}

	require.NoError(t, d.CreateCollection(ctx, "c", options.CreateCollection().SetCollation(de).SetValidator(bson.D{{"n", bson.D{{"$not", bson.D{{"$gt", 10000}}}}}})))
	_, err := coll.Indexes().CreateMany(ctx, []mongo.IndexModel{
		{Keys: bson.D{{"u", 1}}, Options: options.Index().SetUnique(true)},
		{Keys: bson.D{{"t", 1}}, Options: options.Index().SetExpireAfterSeconds(3600).SetPartialFilterExpression(bson.D{{"n", bson.D{{"$gt", 1}}}})},
		{Keys: bson.D{{"h", "hashed"}}},
		{Keys: bson.D{{"g", "2dsphere"}}, Options: options.Index().SetCollation(&options.Collation{Locale: "simple"})},
		{Keys: bson.D{{"w", "text"}}, Options: options.Index().SetDefaultLanguage("german").SetCollation(&options.Collation{Locale: "simple"})},
	})
	require.NoError(t, err)

	var docs []bson.D
	for i := range 3000 {
		docs = append(docs, bson.D{{"_id", i}, {"u", fmt.Sprint("name ", i)}, {"n", i}, {"h", i % 7}, {"w", "Wort " + fmt.Sprint(i)}})
	}

	docs = append(docs, bson.D{{"_id", "größe"}, {"u", "x"}}, bson.D{{"_id", bson.D{{"a", bson.A{1}}}}, {"u", nil}}, bson.D{{"_id", nil}, {"u", 7}})
	_, err = coll.InsertMany(ctx, docs)
	require.NoError(t, err)
	// What does not suit the validator any more moves as well.
	_, err = coll.InsertOne(ctx, bson.D{{"_id", "bad"}, {"n", 10001}, {"u", "bad"}}, options.InsertOne().SetBypassDocumentValidation(true))
	require.NoError(t, err)

	home := homeOf(t, 0, db+".c")
	to := otherThan(home)
	id, _ := uuidOn(t, home, db, "c")
	before := listed(t, 0, db, "c")

	require.NoError(t, moveTo(t, 1, db+".c", to))
	require.Equal(t, to, homeOf(t, 2, db+".c"))

	for r := range routerCount {
		c := router(t, r).Database(db).Collection("c")
		require.Equal(t, int64(len(docs)+1), count(t, c, bson.D{}))
		require.Equal(t, int64(1), count(t, c, bson.D{{"u", "NAME 77"}}), "the collation")
		require.Equal(t, before, listed(t, r, db, "c"))
	}

	there, _ := uuidOn(t, to, db, "c")
	require.Equal(t, id, there)
	aloneOn(t, db, "c", to)

	_, err = coll.InsertOne(ctx, bson.D{{"u", "NAME 5"}})
	require.Equal(t, 11000, code(err))
	require.ElementsMatch(t, []string{"_id_", "u_1", "t_1", "h_hashed", "g_2dsphere", "w_text"}, indexNames(t, shard(t, to).Database(db).Collection("c")))

	var info bson.Raw
	require.NoError(t, router(t, 0).Database("config").Collection("changelog").FindOne(ctx, bson.D{{"what", "moveCollection.commit"}, {"ns", db + ".c"}}).Decode(&info))

	// Where it is already it stays; and it moves back at once.
	require.NoError(t, moveTo(t, 0, db+".c", to))
	require.NoError(t, moveTo(t, 2, db+".c", home))
	require.Equal(t, int64(len(docs)+1), count(t, coll, bson.D{}))
	aloneOn(t, db, "c", home)
	require.NoError(t, coll.Drop(ctx))
}

func TestMoveCollectionRefused(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, opLimit)
	d := router(t, 0).Database(db)

	shardCollection(t, 0, db+".sharded", bson.D{{"k", "hashed"}})
	require.NoError(t, d.CreateCollection(ctx, "c"))
	require.NoError(t, d.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)))
	require.NoError(t, d.CreateView(ctx, "view", "c", mongo.Pipeline{}))

	to := shardNames()[otherThan(homeOf(t, 0, db+".c"))]
	away := shardNames()[otherThan(homeOf(t, 0, db+".capped"))]

	for _, test := range []struct {
		cmd  bson.D
		code int
	}{
		{bson.D{{"moveCollection", db + ".c"}}, 40414},
		{bson.D{{"moveCollection", db + ".c"}, {"toShard", 1}}, 14},
		{bson.D{{"moveCollection", db + ".c"}, {"toShard", to}, {"other", 1}}, 40415},
		{bson.D{{"moveCollection", 1}, {"toShard", to}}, 14},
		{bson.D{{"moveCollection", db}, {"toShard", to}}, 73},
		{bson.D{{"moveCollection", db + ".c"}, {"toShard", "nowhere"}}, 70},
		{bson.D{{"moveCollection", db + ".none"}, {"toShard", to}}, 26},
		{bson.D{{"moveCollection", db + ".sharded"}, {"toShard", to}}, 26},
		{bson.D{{"moveCollection", db + ".view"}, {"toShard", to}}, 166},
		{bson.D{{"moveCollection", "config.shards"}, {"toShard", to}}, 20},
		{bson.D{{"moveCollection", "admin.x"}, {"toShard", to}}, 20},
		{bson.D{{"moveCollection", db + ".capped"}, {"toShard", away}}, 238},
	} {
		err := router(t, 0).Database("admin").RunCommand(ctx, test.cmd).Err()
		require.Equal(t, test.code, code(err), "%v: %v", test.cmd, err)
	}

	err := d.RunCommand(ctx, bson.D{{"moveCollection", db + ".c"}, {"toShard", to}}).Err()
	require.Equal(t, 13, code(err), "%v", err)
}
