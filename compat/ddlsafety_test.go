package compat

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// begin starts a transaction that has inserted one document.
func begin(t *testing.T, coll *mongo.Collection, doc bson.D) (ctx context.Context, s *mongo.Session) {
	t.Helper()

	s, err := coll.Database().Client().StartSession()
	require.NoError(t, err)
	t.Cleanup(func() { s.EndSession(context.Background()) })
	require.NoError(t, s.StartTransaction())

	ctx = mongo.NewSessionContext(opContext(t, opLimit), s)
	_, err = coll.InsertOne(ctx, doc)
	require.NoError(t, err)

	return ctx, s
}

// A collection is not empty while a transaction has written to it: its chunks may not be spread yet.
func TestShardCollectionWaitsForTransactions(t *testing.T) {
	db := newDB(t)
	admin := router(t, 0).Database("admin")
	there := router(t, 1).Database(db).Collection("c")
	shard := bson.D{{"shardCollection", db + ".c"}, {"key", bson.D{{"k", "hashed"}}}}

	require.NoError(t, router(t, 0).Database(db).CreateCollection(opContext(t, opLimit), "c"))
	// The index is there, so that nothing but the fence waits for the transaction.
	_, err := there.Indexes().CreateOne(opContext(t, opLimit), mongo.IndexModel{Keys: bson.D{{"k", "hashed"}}})
	require.NoError(t, err)

	ctx, s := begin(t, there, bson.D{{"_id", 1}, {"k", 1}})

	start := time.Now()
	err = admin.RunCommand(t.Context(), append(shard[:2:2], bson.E{Key: "maxTimeMS", Value: 500})).Err()
	require.Equal(t, 50, code(err), "%v", err)
	require.Less(t, time.Since(start), 15*time.Second, "the client's own limit")

	err = admin.RunCommand(opContext(t, opLimit), shard).Err()
	require.Equal(t, 46, code(err), "%v", err)

	// It is as before, and the transaction goes on.
	_, err = there.InsertOne(ctx, bson.D{{"_id", 2}, {"k", 2}})
	require.NoError(t, err)
	_, err = there.InsertOne(opContext(t, opLimit), bson.D{{"_id", 3}, {"k", 3}})
	require.NoError(t, err)

	_, err = there.DeleteOne(opContext(t, opLimit), bson.D{{"_id", 3}})
	require.NoError(t, err)

	done := make(chan error, 1)
	go func() { done <- admin.RunCommand(opContext(t, opLimit), shard).Err() }()

	select {
	case err := <-done:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(time.Second):
	}

	require.NoError(t, s.CommitTransaction(ctx))
	require.NoError(t, <-done)

	docs := checkPlacementOn(t, db, "c", "k", shardNames()...)
	require.Len(t, docs, 2)

	for i := 1; i <= 2; i++ {
		require.Equal(t, int64(1), count(t, router(t, 0).Database(db).Collection("c"), bson.D{{"k", i}}))
	}
}

// onEveryShard makes something on all shards behind the routers' backs.
func onEveryShard(t *testing.T, db string, do func(*mongo.Database) error) {
	t.Helper()

	for i := range shardCount {
		require.NoError(t, do(shard(t, i).Database(db)))
	}
}

// What a shard holds under a name that the cluster does not know is not taken for a collection's beginning.
func TestCreateWhereAShardHasTheName(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)

	onEveryShard(t, db, func(s *mongo.Database) error {
		_, err := s.Collection("full").InsertOne(ctx, bson.D{{"old", true}})

		return errors.Join(err, s.CreateView(ctx, "view", "full", mongo.Pipeline{}),
			s.CreateCollection(ctx, "empty", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)))
	})

	for _, name := range []string{"full", "view"} {
		require.Equal(t, 48, code(d.CreateCollection(ctx, name)), name)
		_, err := router(t, 1).Database(db).Collection(name).InsertOne(ctx, bson.D{{"new", true}})
		require.Equal(t, 48, code(err), "%s: %v", name, err)
	}

	names, err := d.ListCollectionNames(ctx, bson.D{})
	require.NoError(t, err)
	require.Empty(t, names)

	require.NoError(t, d.CreateCollection(ctx, "empty"))
	options, err := listed(t, 1, db, "empty").Lookup("options").Document().Elements()
	require.NoError(t, err)
	require.Empty(t, options, "of the new one")

	// dropDatabase takes all of it away.
	require.NoError(t, d.Drop(ctx))
	databaseIsGone(t, db)
}

