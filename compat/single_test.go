package compat

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// jobs makes a collection sharded by k with n documents of state "new" on every shard.
func jobs(t *testing.T, n int) (db string, coll *mongo.Collection) {
	t.Helper()

	db = newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	var docs []any

	for name, list := range keysOn(t, db+".c", n) {
		for i, k := range list {
			docs = append(docs, bson.D{{"_id", fmt.Sprint(name, " ", i)}, {"k", k}, {"state", "new"}, {"prio", i}, {"n", 0}})
		}
	}

	coll = router(t, 0).Database(db).Collection("c")
	_, err := coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)

	return db, coll
}

// TestWritesOfOneDocumentWithoutItsKey: each takes one document, whatever shard it is on;
// upserts go where their documents belong.
func TestWritesOfOneDocumentWithoutItsKey(t *testing.T) {
	db, coll := jobs(t, 4)
	other := router(t, 1).Database(db).Collection("c")
	all := int64(4 * shardCount)

	for i := range all {
		res, err := other.UpdateOne(t.Context(), bson.D{{"state", "new"}}, bson.D{{"$set", bson.D{{"state", "old"}}}, {"$inc", bson.D{{"n", 1}}}})
		require.NoError(t, err)
		require.Equal(t, int64(1), res.ModifiedCount)
		require.Equal(t, i+1, count(t, coll, bson.D{{"state", "old"}, {"n", 1}}))
	}

	res, err := other.UpdateOne(t.Context(), bson.D{{"state", "new"}}, bson.D{{"$set", bson.D{{"x", 1}}}})
	require.NoError(t, err)
	require.Zero(t, res.MatchedCount)

	// The first by a sort over all shards.
	var doc bson.Raw

	for i := 3; i >= 0; i-- {
		for range shardCount {
			require.NoError(t, coll.FindOneAndUpdate(t.Context(), bson.D{{"state", "old"}}, bson.D{{"$set", bson.D{{"state", "done"}}}},
				options.FindOneAndUpdate().SetSort(bson.D{{"prio", -1}})).Decode(&doc))
			require.Equal(t, int32(i), doc.Lookup("prio").Int32())
			require.Equal(t, "old", doc.Lookup("state").StringValue(), "as it was before")
		}
	}

	require.ErrorIs(t, coll.FindOneAndDelete(t.Context(), bson.D{{"state", "old"}}).Err(), mongo.ErrNoDocuments)

	for i := range all {
		res, err := coll.DeleteOne(t.Context(), bson.D{{"state", "done"}})
		require.NoError(t, err)
		require.Equal(t, int64(1), res.DeletedCount)
		require.Equal(t, all-i-1, count(t, coll, bson.D{}))
	}

	// Upserts: mongod itself says which document they make.
	up, err := coll.UpdateOne(t.Context(), bson.D{{"name", "a"}, {"z.y", bson.D{{"$eq", 3}}}},
		bson.D{{"$setOnInsert", bson.D{{"k", 5}}}, {"$push", bson.D{{"list", 7}}}}, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.Equal(t, int64(1), up.UpsertedCount)
	require.NoError(t, coll.FindOne(t.Context(), bson.D{{"_id", up.UpsertedID}, {"k", 5}}).Decode(&doc))
	require.Equal(t, int32(3), doc.Lookup("z", "y").Int32())
	require.Equal(t, int32(7), doc.Lookup("list", "0").Int32())

	require.NoError(t, coll.FindOneAndUpdate(t.Context(), bson.D{{"name", "b"}}, bson.D{{"$set", bson.D{{"v", 1}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After).SetProjection(bson.D{{"v", 1}, {"_id", 0}})).Decode(&doc))
	require.Equal(t, `{"v": {"$numberInt":"1"}}`, doc.String())
	require.Equal(t, int64(1), count(t, coll, bson.D{{"name", "b"}, {"k", nil}}))

	for i := range 40 {
		_, err := other.UpdateOne(t.Context(), bson.D{{"name", i}}, bson.D{{"$setOnInsert", bson.D{{"k", i}}}}, options.UpdateOne().SetUpsert(true))
		require.NoError(t, err)
	}

	require.Len(t, checkPlacement(t, db, "c", "k", "_id"), 42)

	names, err := router(t, 0).ListDatabaseNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.NotContains(t, names, "__shardgate")
}

// TestWritesOfOneDocumentUnconfirmed: what its shard did and could not confirm is told.
func TestWritesOfOneDocumentUnconfirmed(t *testing.T) {
	db, _ := jobs(t, 2)
	c := dialRaw(t, 0)
	set := bson.D{{"$set", bson.D{{"state", "old"}}}}

	for i, cmd := range []bson.D{
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"state", "new"}}}, {"u", set}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"name", 1}}}, {"u", set}, {"upsert", true}}}}},
		{{"findAndModify", "c"}, {"query", bson.D{{"state", "new"}}}, {"update", set}},
		{{"findAndModify", "c"}, {"query", bson.D{{"name", 2}}}, {"update", set}, {"upsert", true}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"state", "new"}}}, {"limit", 1}}}}},
	} {
		for _, more := range []bson.D{nil, {{"lsid", session()}, {"txnNumber", int64(1)}}} {
			cmd := append(cmd[:len(cmd):len(cmd)], bson.E{Key: "writeConcern", Value: bson.D{{"w", 2}, {"wtimeout", 1}}}, bson.E{Key: "$db", Value: db})
			reply := ok(t, c.run(append(cmd, more...)))
			require.Equal(t, int32(100), reply.Lookup("writeConcernError", "code").Int32(), "%d: %s", i, reply)
		}
	}
}

