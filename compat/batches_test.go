package compat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// keysOn returns n values of an integer key that the shard of each name owns, by mongod's own hash.
func keysOn(t testing.TB, ns string, n int) map[string][]int32 {
	t.Helper()

	chunks := hashChunks(t, 0, ns, "k")
	keys := map[string][]int32{}

	for next, full := int32(0), 0; full < shardCount; next += 1000 {
		ids := make(bson.A, 0, 1000)
		for i := range int32(1000) {
			ids = append(ids, next+i)
		}

		cur, err := shard(t, 0).Database("admin").Aggregate(t.Context(), mongo.Pipeline{
			{{"$documents", bson.D{{"$map", bson.D{{"input", ids}, {"in", bson.D{{"k", "$$this"}}}}}}}},
			{{"$project", bson.D{{"k", 1}, {"h", bson.D{{"$toHashedIndexKey", "$k"}}}}}},
		})

		for _, doc := range all(t, cur, err) {
			name := owner(t, chunks, doc.Lookup("h").Int64())
			if len(keys[name]) == n {
				continue
			}

			if keys[name] = append(keys[name], doc.Lookup("k").Int32()); len(keys[name]) == n {
				full++
			}
		}
	}

	return keys
}

// session is a raw logical session.
func session() bson.D {
	id := uuid.New()
	return bson.D{{"id", bson.Binary{Subtype: 4, Data: id[:]}}}
}

// alternating lists 2n documents whose keys go A, B, A, B and so on.
func alternating(keys map[string][]int32, n int) []any {
	var docs []any
	for i := range n {
		docs = append(docs,
			bson.D{{"_id", 2 * i}, {"k", keys["shard_0"][i]}, {"n", 0}},
			bson.D{{"_id", 2*i + 1}, {"k", keys["shard_1"][i]}, {"n", 0}})
	}

	return docs
}

func TestOrderedBatchesAlternatingOverShards(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 20)

	for r := range 2 {
		coll := router(t, r).Database(db).Collection("c")

		for round := range 10 {
			docs := alternating(keys, 20)
			for i := range docs {
				docs[i] = append(docs[i].(bson.D), bson.E{Key: "round", Value: fmt.Sprint(r, " ", round)})
				docs[i].(bson.D)[0].Value = fmt.Sprint(r, " ", round, " ", i)
			}

			res, err := coll.InsertMany(opContext(t, opLimit), docs)
			require.NoError(t, err)
			require.Len(t, res.InsertedIDs, 40)
			require.Equal(t, int64(40), count(t, router(t, 1-r).Database(db).Collection("c"), bson.D{{"round", fmt.Sprint(r, " ", round)}}),
				"every acknowledged document is there")
		}
	}
}

// The same batch with the same number again, through either router, must change nothing.
func TestRepeatedBatchesRunOnce(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 10)
	coll := router(t, 0).Database(db).Collection("c")

	first, second := dialRaw(t, 0), dialRaw(t, 1)
	lsid := session()
	number := int64(0)

	run := func(cmd bson.D, s sequence, check func(bson.Raw)) {
		number++
		cmd = append(cmd, bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: number})

		for _, c := range []*rawConn{first, second, first} {
			reply := ok(t, c.run(cmd, s))
			_, err := reply.LookupErr("writeErrors")
			require.Error(t, err, "%s", reply)
			check(reply)
		}
	}

	run(bson.D{{"insert", "c"}}, sequence{"documents", alternating(keys, 10)}, func(reply bson.Raw) {
		require.Equal(t, int32(20), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int64(20), count(t, coll, bson.D{}))
	})
	require.Len(t, checkPlacementOn(t, db, "c", "k", "shard_0", "shard_1"), 20)

	var updates, deletes []any
	for i := range 10 {
		for _, name := range []string{"shard_0", "shard_1"} {
			updates = append(updates, bson.D{{"q", bson.D{{"k", keys[name][i]}}}, {"u", bson.D{{"$inc", bson.D{{"n", 1}}}}}})
			deletes = append(deletes, bson.D{{"q", bson.D{{"k", keys[name][i]}}}, {"limit", 1}})
		}
	}

	run(bson.D{{"update", "c"}}, sequence{"updates", updates}, func(reply bson.Raw) {
		require.Equal(t, int32(20), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int64(20), count(t, coll, bson.D{{"n", 1}}), "each was raised once")
	})

	run(bson.D{{"delete", "c"}}, sequence{"deletes", deletes[:6]}, func(reply bson.Raw) {
		require.Equal(t, int32(6), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int64(14), count(t, coll, bson.D{}))
	})

	// A batch of which a part ran: only the rest runs, and what ran is not run again.
	number++
	partial := bson.D{{"update", "c"}, {"$db", db}, {"lsid", lsid}, {"txnNumber", number}}
	ok(t, first.run(partial, sequence{"updates", updates[6:12]}))
	ok(t, second.run(partial, sequence{"updates", updates[6:20]}))
	require.Equal(t, int64(14), count(t, coll, bson.D{{"n", 2}}))

	// findAndModify, and a new number: it runs.
	fam := func(c *rawConn, number int64) bson.Raw {
		return ok(t, c.run(bson.D{
			{"findAndModify", "c"},
			{"query", bson.D{{"k", keys["shard_1"][5]}}},
			{"update", bson.D{{"$inc", bson.D{{"f", 1}}}}},
			{"new", true},
			{"$db", db},
			{"lsid", lsid},
			{"txnNumber", number},
		}))
	}

	for range 2 {
		require.Equal(t, int32(1), fam(first, number+1).Lookup("value", "f").Int32())
		require.Equal(t, int32(1), fam(second, number+1).Lookup("value", "f").Int32())
	}

	require.Equal(t, int32(2), fam(second, number+2).Lookup("value", "f").Int32())
}