// uuidOn returns a collection's UUID on a shard, as a value to send.
func uuidOn(t *testing.T, i int, db, coll string) (bson.Binary, bool) {
	t.Helper()

	specs, err := shard(t, i).Database(db).ListCollectionSpecifications(t.Context(), bson.D{{"name", coll}})
	require.NoError(t, err)

	if len(specs) == 0 {
		return bson.Binary{}, false
	}

	return *specs[0].UUID, true
}

// What failed attempts to shard a collection have left on other shards does not stop the next one.
func TestShardCollectionOverLeftovers(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)
	command := bson.D{{"shardCollection", db + ".c"}, {"key", bson.D{{"k", "hashed"}}}}

	require.NoError(t, d.CreateCollection(ctx, "c"))
	_, err := d.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"x", 1}}})
	require.NoError(t, err)

	var home int
	var others []int

	for i := range shardCount {
		if _, ok := uuidOn(t, i, db, "c"); ok {
			home = i
		} else {
			others = append(others, i)
		}
	}

	id, _ := uuidOn(t, home, db, "c")
	full, half := shard(t, others[0]).Database(db), shard(t, others[1])

	// One shard has a stranger, the other the collection itself, without its indexes.
	_, err = full.Collection("c").InsertOne(ctx, bson.D{{"old", true}})
	require.NoError(t, err)
	require.NoError(t, half.Database("admin").RunCommand(ctx, bson.D{{"applyOps", bson.A{bson.D{
		{"op", "c"}, {"ns", db + ".$cmd"}, {"ui", id}, {"o", bson.D{{"create", "c"}}},
	}}}}).Err())

	err = router(t, 0).Database("admin").RunCommand(ctx, command).Err()
	require.Equal(t, 48, code(err), "%v", err)
	_, err = d.Collection("c").InsertOne(ctx, bson.D{{"k", 1}})
	require.NoError(t, err, "it is as before")
	_, err = d.Collection("c").DeleteOne(ctx, bson.D{{"k", 1}})
	require.NoError(t, err)

	_, err = full.Collection("c").DeleteOne(ctx, bson.D{{"old", true}})
	require.NoError(t, err)
	require.NoError(t, router(t, 0).Database("admin").RunCommand(ctx, command).Err())

	for i := range shardCount {
		at, _ := uuidOn(t, i, db, "c")
		require.Equal(t, id, at)
		require.ElementsMatch(t, []string{"_id_", "x_1", "k_hashed"}, indexNames(t, shard(t, i).Database(db).Collection("c")), "shard %d", i)
	}
}

// An attempt to make a collection on a shard that arrives only when the name has a new life there does nothing. (An applyOps
// renames what is in its way.)
func TestLateAttemptsDoNothing(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)
	id := uuid.New()
	old := bson.Binary{Subtype: 4, Data: id[:]}

	for n, make := range []func(coll string){
		func(coll string) { require.NoError(t, d.CreateCollection(ctx, coll)) },
		func(coll string) { shardCollection(t, 0, db+"."+coll, bson.D{{"k", "hashed"}}) },
	} {
		coll := fmt.Sprint("c", n)
		sum := sha256.Sum256([]byte(db + "." + coll))
		guard := "shardgate.guard." + hex.EncodeToString(sum[:12])

		var late []bson.D

		for i := range shardCount {
			require.NoError(t, shard(t, i).Database(db).CreateCollection(ctx, guard))
			id, ok := uuidOn(t, i, db, guard)
			require.True(t, ok)
			late = append(late, bson.D{{"applyOps", bson.A{
				bson.D{{"op", "i"}, {"ns", db + "." + guard}, {"ui", id}, {"o", bson.D{{"_id", 0}}}},
				bson.D{{"op", "c"}, {"ns", db + ".$cmd"}, {"ui", old}, {"o", bson.D{{"create", coll}}}},
			}}})
		}

		make(coll)

		for i := range 30 {
			_, err := d.Collection(coll).InsertOne(ctx, bson.D{{"k", i}})
			require.NoError(t, err)
		}

		for i := range shardCount {
			if _, there := uuidOn(t, i, db, coll); there {
				err := shard(t, i).Database("admin").RunCommand(ctx, late[i]).Err()
				require.Equal(t, 26, code(err), "%v", err)
			}
		}

		require.Equal(t, int64(30), count(t, d.Collection(coll), bson.D{}))
		require.NoError(t, d.Collection(coll).Drop(ctx))
	}
}