// TestQueueOverShards: many workers take jobs at all routers; nobody gets one that another
// has.
func TestQueueOverShards(t *testing.T) {
	db, coll := jobs(t, 20)

	var wg sync.WaitGroup

	taken := make(chan string, 1000)

	for w := range 6 {
		wg.Go(func() {
			c := router(t, w%routerCount).Database(db).Collection("c")

			for {
				var doc bson.Raw

				err := c.FindOneAndUpdate(opContext(t, opLimit), bson.D{{"state", "new"}},
					bson.D{{"$set", bson.D{{"state", "taken"}}}, {"$inc", bson.D{{"n", 1}}}}, options.FindOneAndUpdate().SetSort(bson.D{{"prio", 1}})).Decode(&doc)
				if errors.Is(err, mongo.ErrNoDocuments) {
					return
				}

				if err != nil {
					taken <- err.Error()
					return
				}

				taken <- doc.Lookup("_id").StringValue()
			}
		})
	}

	wg.Wait()
	close(taken)

	seen := map[string]int{}
	for id := range taken {
		seen[id]++
	}

	require.Len(t, seen, 20*shardCount)

	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}

	require.Equal(t, int64(20*shardCount), count(t, coll, bson.D{{"state", "taken"}, {"n", 1}}))
}

// TestWritesOfOneDocumentRepeated: the same numbers at another router find what was done,
// also when the document does not match any more.
func TestWritesOfOneDocumentRepeated(t *testing.T) {
	db, coll := jobs(t, 3)
	conns := []*rawConn{dialRaw(t, 0), dialRaw(t, 1), dialRaw(t, 0)}
	lsid := session()
	number := int64(0)

	run := func(cmd bson.D, check func(bson.Raw)) {
		number++
		cmd = append(cmd, bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: number})

		for _, c := range conns {
			reply := ok(t, c.run(cmd))
			_, err := reply.LookupErr("writeErrors")
			require.Error(t, err, "%s", reply)
			check(reply)
		}
	}
	taken := bson.D{{"$set", bson.D{{"state", "taken"}}}, {"$inc", bson.D{{"n", 1}}}}

	run(bson.D{{"update", "c"}, {"updates", bson.A{
		bson.D{{"q", bson.D{{"state", "new"}}}, {"u", taken}}, bson.D{{"q", bson.D{{"state", "new"}}}, {"u", taken}},
	}}}, func(reply bson.Raw) {
		require.Equal(t, int32(2), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int64(2), count(t, coll, bson.D{{"state", "taken"}, {"n", 1}}))
	})
	run(bson.D{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"state", "taken"}}}, {"limit", 1}}}}}, func(reply bson.Raw) {
		require.Equal(t, int32(1), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int64(1), count(t, coll, bson.D{{"state", "taken"}}))
	})

	var first bson.Raw

	run(bson.D{{"findAndModify", "c"}, {"query", bson.D{{"state", "new"}}}, {"update", taken}, {"sort", bson.D{{"prio", -1}}}}, func(reply bson.Raw) {
		if first == nil {
			first = reply.Lookup("value").Document()
		}

		require.Equal(t, first, reply.Lookup("value").Document(), "as it was before the first time")
		require.Equal(t, int64(2), count(t, coll, bson.D{{"state", "taken"}, {"n", 1}}))
	})
	run(bson.D{{"findAndModify", "c"}, {"query", bson.D{{"state", "taken"}}}, {"remove", true}}, func(reply bson.Raw) {
		require.Equal(t, "taken", reply.Lookup("value", "state").StringValue(), "%s", reply)
		require.Equal(t, int64(1), count(t, coll, bson.D{{"state", "taken"}}))
	})

	var id bson.RawValue

	run(bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"name", "u"}}}, {"u", bson.D{{"$inc", bson.D{{"n", 5}}}}}, {"upsert", true}}}}}, func(reply bson.Raw) {
		if id.Type == 0 {
			id = reply.Lookup("upserted", "0", "_id")
		}

		require.Equal(t, id, reply.Lookup("upserted", "0", "_id"), "%s", reply)
		require.Equal(t, int64(1), count(t, coll, bson.D{{"name", "u"}, {"n", 5}}))
	})
	run(bson.D{{"findAndModify", "c"}, {"query", bson.D{{"name", "f"}}}, {"update", bson.D{{"$inc", bson.D{{"n", 5}}}}}, {"upsert", true}, {"new", true}}, func(reply bson.Raw) {
		require.Equal(t, int32(5), reply.Lookup("value", "n").Int32(), "%s", reply)
		require.False(t, reply.Lookup("lastErrorObject", "updatedExisting").Boolean())
		require.Equal(t, int64(1), count(t, coll, bson.D{{"name", "f"}, {"n", 5}}))
	})

	// What found nothing does nothing later, either.
	none := bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"state", "late"}}}, {"u", taken}}}}}
	number++
	none = append(none, bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: number})

	require.Zero(t, ok(t, conns[0].run(none)).Lookup("n").Int32())
	_, err := coll.InsertOne(t.Context(), bson.D{{"k", 1}, {"state", "late"}})
	require.NoError(t, err)
	require.Zero(t, ok(t, conns[1].run(none)).Lookup("n").Int32())
	require.Equal(t, int64(1), count(t, coll, bson.D{{"state", "late"}}))
}