// checkPlacementOn is checkPlacement for a collection of which only some shards hold documents.
func checkPlacementOn(t testing.TB, db, coll, field string, names ...string) map[string]string {
	t.Helper()

	chunks := hashChunks(t, 1, db+"."+coll, field)
	found := map[string]string{}

	for _, name := range names {
		cur, err := shard(t, shardIndex(t, name)).Database(db).Collection(coll).Aggregate(t.Context(), mongo.Pipeline{
			{{"$project", bson.D{{"h", bson.D{{"$toHashedIndexKey", "$" + field}}}}}},
		})

		for _, doc := range all(t, cur, err) {
			require.Equal(t, owner(t, chunks, doc.Lookup("h").Int64()), name, "%s", doc)
			require.NotContains(t, found, doc.Lookup("_id").String())
			found[doc.Lookup("_id").String()] = name
		}
	}

	return found
}

func TestUnorderedAndOrderedErrorsHaveTheClientsIndexes(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 20)
	coll := router(t, 1).Database(db).Collection("c")

	for _, ordered := range []bool{false, true} {
		_, err := coll.DeleteMany(t.Context(), bson.D{})
		require.NoError(t, err)

		docs := alternating(keys, 12)
		for _, dup := range []int{3, 11, 12, 20} {
			docs[dup] = docs[dup-2] // the same _id and key: the same shard
		}

		_, err = coll.InsertMany(opContext(t, opLimit), docs, options.InsertMany().SetOrdered(ordered))

		var failed mongo.BulkWriteException

		require.ErrorAs(t, err, &failed)

		var indexes []int
		for _, e := range failed.WriteErrors {
			require.Equal(t, 11000, e.Code)
			indexes = append(indexes, e.Index)
		}

		if ordered {
			require.Equal(t, []int{3}, indexes)
			require.Equal(t, int64(3), count(t, coll, bson.D{}), "nothing after the error, on any shard")
		} else {
			require.Equal(t, []int{3, 11, 12, 20}, indexes)
			require.Equal(t, int64(20), count(t, coll, bson.D{}))
		}
	}

	var models []mongo.WriteModel
	for i := range 25 {
		key := keys[shardNames()[i%3]][i/3+9-i/3%2]
		models = append(models, mongo.NewUpdateOneModel().SetUpsert(true).
			SetFilter(bson.D{{"k", key}, {"_id", fmt.Sprint("u", i)}}).SetUpdate(bson.D{{"$set", bson.D{{"u", i}}}}))
	}

	for i := 1; i < 25; i += 2 { // those of odd index are there
		f := models[i].(*mongo.UpdateOneModel).Filter.(bson.D)
		_, err := coll.InsertOne(t.Context(), f)
		require.NoError(t, err)
	}

	res, err := coll.BulkWrite(opContext(t, opLimit), models)
	require.NoError(t, err)
	require.Equal(t, int64(12), res.MatchedCount)
	require.Len(t, res.UpsertedIDs, 13)

	for i := int64(0); i < 25; i += 2 {
		require.Equal(t, fmt.Sprint("u", i), res.UpsertedIDs[i])
	}
}

// A batch of more statements than one shard command may hold is one command of the client.
func TestLargeBatches(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 1, db+".c", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)

	var docs []any
	for i := range 2500 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}

	docs[700] = docs[10]
	docs[2100] = docs[11]
	begin := time.Now()
	reply := ok(t, c.run(bson.D{{"insert", "c"}, {"ordered", false}, {"$db", db}, {"lsid", session()}, {"txnNumber", int64(1)}}, sequence{"documents", docs}))
	require.Equal(t, int32(2498), reply.Lookup("n").Int32())
	require.Less(t, time.Since(begin), 20*time.Second)

	errs, err := reply.Lookup("writeErrors").Array().Values()
	require.NoError(t, err)
	require.Len(t, errs, 2)
	require.Equal(t, int32(700), errs[0].Document().Lookup("index").Int32())
	require.Equal(t, int32(2100), errs[1].Document().Lookup("index").Int32())
}

// A client may fill a message to the last byte that hello allows, though it grows on its way to a shard.
func TestFullMessages(t *testing.T) {
	const full, n = 48_000_000, 60

	db := newDB(t)
	shardCollection(t, 1, db+".sharded", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)
	insert := func(doc bson.D) any { return append(doc, bson.E{Key: "k", Value: 1}) }
	update := func(doc bson.D) any {
		return bson.D{{"q", bson.D{{"k", 1}, doc[0]}}, {"u", bson.D{{"$set", doc[1:]}}}}
	}

	for _, coll := range []string{"sharded", "plain"} {
		for _, w := range []struct {
			command, field string
			statement      func(bson.D) any
		}{{"insert", "documents", insert}, {"update", "updates", update}} {
			body := bson.D{{w.command, coll}, {"$db", db}, {"lsid", session()}, {"txnNumber", int64(1)}}
			message := func(room int) []byte {
				var docs []any
				for i := range n {
					docs = append(docs, w.statement(bson.D{{"_id", i}, {"s", strings.Repeat(w.command[:1], room/n+room%n*(i/(n-1)))}}))
				}

				return c.msg(0, c.body(body), c.seq(sequence{w.field, docs}))
			}

			b := message(full - len(message(0)))
			require.Len(t, b, full)
			c.write(b)

			reply := ok(t, c.must().Body)
			require.Equal(t, int32(n), reply.Lookup("n").Int32(), "%s", reply)
		}

		require.Equal(t, int64(n), count(t, router(t, 1).Database(db).Collection(coll), bson.D{{"s", bson.D{{"$regex", "^u"}}}}))
	}
}