// A shard that has another collection in the place of the cluster's is no place where the drop is done already.
func TestDropWhereAShardHasAnother(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)

	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	for i := range 30 {
		_, err := d.Collection("c").InsertOne(ctx, bson.D{{"k", i}})
		require.NoError(t, err)
	}

	other := shard(t, 1).Database(db).Collection("c")
	require.NoError(t, other.Drop(ctx))
	_, err := other.InsertOne(ctx, bson.D{{"other", true}})
	require.NoError(t, err)

	err = d.RunCommand(ctx, bson.D{{"drop", "c"}}).Err()
	require.Equal(t, 361, code(err), "%v", err)
	require.NotZero(t, count(t, shard(t, 0).Database(db).Collection("c"), bson.D{}), "nothing was dropped")

	require.NoError(t, other.Drop(ctx), "gone altogether is fine")
	require.NoError(t, d.RunCommand(ctx, bson.D{{"drop", "c"}}).Err())
	require.Zero(t, count(t, shard(t, 0).Database(db).Collection("c"), bson.D{}))
}

// The fields of a range key hold no arrays.
func TestShardCollectionRefusesArrays(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)

	for _, test := range []struct {
		name string
		key  bson.D
		doc  bson.D
		code int
	}{
		{"array", bson.D{{"k", 1}}, bson.D{{"k", bson.A{1, 2}}}, 72},
		{"second", bson.D{{"j", 1}, {"k", 1}}, bson.D{{"k", bson.A{1}}}, 72},
		{"above", bson.D{{"k.x", 1}}, bson.D{{"k", bson.A{bson.D{{"x", 1}}}}}, 72},
		{"none", bson.D{{"k", 1}}, bson.D{{"k", 1}}, 0},
		{"elsewhere", bson.D{{"k", 1}}, bson.D{{"k", 1}, {"z", bson.A{1, 2}}}, 0},
	} {
		coll := d.Collection(test.name)
		_, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: append(test.key[:len(test.key):len(test.key)], bson.E{Key: "z", Value: 1})})
		require.NoError(t, err)
		_, err = coll.InsertOne(ctx, test.doc)
		require.NoError(t, err)

		err = router(t, 0).Database("admin").RunCommand(ctx, bson.D{{"shardCollection", db + "." + test.name}, {"key", test.key}}).Err()
		require.Equal(t, test.code, code(err), "%s: %v", test.name, err)
		require.Equal(t, int64(1), count(t, coll, bson.D{}), "it can be used")
	}

	// Another index that never held an array will do.
	coll := d.Collection("array")
	_, err := coll.DeleteMany(ctx, bson.D{})
	require.NoError(t, err)
	_, err = coll.InsertOne(ctx, bson.D{{"k", 1}})
	require.NoError(t, err)
	_, err = coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"k", 1}, {"y", 1}}})
	require.NoError(t, err)
	shardCollection(t, 0, db+".array", bson.D{{"k", 1}})
}

// The last index of the shard key stays, however its key is written.
func TestKeyIndexIsNamedByAnyNumber(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)

	shardCollection(t, 0, db+".c", bson.D{{"k", 1}})

	for _, one := range []any{int32(1), int64(1), 1.0} {
		err := d.RunCommand(ctx, bson.D{{"dropIndexes", "c"}, {"index", bson.D{{"k", one}}}}).Err()
		require.Equal(t, 370, code(err), "%T: %v", one, err)

		err = d.RunCommand(ctx, bson.D{{"collMod", "c"}, {"index", bson.D{{"keyPattern", bson.D{{"k", one}}}, {"hidden", true}}}}).Err()
		require.Equal(t, 72, code(err), "%T: %v", one, err)
	}
}