// plantClaim notes for a write that it is to change a document on shard_1, as a router does
// that has chosen it.
func plantClaim(t *testing.T, db string, lsid bson.D, number int64, id, k any) {
	t.Helper()

	nobody := sha256.Sum256(nil)

	var row struct {
		Primary string `bson:"primary"`
	}

	require.NoError(t, router(t, 0).Database("config").Collection("databases").FindOne(t.Context(), bson.D{{"_id", db}}).Decode(&row))

	var life struct {
		Timestamp bson.Timestamp `bson:"timestamp"`
	}

	require.NoError(t, router(t, 0).Database("config").Collection("collections").FindOne(t.Context(), bson.D{{"_id", db + ".c"}}).Decode(&life))

	claims := shard(t, shardIndex(t, row.Primary)).Database("__shardgate").Collection("claims")
	_, err := claims.InsertOne(t.Context(), bson.D{
		{"_id", bson.D{
			{"id", lsid[0].Value},
			{"uid", bson.Binary{Data: nobody[:]}},
			{"txnNumber", number},
			{"stmtId", int32(0)},
			{"collection", life.Timestamp},
		}},
		{"until", time.Now().Add(time.Hour)},
		{"choice", bson.D{{"attempt", int32(0)}, {"shard", "shard_1"}, {"filter", bson.D{{"_id", bson.D{{"$eq", id}}}, {"k", bson.D{{"$eq", k}}}}}}},
	})
	require.NoError(t, err)
}

