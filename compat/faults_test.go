package compat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
)

// recoverLimit bounds how long everything may take to work again after a fault.
const recoverLimit = 45 * time.Second

// down ends a node as kill -9 does, and has it started again when the test ends, whatever happened.
func down(t *testing.T, n *cluster.Node) {
	t.Helper()
	require.NoError(t, n.Kill())
	require.Zero(t, n.PID())

	t.Cleanup(func() { up(t, n) })
}

// up starts a node if it does not run.
func up(t testing.TB, n *cluster.Node) {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()

	require.NoError(t, n.Start(ctx))
}

// use does what must work on known collections whatever the catalog does: through every router given, on every shard.
func use(t *testing.T, db string, keys map[string][]int32, round string, routers ...int) {
	t.Helper()

	for _, r := range routers {
		d := router(t, r).Database(db)
		sharded, plain := d.Collection("c"), d.Collection("plain")

		for name, list := range keys {
			for _, k := range list {
				id := fmt.Sprint(round, " ", r, " ", name, " ", k)
				_, err := sharded.InsertOne(opContext(t, opLimit), bson.D{{"_id", id}, {"k", k}})
				require.NoError(t, err, "router %d, %s", r, name)

				var doc bson.Raw

				require.NoError(t, sharded.FindOne(t.Context(), bson.D{{"k", k}, {"_id", id}}).Decode(&doc))

				res, err := sharded.UpdateOne(t.Context(), bson.D{{"k", k}, {"_id", id}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
				require.NoError(t, err)
				require.Equal(t, int64(1), res.ModifiedCount)
			}
		}

		_, err := plain.InsertOne(opContext(t, opLimit), bson.D{{"round", round}, {"r", r}})
		require.NoError(t, err)
		require.Equal(t, int64(1), count(t, plain, bson.D{{"round", round}, {"r", r}}))
	}
}

// scatter reads and writes over all shards.
func scatter(t *testing.T, db, round string, want int64, routers ...int) {
	t.Helper()

	for _, r := range routers {
		coll := router(t, r).Database(db).Collection("c")
		filter := bson.D{{"_id", bson.D{{"$regex", "^" + round + " "}}}}
		require.Equal(t, want, count(t, coll, filter))

		cur, err := coll.Find(t.Context(), filter, options.Find().SetBatchSize(3))
		require.Len(t, all(t, cur, err), int(want))

		res, err := coll.UpdateMany(opContext(t, opLimit), filter, bson.D{{"$inc", bson.D{{"m", 1}}}})
		require.NoError(t, err)
		require.Equal(t, want, res.MatchedCount)
	}
}

func TestCatalogKilled(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), "plain"))

	keys := keysOn(t, db+".c", 4)
	routers := []int{0, 1, 2}
	use(t, db, keys, "before", routers...)

	down(t, shared.cluster.Postgres())
	use(t, db, keys, "while", routers...)
	scatter(t, db, "while", int64(3*shardCount*4), routers...)

	for _, r := range routers {
		for name, cmd := range map[string]bson.D{
			"insert": {{"insert", "fresh"}, {"documents", bson.A{bson.D{{"a", 1}}}}}, "create": {{"create", "fresh"}}, "drop": {{"drop", "plain"}},
			"createIndexes": {{"createIndexes", "fresh"}, {"indexes", bson.A{bson.D{{"key", bson.D{{"a", 1}}}, {"name", "a"}}}}},
		} {
			begin := time.Now()
			err := router(t, r).Database(db).RunCommand(opContext(t, opLimit), cmd).Err()
			require.Equal(t, 133, code(err), "%s at router %d: %v", name, r, err)
			require.Contains(t, err.Error(), "catalog")
			require.Less(t, time.Since(begin), 20*time.Second, "%s at router %d", name, r)
		}

		// What is known is shown.
		names, err := router(t, r).ListDatabaseNames(opContext(t, opLimit), bson.D{})
		require.NoError(t, err)
		require.Contains(t, names, db)
		require.Equal(t, int64(2*shardCount), count(t, router(t, r).Database("config").Collection("chunks"), bson.D{{"ns", db + ".c"}}))

		cur, err := router(t, r).Database(db).Collection("nothing").Find(t.Context(), bson.D{})
		require.Empty(t, all(t, cur, err))
		ok(t, admin(t, r, bson.D{{"ping", 1}}))
	}

	up(t, shared.cluster.Postgres())

	for _, r := range routers {
		eventually(t, recoverLimit, fmt.Sprint("router ", r, " makes new namespaces again"), func() error {
			_, err := router(t, r).Database(db).Collection(fmt.Sprint("fresh", r)).InsertOne(opContext(t, opLimit), bson.D{{"a", 1}})
			return err
		})
	}

	use(t, db, keys, "after", routers...)
	shardCollection(t, 1, db+".again", bson.D{{"k", "hashed"}})

	for _, round := range []string{"before", "while", "after"} {
		scatter(t, db, round, int64(3*shardCount*4), routers...)
	}

	names, err := router(t, 2).Database(db).ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"c", "plain", "fresh0", "fresh1", "fresh2", "again"}, names)
}

