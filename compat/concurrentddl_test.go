package compat

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// atOnce runs a command on two routers at the same time.
func atOnce(t *testing.T, db string, first, second bson.D) [2]error {
	t.Helper()

	var errs [2]error

	start, done := make(chan struct{}), make(chan struct{})
	cmds := [2]bson.D{first, second}

	for r := range 2 {
		client := router(t, r)
		ctx := opContext(t, opLimit)

		go func() {
			<-start
			errs[r] = client.Database(db).RunCommand(ctx, cmds[r]).Err()
			done <- struct{}{}
		}()
	}

	close(start)
	<-done
	<-done

	return errs
}

// oneUUID checks that all shards that have a collection have it under the same UUID, the catalog's.
func oneUUID(t *testing.T, db, coll string) {
	t.Helper()

	var row bson.Raw

	require.NoError(t, router(t, 0).Database("config").Collection("collections").
		FindOne(t.Context(), bson.D{{"_id", db + "." + coll}}).Decode(&row))

	_, want := row.Lookup("uuid").Binary()
	places := 0

	for i := range shardCount {
		cur, err := shard(t, i).Database(db).ListCollections(t.Context(), bson.D{{"name", coll}})
		for _, doc := range all(t, cur, err) {
			_, got := doc.Lookup("info", "uuid").Binary()
			require.Equal(t, want, got)

			places++
		}
	}

	require.Positive(t, places)
}

func TestSameDDLAtTwoRoutersAtOnce(t *testing.T) {
	db := newDB(t)

	for i := range 10 {
		coll := fmt.Sprint("s", i)
		cmd := bson.D{{"shardCollection", db + "." + coll}, {"key", bson.D{{"k", "hashed"}}}}
		errs := atOnce(t, "admin", cmd, cmd)
		require.NoError(t, errors.Join(errs[:]...), "one does it, the other sees it done")
		require.Len(t, hashChunks(t, 0, db+"."+coll, "k"), 2*shardCount)
		oneUUID(t, db, coll)

		coll = fmt.Sprint("c", i)
		create := bson.D{{"create", coll}, {"capped", true}, {"size", 4096}}
		errs = atOnce(t, db, create, create)
		require.NoError(t, errors.Join(errs[:]...))
		oneUUID(t, db, coll)

		// Implicitly, by a write.
		coll = fmt.Sprint("w", i)
		insert := func(id int) bson.D {
			return bson.D{{"insert", coll}, {"documents", bson.A{bson.D{{"_id", id}}}}}
		}
		errs = atOnce(t, db, insert(1), insert(2))
		require.NoError(t, errors.Join(errs[:]...))
		require.Equal(t, int64(2), count(t, router(t, i%2).Database(db).Collection(coll), bson.D{}))
		oneUUID(t, db, coll)
	}

	row := bson.D{{"ns", bson.D{{"$regex", "^" + db + "\\.[cw]"}}}}
	require.Equal(t, int64(20), count(t, router(t, 1).Database("config").Collection("chunks"), row), "one chunk each")
}

func TestDifferentDDLAtTwoRoutersAtOnce(t *testing.T) {
	db := newDB(t)

	for i := range 8 {
		coll := fmt.Sprint("s", i)
		errs := atOnce(t, "admin",
			bson.D{{"shardCollection", db + "." + coll}, {"key", bson.D{{"a", "hashed"}}}},
			bson.D{{"shardCollection", db + "." + coll}, {"key", bson.D{{"b", 1}}}})
		codes := []int{code(errs[0]), code(errs[1])}
		require.Contains(t, codes, 0, "one does it: %v", errs)
		require.True(t, codes[0]+codes[1] == 23 || codes[0]+codes[1] == 117, "the other is told: %v", errs)
		oneUUID(t, db, coll)

		coll = fmt.Sprint("c", i)
		errs = atOnce(t, db,
			bson.D{{"create", coll}, {"capped", true}, {"size", 4096}}, bson.D{{"create", coll}, {"capped", true}, {"size", 8192}})
		codes = []int{code(errs[0]), code(errs[1])}
		require.Contains(t, codes, 0, "%v", errs)
		require.Equal(t, 48, codes[0]+codes[1], "%v", errs)
		oneUUID(t, db, coll)

		// create and drop: whichever is last decides, and both routers agree.
		errs = atOnce(t, db, bson.D{{"drop", coll}}, bson.D{{"create", coll}, {"capped", true}, {"size", 4096}})
		require.NoError(t, errs[0])
		require.Contains(t, []int{0, 48}, code(errs[1]))

		var names [2][]string
		for r := range names {
			var err error
			names[r], err = router(t, r).Database(db).ListCollectionNames(t.Context(), bson.D{{"name", coll}})
			require.NoError(t, err)
		}

		require.Equal(t, names[0], names[1])
	}
}

