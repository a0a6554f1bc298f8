package compat

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// newHalves makes a collection that is sharded by k, with documents: those below 100 are on shard 0, the others on shard 1.
func newHalves(t *testing.T, docs int) (db string, low, high chunkDoc) {
	t.Helper()

	db = newDB(t)
	ctx := opContext(t, 2*opLimit)
	ns := db + ".c"

	shardCollection(t, 0, ns, bson.D{{"k", 1}})
	admin(t, 0, bson.D{{"split", ns}, {"middle", bson.D{{"k", 100}}}})

	for i, c := range chunksOf(t, 0, ns) {
		if shardIndex(t, c.Shard) != i {
			require.NoError(t, moveChunk(t, 0, ns, &c, i))
		}
	}

	inPlace(t, db, "c", bson.D{{"k", 1}})

	var list []any
	for i := range docs {
		list = append(list, bson.D{{"_id", i}, {"k", i % 200}, {"n", 0}})
	}

	if docs > 0 {
		_, err := router(t, 0).Database(db).Collection("c").InsertMany(ctx, list)
		require.NoError(t, err)
	}

	chunks := chunksOf(t, 0, ns)

	return db, chunks[0], chunks[1]
}

// A cursor and an update of many that were opened just before a chunk comes to a shard see nothing of the copy there: the move
// waits for them.
func TestMoveChunkWaitsForOlder(t *testing.T) {
	const docs = 400

	db, low, _ := newHalves(t, docs)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 1).Database(db).Collection("c")

	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(10))
	require.NoError(t, err)
	require.True(t, cur.Next(ctx))

	updated := make(chan int64, 1)

	go func() {
		res, err := router(t, 2).Database(db).Collection("c").UpdateMany(ctx, bson.D{{"$where", "sleep(5) || true"}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
		if err != nil {
			t.Errorf("update many: %v", err)
		}

		updated <- res.MatchedCount
	}()

	eventually(t, recoverLimit, "the update runs", func() error {
		return shard(t, 1).Database(db).Collection("c").FindOne(ctx, bson.D{{"n", 1}}).Err()
	})

	done := make(chan error, 1)

	go func() { done <- moveChunk(t, 0, db+".c", &low, 1) }()

	require.Equal(t, int64(docs), <-updated)

	select {
	case err := <-done:
		require.Fail(t, "it did not wait for the cursor", "%v", err)
	case <-time.After(2 * time.Second):
	}

	n, err := shard(t, 1).Database(db).Collection("c").CountDocuments(ctx, bson.D{})
	require.NoError(t, err)
	require.Equal(t, int64(docs/2), n, "nothing is copied yet")

	seen := map[int32]bool{cur.Current.Lookup("_id").Int32(): true}
	for cur.Next(ctx) {
		require.False(t, seen[cur.Current.Lookup("_id").Int32()], "%s twice", cur.Current)
		seen[cur.Current.Lookup("_id").Int32()] = true
	}

	require.NoError(t, cur.Err())
	require.Len(t, seen, docs)
	require.NoError(t, <-done)
	require.Equal(t, int64(docs), count(t, coll, bson.D{{"n", 1}}))
	require.Equal(t, docs, inPlace(t, db, "c", bson.D{{"k", 1}}))
}

// Two documents with one _id on two shards cannot come to one, and neither is lost. What only was in the way for a moment does
// not matter.
func TestMoveChunkTwins(t *testing.T) {
	db, low, _ := newHalves(t, 0)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")

	_, err := coll.InsertMany(ctx, []any{bson.D{{"_id", 1}, {"k", 1}}, bson.D{{"_id", 1}, {"k", 150}}, bson.D{{"_id", 2}, {"k", 2}}})
	require.NoError(t, err)

	err = moveChunk(t, 1, db+".c", &low, 1)
	require.Equal(t, 11000, code(err), "%v", err)
	require.Equal(t, 3, inPlace(t, db, "c", bson.D{{"k", 1}}))

	_, err = coll.DeleteOne(ctx, bson.D{{"_id", 1}, {"k", 150}})
	require.NoError(t, err)

	// A twin that comes while its namesake has been copied already takes the copy's place; the move notices.
	stopped := func(do func()) error {
		stopped := stopAt(t, victim, "follow")
		result := stopped.begin(func() error { return moveChunk(t, victim, db+".c", &low, 1) })

		do()
		stopped.release()

		return <-result
	}

	err = stopped(func() {
		_, err := coll.InsertOne(ctx, bson.D{{"_id", 2}, {"k", 120}})
		require.NoError(t, err)
	})
	require.Error(t, err)
	require.Equal(t, 3, inPlace(t, db, "c", bson.D{{"k", 1}}))
	require.Equal(t, int64(2), count(t, coll, bson.D{{"_id", 2}}))

	_, err = coll.DeleteOne(ctx, bson.D{{"_id", 2}, {"k", 120}})
	require.NoError(t, err)

	// A client gives a document a key of the other shard, by hand: its copy there makes room.
	require.NoError(t, stopped(func() {
		_, err := coll.DeleteOne(ctx, bson.D{{"_id", 2}, {"k", 2}})
		require.NoError(t, err)
		_, err = coll.InsertOne(ctx, bson.D{{"_id", 2}, {"k", 130}})
		require.NoError(t, err)
	}))
	require.Equal(t, 2, inPlace(t, db, "c", bson.D{{"k", 1}}))
	require.Equal(t, int64(1), count(t, coll, bson.D{{"_id", 2}, {"k", 130}}))
}

// A write that is repeated after its chunk has moved gives the result of its first run and writes nothing: of each kind, with
// and without the shard key, through any router, over several moves.
func TestMoveChunkRetryableWrites(t *testing.T) {
	db, low, _ := newHalves(t, 40)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")
	lsid := session()

	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}
	writes := []bson.D{
		{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", 100}, {"k", 1}}, bson.D{{"_id", 101}, {"k", 150}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 1}, {"k", 1}}}, {"u", inc}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 2}}}, {"u", inc}}, bson.D{{"q", bson.D{{"_id", 3}, {"k", 3}}}, {"u", inc}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"k", bson.D{{"$gte", 4}, {"$lt", 6}}}}}, {"u", inc}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 200}, {"k", 20}}}, {"u", inc}, {"upsert", true}}, bson.D{{"q", bson.D{{"_id", 201}}}, {"u", bson.D{{"$set", bson.D{{"k", 21}}}}}, {"upsert", true}}}}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"_id", 6}, {"k", 6}}}, {"limit", 1}}, bson.D{{"q", bson.D{{"_id", 7}}}, {"limit", 1}}}}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 8}}}, {"update", inc}, {"new", true}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 9}, {"k", 9}}}, {"update", inc}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 10}}}, {"remove", true}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 11}, {"k", 11}}}, {"u", bson.D{{"$set", bson.D{{"k", 12}}}, {"$inc", bson.D{{"n", 1}}}}}}}}},
	}

	run := func(r, i int) bson.D {
		cmd := append(writes[i][:len(writes[i]):len(writes[i])], bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: int64(i + 1)})
		return withoutTimes(t, ok(t, dialRaw(t, r).run(cmd)))
	}
	content := func() []bson.Raw {
		cur, err := coll.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
		return all(t, cur, err)
	}

	for i := range writes {
		first := run(0, i)
		before := content()

		for round := range 2 {
			to := (shardIndex(t, chunksOf(t, 0, db+".c")[0].Shard) + 1 + i%2) % shardCount
			require.NoError(t, moveChunk(t, round, db+".c", &low, to))

			for r := range routerCount {
				require.Equal(t, first, run(r, i), "%v at router %d, round %d", writes[i], r, round)
			}

			require.Equal(t, before, content(), "%v", writes[i])
		}
	}

	inPlace(t, db, "c", bson.D{{"k", 1}})
}