// TestDelayedWriteOfOneDocument: a router has chosen a document and was paused. Others go on
// without it; when it wakes up, its write does nothing.
func TestDelayedWriteOfOneDocument(t *testing.T) {
	db, coll := jobs(t, 1)
	lsid := session()
	conns := []*rawConn{dialRaw(t, 0), dialRaw(t, 1)}
	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}

	var victim bson.Raw

	require.NoError(t, coll.FindOne(t.Context(), bson.D{{"_id", "shard_1 0"}}).Decode(&victim))

	key := bson.D{{"_id", victim.Lookup("_id")}, {"k", victim.Lookup("k")}}
	set := func(state string) {
		_, err := coll.UpdateOne(t.Context(), key, bson.D{{"$set", bson.D{{"state", state}}}})
		require.NoError(t, err)
	}

	for number, kind := range []string{"update", "delete"} {
		stmt := bson.D{{"q", bson.D{{"state", "new"}}}, {"u", inc}}
		late := bson.D{{"q", append(bson.D{{"state", "new"}}, key...)}, {"u", inc}}

		if kind == "delete" {
			stmt, late = bson.D{{"q", stmt[0].Value}, {"limit", 1}}, bson.D{{"q", late[0].Value}, {"limit", 1}}
		}

		run := func(c *rawConn, stmt bson.D) int32 {
			reply := ok(t, c.run(bson.D{
				{kind, "c"},
				{kind + "s", bson.A{stmt}},
				{"lsid", lsid},
				{"txnNumber", int64(number)},
				{"$db", db},
			}))
			require.Equal(t, bson.RawValue{}, reply.Lookup("writeErrors"), "%s", reply)

			return reply.Lookup("n").Int32()
		}

		plantClaim(t, db, lsid, int64(number), victim.Lookup("_id"), victim.Lookup("k"))
		set("away")
		before := count(t, coll, bson.D{})
		require.Equal(t, int32(1), run(conns[0], stmt), "another document")
		set("new")
		run(conns[0], late)
		require.Equal(t, int64(1), count(t, coll, append(bson.D{{"n", 0}}, key...)), "it comes too late")
		require.Equal(t, int32(1), run(conns[1], stmt), "known")

		if kind == "update" {
			require.Equal(t, int64(1), count(t, coll, bson.D{{"n", 1}}))
		} else {
			require.Equal(t, before-1, count(t, coll, bson.D{}))
		}
	}
}

// TestWritesOfOneDocumentWhileARouterIsPaused: it stops anywhere in the middle, the write is
// repeated at another router, and it goes on: every write happens once.
func TestWritesOfOneDocumentWhileARouterIsPaused(t *testing.T) {
	const rounds = 45

	db, coll := jobs(t, rounds/shardCount+1)
	paused, other := dialRaw(t, victim), dialRaw(t, 0)
	node := shared.cluster.Router(victim)
	lsid := session()
	rnd := random(t)

	for number := range int64(rounds) {
		cmd := bson.D{
			{"findAndModify", "c"},
			{"query", bson.D{{"state", "new"}}},
			{"update", bson.D{{"$set", bson.D{{"state", "taken"}, {"by", number}}}, {"$inc", bson.D{{"n", 1}}}}},
			{"lsid", lsid},
			{"txnNumber", number},
			{"$db", db},
		}

		paused.write(paused.msg(0, paused.body(cmd)))
		<-time.After(time.Duration(rnd.Int64N(6000)) * time.Microsecond)
		require.NoError(t, node.Pause())

		reply := ok(t, other.run(cmd))
		require.Equal(t, "new", reply.Lookup("value", "state").StringValue(), "%s", reply)
		require.NoError(t, node.Resume())

		m, err := paused.read()
		require.NoError(t, err)
		require.NotEmpty(t, m)
		require.Equal(t, number+1, count(t, coll, bson.D{{"state", "taken"}}))
		require.Equal(t, int64(1), count(t, coll, bson.D{{"by", number}, {"n", 1}}))
	}
}