func TestShardKilled(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	keys := keysOn(t, db+".c", 4)
	names := shardNames()
	dead := names[2]
	routers := []int{0, 1, 2}

	plainElsewhere(t, db, dead)
	use(t, db, keys, "before", routers...)

	down(t, shared.cluster.Shard(2).Member(0))

	alive := map[string][]int32{names[0]: keys[names[0]], names[1]: keys[names[1]]}
	begin := time.Now()
	use(t, db, alive, "while", routers...)
	require.Less(t, time.Since(begin), 20*time.Second, "the others are as fast as ever")

	for _, r := range routers {
		begin := time.Now()

		list, err := router(t, r).ListDatabaseNames(opContext(t, opLimit), bson.D{})
		require.NoError(t, err)
		require.Contains(t, list, db)
		require.Equal(t, int64(2*shardCount), count(t, router(t, r).Database("config").Collection("chunks"), bson.D{{"ns", db + ".c"}}))
		require.Equal(t, int64(shardCount), count(t, router(t, r).Database("config").Collection("shards"), bson.D{}))
		require.Less(t, time.Since(begin), 30*time.Second)

		// What needs the dead shard fails within the time that the client allows, and says what is wrong.
		begin = time.Now()
		err = router(t, r).Database(db).RunCommand(t.Context(), bson.D{{"count", "c"}, {"query", bson.D{{"n", 1}}}, {"maxTimeMS", 700}}).Err()
		require.Contains(t, []int{50, 133}, code(err), "%v", err)
		require.Less(t, time.Since(begin), 15*time.Second)

		partial := reply(t, router(t, r).Database(db), bson.D{
			{"find", "c"}, {"filter", bson.D{{"_id", bson.D{{"$regex", "^before "}}}}}, {"sort", bson.D{{"k", 1}}}, {"allowPartialResults", true}, {"maxTimeMS", 700},
		})
		require.True(t, partial.Lookup("cursor", "partialResultsReturned").Boolean(), "%v", partial)
		require.Len(t, batch(t, partial, "firstBatch"), 3*2*4, "what the others hold")

		begin = time.Now()
		err = router(t, r).Database(db).RunCommand(t.Context(), bson.D{
			{"insert", "c"}, {"documents", bson.A{bson.D{{"k", keys[dead][0]}}}}, {"maxTimeMS", 700},
		}).Err()
		require.Contains(t, []int{50, 133}, code(err), "%v", err)
		require.Less(t, time.Since(begin), 15*time.Second)
	}

	t.Logf("the shard was down for %v", time.Since(begin).Round(time.Millisecond))
	begin = time.Now()

	up(t, shared.cluster.Shard(2).Member(0))

	for _, r := range routers {
		eventually(t, recoverLimit, "the shard is used again", func() error {
			_, err := router(t, r).Database(db).Collection("c").
				UpdateOne(opContext(t, opLimit), bson.D{{"k", keys[dead][0]}}, bson.D{{"$set", bson.D{{"back", r}}}})

			return err
		})
	}

	t.Logf("used again after %v", time.Since(begin).Round(time.Millisecond))
	use(t, db, keys, "after", routers...)
	scatter(t, db, "before", int64(3*shardCount*4), routers...)
	scatter(t, db, "while", int64(3*2*4), routers...)
}