// create with the options that a collection has is no error, whether they are all named or not.
func TestCreateAgainWithACollation(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d, there := router(t, 0).Database(db), router(t, 1).Database(db)

	for i, collation := range []bson.D{{{"locale", "de"}}, {{"locale", "fr_CA"}}, {{"locale", "en"}, {"strength", 2}}} {
		name := fmt.Sprint("c", i)
		command := bson.D{{"create", name}, {"collation", collation}}
		require.NoError(t, d.RunCommand(ctx, command).Err())
		require.NoError(t, d.RunCommand(ctx, command).Err())
		require.NoError(t, there.RunCommand(ctx, append(command, bson.E{Key: "capped", Value: false})).Err())

		stored := listed(t, 0, db, name).Lookup("options", "collation")
		require.NoError(t, there.RunCommand(ctx, bson.D{{"create", name}, {"collation", stored}}).Err())

		for _, other := range []bson.D{{{"locale", "en"}}, {{"locale", "simple"}}, {{"locale", "de"}, {"strength", 1}}} {
			err := there.RunCommand(ctx, bson.D{{"create", name}, {"collation", other}}).Err()
			require.Equal(t, 48, code(err), "%v, then %v: %v", collation, other, err)
		}

		require.Equal(t, 48, code(there.CreateCollection(ctx, name)))
	}

	require.NoError(t, d.CreateCollection(ctx, "plain"))
	require.NoError(t, d.RunCommand(ctx, bson.D{{"create", "plain"}, {"collation", bson.D{{"locale", "simple"}}}}).Err())
}

// What the shards could not confirm is told, as by a mongos.
func TestDDLWriteConcernErrors(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)

	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	raw, err := d.RunCommand(ctx, bson.D{
		{"createIndexes", "c"},
		{"indexes", bson.A{bson.D{{"key", bson.D{{"x", 1}}}, {"name", "x"}}}},
		{"writeConcern", bson.D{{"w", 5}, {"wtimeout", 100}}},
	}).Raw()

	var command mongo.CommandError
	if errors.As(err, &command) {
		raw = command.Raw
	}

	require.Equal(t, 1.0, raw.Lookup("ok").Double(), "%s", raw)
	require.Equal(t, int32(100), raw.Lookup("writeConcernError", "code").Int32(), "%s", raw)
	require.Regexp(t, ` at shard_\d$`, raw.Lookup("writeConcernError", "errmsg").StringValue())
}

// The router that changes a collection's options dies when the shards have done it: what they have is what is listed. Meanwhile the
// collection is used.
func TestCollModAfterADeath(t *testing.T) {
	db := newDB(t)
	v := shared.cluster.Router(victim)
	d := router(t, 0).Database(db)

	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	for i, step := range []string{"marked", "done"} {
		reached, release := stopAtStep(t, victim, "collmod-"+step)
		level := []string{"off", "moderate"}[i]
		result := make(chan error, 1)

		go func() {
			cmd := bson.D{{"collMod", "c"}, {"validator", bson.D{{"x", bson.D{{"$exists", true}}}}}, {"validationLevel", level}}
			result <- router(t, victim).Database(db).RunCommand(context.Background(), cmd).Err()
		}()

		reached()

		_, err := d.Collection("c").InsertOne(opContext(t, opLimit), bson.D{{"k", 1}, {"x", 1}})
		require.NoError(t, err)
		require.NoError(t, v.Kill())
		release()
		up(t, v)
		t.Log(<-result)

		eventually(t, recoverLimit, "it can be modified again", func() error {
			return d.RunCommand(opContext(t, opLimit), bson.D{{"collMod", "c"}}).Err()
		})

		want := bson.RawValue{}
		if step == "done" {
			want = bson.RawValue{Type: bson.TypeString, Value: append([]byte{9, 0, 0, 0}, "moderate\x00"...)}
		}

		for r := range 2 {
			require.Equal(t, want.String(), listed(t, r, db, "c").Lookup("options", "validationLevel").String(), "%s, router %d", step, r)
		}
	}
}