// databaseIsGone checks that nothing of a database is left, at routers and on shards.
func databaseIsGone(t *testing.T, db string) {
	t.Helper()

	for r := range 2 {
		names, err := router(t, r).ListDatabaseNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.NotContains(t, names, db)

		for coll, filter := range map[string]bson.D{
			"databases": {{"_id", db}}, "collections": {{"_id", bson.D{{"$regex", "^" + db + "\\."}}}}, "chunks": {{"ns", bson.D{{"$regex", "^" + db + "\\."}}}},
		} {
			require.Zero(t, count(t, router(t, r).Database("config").Collection(coll), filter), "config.%s at router %d", coll, r)
		}

		colls, err := router(t, r).Database(db).ListCollectionNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.Empty(t, colls)
	}

	for i := range shardCount {
		names, err := shard(t, i).ListDatabaseNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.NotContains(t, names, db, "shard %d", i)
	}
}

// Case A26.
func TestDropDatabaseWhileAnotherRouterInserts(t *testing.T) {
	db := newDB(t)

	for round := range 3 {
		shardCollection(t, 0, db+".sharded", bson.D{{"k", "hashed"}})

		for r := range 2 {
			for _, coll := range []string{"sharded", "one", "two"} {
				_, err := router(t, r).Database(db).Collection(coll).
					InsertMany(t.Context(), []any{bson.D{{"k", 1}, {"old", true}}, bson.D{{"k", 2}, {"old", true}}, bson.D{{"k", 3}, {"old", true}}})
				require.NoError(t, err)
			}
		}

		info := databaseRow(t, 1, db)
		require.Positive(t, info.Lookup("sizeOnDisk").Int64())

		perShard, err := info.Lookup("shards").Document().Elements()
		require.NoError(t, err)
		require.Len(t, perShard, shardCount, "%s", info)

		sum := int64(0)
		for _, e := range perShard {
			sum += e.Value().AsInt64()
		}

		require.Equal(t, sum, info.Lookup("sizeOnDisk").Int64(), "%s", info)

		stop := insertAll(t, router(t, 1).Database(db), "sharded", "one", "two")

		require.NoError(t, router(t, 0).Database(db).Drop(opContext(t, opLimit)))

		for _, coll := range []string{"sharded", "one", "two"} {
			for r := range 2 {
				require.Zero(t, count(t, router(t, r).Database(db).Collection(coll), bson.D{{"old", true}}), "nothing of the old life, round %d", round)
			}
		}

		stop()
		require.NoError(t, router(t, 1).Database(db).Drop(opContext(t, opLimit)))
		databaseIsGone(t, db)
	}

	require.NoError(t, router(t, 0).Database(db).Drop(opContext(t, opLimit)), "what is not there can be dropped")
}

// databaseRow returns what listDatabases says of one database.
func databaseRow(t *testing.T, r int, db string) bson.Raw {
	t.Helper()

	list := admin(t, r, bson.D{{"listDatabases", 1}, {"filter", bson.D{{"name", db}}}}).Lookup("databases").Array()
	values, err := list.Values()
	require.NoError(t, err)
	require.Len(t, values, 1, "%s", list)

	return values[0].Document()
}

// insertAll inserts into collections until stop is called. What it meets while they are dropped may be refused as a conflict.
func insertAll(t *testing.T, db *mongo.Database, colls ...string) (stop func()) {
	t.Helper()

	end, done := make(chan struct{}), make(chan error, 1)
	ctx := opContext(t, 2*opLimit)

	go func() {
		for i := 0; ; i++ {
			select {
			case <-end:
				done <- nil
				return
			default:
			}

			_, err := db.Collection(colls[i%len(colls)]).InsertOne(ctx, bson.D{{"k", i}})
			if c := code(err); c != 0 && c != 117 && c != 361 {
				done <- fmt.Errorf("insert %d: %w", i, err)
				return
			}
		}
	}()

	return func() {
		close(end)

		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(opLimit):
			t.Fatal("the inserts do not end")
		}
	}
}

// An open transaction keeps a collection from being made on its shard, but neither of them keeps the shard from all others.
func TestMakingCollectionsBesideAnOpenTransaction(t *testing.T) {
	db := newDB(t)
	d := router(t, 0).Database(db)
	command := bson.D{{"shardCollection", db + ".late"}, {"key", bson.D{{"k", "hashed"}}}}

	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	// One on each shard, as any of them may be the new collection's home, where nothing waits.
	var open []*mongo.Session

	var into []context.Context

	for i := range shardCount {
		k := 0
		for ; ; k++ {
			_, err := d.Collection("c").InsertOne(opContext(t, opLimit), bson.D{{"k", k}})
			require.NoError(t, err)

			if count(t, shard(t, i).Database(db).Collection("c"), bson.D{{"k", k}}) == 1 {
				break
			}
		}

		ctx, s := begin(t, d.Collection("c"), bson.D{{"k", k}})
		open, into = append(open, s), append(into, ctx)
	}

	err := router(t, 1).Database("admin").RunCommand(t.Context(), append(command[:2:2], bson.E{Key: "maxTimeMS", Value: 1500})).Err()
	require.Equal(t, 50, code(err), "%v", err)

	for i := range shardCount {
		cur, err := shard(t, i).Database(db).Collection("c").Find(opContext(t, opLimit/2), bson.D{})
		require.NotEmpty(t, all(t, cur, err))
	}

	for i, s := range open {
		require.NoError(t, s.CommitTransaction(into[i]))
	}

	require.NoError(t, router(t, 1).Database("admin").RunCommand(opContext(t, opLimit), command).Err())
}