// plainElsewhere makes the collection "plain" on another shard than the one given.
func plainElsewhere(t *testing.T, db, not string) {
	t.Helper()

	for i := range 2 * shardCount {
		name := "plain"
		require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), name))

		var row bson.Raw

		require.NoError(t, router(t, 0).Database("config").Collection("chunks").FindOne(t.Context(), bson.D{{"ns", db + "." + name}}).Decode(&row))

		if row.Lookup("shard").StringValue() != not {
			return
		}

		// Another one takes the place there.
		require.NoError(t, router(t, 0).Database(db).Collection(name).Drop(t.Context()))
		require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), fmt.Sprint("filler", i)))
	}

	t.Fatal("every unsharded collection goes to one shard")
}

// A router that does not answer for a while is waited for; one that does not for long is not.
func TestDDLWithASilentRouter(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), "plain"))

	keys := keysOn(t, db+".c", 2)
	use(t, db, keys, "before", 0, 1, victim)

	require.NoError(t, shared.cluster.Router(victim).Pause())
	t.Cleanup(func() { _ = shared.cluster.Router(victim).Resume() })

	begin := time.Now()
	err := router(t, 0).Database(db).RunCommand(t.Context(), bson.D{{"drop", "plain"}, {"maxTimeMS", 2000}}).Err()
	require.Equal(t, 50, code(err), "%v", err)
	require.Less(t, time.Since(begin), 15*time.Second, "the client's own limit")

	use(t, db, keys, "while", 0, 1)
	shardCollection(t, 0, db+".new", bson.D{{"k", "hashed"}})
	require.Less(t, time.Since(begin), evictLimit)
	require.Greater(t, time.Since(begin), evictAfter/2, "it might have answered")
	scatter(t, db, "before", int64(3*shardCount*2), 0, 1)

	require.NoError(t, shared.cluster.Router(victim).Resume())
	shardCollection(t, 1, db+".later", bson.D{{"k", "hashed"}})
	use(t, db, keys, "after", 0, 1, victim)
	require.NoError(t, router(t, 0).Database(db).Collection("c").Drop(opContext(t, opLimit)))
	require.Zero(t, count(t, router(t, victim).Database(db).Collection("c"), bson.D{}))
}

// routerUsers lists the mongod users of routers that a shard has.
func routerUsers(t *testing.T, i int) []string {
	t.Helper()

	var reply struct {
		Users []struct{ User string } `bson:"users"`
	}

	require.NoError(t, shard(t, i).Database("admin").RunCommand(opContext(t, opLimit), bson.D{{"usersInfo", 1}}).Decode(&reply))

	var names []string
	for _, u := range reply.Users {
		if strings.HasPrefix(u.User, "shardgate") {
			names = append(names, u.User)
		}
	}

	slices.Sort(names)

	return names
}

func TestRouterKilledAndRestarted(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), "plain"))

	keys := keysOn(t, db+".c", 2)
	use(t, db, keys, "before", 0, 1, victim)

	before := routerUsers(t, 0)
	require.Len(t, before, routerCount)

	down(t, shared.cluster.Router(victim))
	use(t, db, keys, "while", 0, 1)

	up(t, shared.cluster.Router(victim))

	eventually(t, recoverLimit, "DDL works again", func() error {
		return router(t, 1).Database("admin").RunCommand(opContext(t, opLimit), bson.D{{"shardCollection", db + ".later"}, {"key", bson.D{{"k", "hashed"}}}}).Err()
	})
	use(t, db, keys, "after", 0, 1, victim)

	for i := range shardCount {
		eventually(t, recoverLimit, "the old user is dropped", func() error {
			now := routerUsers(t, i)

			kept := 0
			for _, name := range now {
				if slices.Contains(before, name) {
					kept++
				}
			}

			if len(now) != routerCount || kept != routerCount-1 {
				return fmt.Errorf("before %v, now %v", before, now)
			}

			return nil
		})
	}

	// One that ends in order needs no waiting for, and leaves no user.
	require.NoError(t, shared.cluster.Router(victim).Stop(opContext(t, opLimit)))
	require.Len(t, routerUsers(t, 1), routerCount-1)
	require.NoError(t, router(t, 0).Database(db).Collection("later").Drop(opContext(t, opLimit)))
	up(t, shared.cluster.Router(victim))
	use(t, db, keys, "again", victim)
}