// What reads at a time, or began, before a chunk has moved is told so; secondaries wait.
func TestMoveChunkAndTimes(t *testing.T) {
	db, low, _ := newHalves(t, 20)
	ctx := opContext(t, 3*opLimit)
	d := router(t, 1).Database(db)

	var reply bson.Raw
	require.NoError(t, d.RunCommand(ctx, bson.D{{"find", "c"}}).Decode(&reply))
	sec, ord := reply.Lookup("operationTime").Timestamp()
	before := bson.Timestamp{T: sec, I: ord}

	_, err := d.Collection("other").InsertOne(ctx, bson.D{{"_id", 0}})
	require.NoError(t, err)
	require.NoError(t, moveTo(t, 0, db+".other", 1))
	inTxn, s := begin(t, d.Collection("other"), bson.D{{"_id", 1}})
	require.NoError(t, moveChunk(t, 0, db+".c", &low, 1))

	err = d.Collection("c").FindOne(inTxn, bson.D{{"_id", 1}, {"k", 1}}).Err()
	require.Equal(t, 246, code(err), "%v", err)
	require.True(t, err.(mongo.ServerError).HasErrorLabel("TransientTransactionError")) //nolint:errorlint // it is one
	require.NoError(t, s.AbortTransaction(inTxn))

	err = d.RunCommand(ctx, bson.D{{"find", "c"}, {"readConcern", bson.D{{"level", "snapshot"}, {"atClusterTime", before}}}}).Err()
	require.Equal(t, 239, code(err), "%v", err)
}