// TestShardKeyChangesWithinAShard: a document's key may change as long as it stays on its
// shard; what would move it is refused whole.
func TestShardKeyChangesWithinAShard(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 12)["shard_1"]
	away := keysOn(t, db+".c", 1)["shard_2"][0]
	coll := router(t, 0).Database(db).Collection("c")

	_, err := coll.InsertMany(t.Context(), []any{bson.D{{"_id", 1}, {"k", keys[0]}, {"n", 0}}, bson.D{{"_id", 2}, {"k", away}, {"n", 0}}})
	require.NoError(t, err)

	has := func(id int, k any, n int) {
		t.Helper()
		require.Equal(t, int64(1), count(t, router(t, 1).Database(db).Collection("c"), bson.D{{"_id", id}, {"k", k}, {"n", n}}))
	}
	set := func(k any) bson.D { return bson.D{{"$set", bson.D{{"k", k}}}, {"$inc", bson.D{{"n", 1}}}} }

	// By key, by another field, by replacement, by pipeline, by findAndModify.
	res, err := coll.UpdateOne(t.Context(), bson.D{{"k", keys[0]}}, set(keys[1]))
	require.NoError(t, err)
	require.Equal(t, int64(1), res.ModifiedCount)
	has(1, keys[1], 1)

	_, err = coll.UpdateOne(t.Context(), bson.D{{"_id", 1}}, set(keys[2]))
	require.NoError(t, err)
	has(1, keys[2], 2)

	_, err = coll.ReplaceOne(t.Context(), bson.D{{"_id", 1}}, bson.D{{"k", keys[3]}, {"n", 3}})
	require.NoError(t, err)
	has(1, keys[3], 3)

	_, err = coll.UpdateOne(t.Context(), bson.D{{"_id", 1}}, mongo.Pipeline{{{"$set", bson.D{{"k", keys[4]}, {"n", bson.D{{"$add", bson.A{"$n", 1}}}}}}}})
	require.NoError(t, err)
	has(1, keys[4], 4)

	var doc bson.Raw

	require.NoError(t, coll.FindOneAndUpdate(t.Context(), bson.D{{"_id", 1}}, set(keys[5]), options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&doc))
	require.Equal(t, keys[5], doc.Lookup("k").Int32())
	has(1, keys[5], 5)

	// To another shard, by each of them: not yet, and nothing has happened.
	_, err = coll.UpdateOne(t.Context(), bson.D{{"k", keys[5]}}, set(away))
	require.Equal(t, 238, code(err), "%v", err)
	_, err = coll.ReplaceOne(t.Context(), bson.D{{"_id", 1}}, bson.D{{"k", away}})
	require.Equal(t, 238, code(err), "%v", err)
	require.Equal(t, 238, code(coll.FindOneAndUpdate(t.Context(), bson.D{{"_id", 1}}, set(away)).Err()))
	_, err = coll.UpdateOne(t.Context(), bson.D{{"_id", 1}}, bson.D{{"$set", bson.D{{"k", bson.A{1}}}}})
	require.Equal(t, 16766, code(err), "%v", err)
	_, err = coll.UpdateMany(t.Context(), bson.D{{"_id", 1}}, set(keys[6]))
	require.Equal(t, 72, code(err), "%v", err)
	has(1, keys[5], 5)

	// Repeated at another router: once. Also what found nothing.
	conns := []*rawConn{dialRaw(t, 0), dialRaw(t, 1), dialRaw(t, 2)}
	lsid := session()

	for _, c := range conns {
		reply := ok(t, c.run(bson.D{
			{"update", "c"},
			{"updates", bson.A{
				bson.D{{"q", bson.D{{"_id", 1}}}, {"u", set(keys[6])}},
				bson.D{{"q", bson.D{{"k", keys[5]}}}, {"u", set(keys[7])}},
				bson.D{{"q", bson.D{{"k", keys[6]}}}, {"u", set(keys[8])}},
			}},
			{"lsid", lsid},
			{"txnNumber", int64(1)},
			{"$db", db},
		}))
		require.Equal(t, int32(2), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int32(2), reply.Lookup("nModified").Int32(), "%s", reply)
		has(1, keys[8], 7)
	}

	for _, c := range conns {
		reply := ok(t, c.run(bson.D{
			{"findAndModify", "c"},
			{"query", bson.D{{"k", keys[8]}}},
			{"update", set(keys[9])},
			{"lsid", lsid},
			{"txnNumber", int64(2)},
			{"$db", db},
		}))
		require.Equal(t, keys[8], reply.Lookup("value", "k").Int32(), "as it was: %s", reply)
		has(1, keys[9], 8)
	}

	// What is known to have been done is confirmed like the first time.
	for _, c := range conns {
		reply := ok(t, c.run(bson.D{
			{"update", "c"},
			{"updates", bson.A{bson.D{{"q", bson.D{{"k", keys[9]}}}, {"u", set(keys[11])}}}},
			{"writeConcern", bson.D{{"w", 2}, {"wtimeout", 1}}},
			{"lsid", lsid},
			{"txnNumber", int64(3)},
			{"$db", db},
		}))
		require.Equal(t, int32(1), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int32(100), reply.Lookup("writeConcernError", "code").Int32(), "%s", reply)
		has(1, keys[11], 9)
	}

	// An upsert goes where its document belongs; a unique index is heard of.
	up, err := coll.UpdateOne(t.Context(), bson.D{{"k", keys[10]}, {"name", "u"}}, bson.D{{"$set", bson.D{{"k", away}, {"n", 1}}}}, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.Equal(t, int64(1), up.UpsertedCount)
	require.Equal(t, int64(1), count(t, coll, bson.D{{"k", away}, {"name", "u"}}))
}