// A dropDatabase whose router is killed half-way is finished or can be repeated (case A26).
func TestDropDatabaseKilledHalfway(t *testing.T) {
	db := newDB(t)

	for i, wait := range []time.Duration{15 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond} {
		shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

		for j := range 8 {
			_, err := router(t, 0).Database(db).Collection(fmt.Sprint("u", j)).InsertOne(opContext(t, opLimit), bson.D{{"old", true}})
			require.NoError(t, err)
		}

		done := make(chan error, 1)
		ctx := opContext(t, opLimit)
		client, err := mongo.Connect(options.Client().ApplyURI(shared.cluster.RouterURI(victim)).
			SetServerSelectionTimeout(time.Second)) // its farewell must not wait for the dead
		require.NoError(t, err)
		require.NoError(t, client.Ping(ctx, nil))

		go func() { done <- client.Database(db).Drop(ctx) }()

		select {
		case <-time.After(wait):
		case err = <-done:
			done <- err
		}

		down(t, shared.cluster.Router(victim))
		t.Logf("round %d: %v", i, <-done)
		require.NoError(t, client.Disconnect(ctx))
		up(t, shared.cluster.Router(victim))

		begin := time.Now()

		eventually(t, recoverLimit, "the drop can be repeated", func() error {
			return router(t, 0).Database(db).Drop(opContext(t, opLimit))
		})
		t.Logf("round %d: repeated after %v", i, time.Since(begin).Round(time.Millisecond))
		databaseIsGone(t, db)

		_, err = router(t, 1).Database(db).Collection("u1").InsertOne(opContext(t, opLimit), bson.D{{"new", true}})
		require.NoError(t, err)
		require.Equal(t, int64(1), count(t, router(t, 0).Database(db).Collection("u1"), bson.D{}))
		require.NoError(t, errors.Join(router(t, 1).Database(db).Drop(opContext(t, opLimit))))
	}
}

// A catalog that is there but does not answer must not be waited for without end.
func TestCatalogSilent(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), "plain"))

	keys := keysOn(t, db+".c", 2)
	use(t, db, keys, "before", 0, 1)

	require.NoError(t, shared.cluster.Postgres().Pause())
	t.Cleanup(func() { _ = shared.cluster.Postgres().Resume() })

	begin := time.Now()
	use(t, db, keys, "while", 0, 1)
	require.Less(t, time.Since(begin), 10*time.Second)

	for r := range 2 {
		begin := time.Now()
		_, err := router(t, r).Database(db).Collection("fresh").InsertOne(opContext(t, opLimit), bson.D{{"a", 1}})
		require.Equal(t, 133, code(err), "%v", err)

		names, err := router(t, r).ListDatabaseNames(opContext(t, opLimit), bson.D{})
		require.NoError(t, err)
		require.Contains(t, names, db)
		require.Equal(t, int64(2*shardCount), count(t, router(t, r).Database("config").Collection("chunks"), bson.D{{"ns", db + ".c"}}))
		require.Less(t, time.Since(begin), 40*time.Second)
		t.Logf("router %d: refused and shown within %v", r, time.Since(begin).Round(time.Millisecond))
	}

	use(t, db, keys, "later", 0, 1)
	require.NoError(t, shared.cluster.Postgres().Resume())

	for r := range 2 {
		eventually(t, recoverLimit, "new namespaces again", func() error {
			_, err := router(t, r).Database(db).Collection("fresh").InsertOne(opContext(t, opLimit), bson.D{{"a", 1}})
			return err
		})
	}
}