// TestShardKeyChangeByCollation: where several have the _id by a collation, the one that is
// changed counts.
func TestShardKeyChangeByCollation(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	k := keysOn(t, db+".c", 1)["shard_1"][0]
	away := keysOn(t, db+".c", 1)["shard_2"][0]
	lsid := session()

	for _, id := range []string{"ABC", "abc"} {
		_, err := router(t, 0).Database(db).Collection("c").InsertOne(t.Context(), bson.D{{"_id", id}, {"k", k}})
		require.NoError(t, err)
	}

	plantClaim(t, db, lsid, 1, "abc", k)

	reply := dialRaw(t, 0).run(bson.D{
		{"update", "c"},
		{"updates", bson.A{bson.D{
			{"q", bson.D{{"_id", "abc"}}},
			{"u", bson.D{{"$set", bson.D{{"k", away}}}}},
			{"collation", bson.D{{"locale", "en"}, {"strength", 2}}},
		}}},
		{"lsid", lsid},
		{"txnNumber", int64(1)},
		{"$db", db},
	})
	require.Equal(t, int32(238), reply.Lookup("writeErrors", "0", "code").Int32(), "%s", reply)
	require.Equal(t, int64(2), count(t, router(t, 0).Database(db).Collection("c"), bson.D{{"k", k}}))
}

// TestGreatestDocumentsWithoutTheirKey: what a claim or a record must remember may be as long
// as a document.
func TestGreatestDocumentsWithoutTheirKey(t *testing.T) {
	const size = 16 << 20

	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 2)["shard_2"]
	coll := router(t, 0).Database(db).Collection("c")
	conns := []*rawConn{dialRaw(t, 0), dialRaw(t, 1)}
	lsid := session()

	room := len(raw(t, bson.D{{"_id", bson.NewObjectID()}, {"x", 1}, {"k", keys[0]}, {"s", ""}}))
	text := strings.Repeat("a", size-room)

	for i, c := range conns {
		reply := ok(t, c.run(bson.D{
			{"findAndModify", "c"},
			{"query", bson.D{{"x", 1}}},
			{"update", bson.D{{"$set", bson.D{{"k", keys[0]}, {"s", text}}}}},
			{"upsert", true},
			{"new", true},
			{"lsid", lsid},
			{"txnNumber", int64(1)},
			{"$db", db},
		}))
		require.Len(t, reply.Lookup("value").Document(), size, "%d", i)
		require.Equal(t, int64(1), count(t, coll, bson.D{}))
	}

	// Its key changes; the reply is the document as it was.
	for range 2 {
		for i, c := range conns {
			reply := ok(t, c.run(bson.D{
				{"findAndModify", "c"},
				{"query", bson.D{{"x", 1}}},
				{"update", bson.D{{"$set", bson.D{{"k", keys[1]}}}}},
				{"lsid", lsid},
				{"txnNumber", int64(2)},
				{"$db", db},
			}))
			require.Len(t, reply.Lookup("value").Document(), size, "%d", i)
			require.Equal(t, keys[0], reply.Lookup("value", "k").Int32())
		}
	}

	require.Equal(t, int64(1), count(t, coll, bson.D{{"k", keys[1]}, {"x", 1}}))
}
