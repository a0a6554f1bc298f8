package compat

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// withoutTimes leaves out of a write's reply what differs from time to time.
func withoutTimes(t *testing.T, reply bson.Raw) bson.D {
	t.Helper()

	elems, err := reply.Elements()
	require.NoError(t, err)

	out := bson.D{}

	for _, e := range elems {
		switch e.Key() {
		case "$clusterTime", "operationTime", "electionId", "opTime", "retriedStmtIds", "retriedStmtId":
		default:
			out = append(out, bson.E{Key: e.Key(), Value: e.Value().String()})
		}
	}

	return out
}

// A write that is repeated after its collection has moved gives the result of its first run and writes nothing: each kind of
// write, through any router, over several moves, also when the shard where it ran has nothing of the collection any more.
func TestMoveRetryableWrites(t *testing.T) {
	db := newMoving(t)
	coll := router(t, 0).Database(db).Collection("c")
	lsid := session()

	_, err := coll.InsertMany(opContext(t, opLimit), []any{
		bson.D{{"_id", 1}, {"u", 1}, {"n", 0}},
		bson.D{{"_id", 2}, {"u", 2}, {"n", 0}},
		bson.D{{"_id", 3}, {"u", 3}, {"n", 0}},
		bson.D{{"_id", 4}, {"u", 4}, {"n", 0}},
		bson.D{{"_id", 5}, {"u", 5}, {"n", 0}},
	})
	require.NoError(t, err)

	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}
	writes := []bson.D{
		{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", 10}, {"u", 10}}, bson.D{{"_id", 11}, {"u", 11}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 1}}}, {"u", inc}}}}},
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 20}, {"u", 20}}}, {"u", inc}, {"upsert", true}}, bson.D{{"q", bson.D{{"_id", 1}}}, {"u", inc}}}}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"_id", 2}}}, {"limit", 1}}, bson.D{{"q", bson.D{{"_id", 1000}}}, {"limit", 1}}}}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 3}}}, {"update", inc}, {"new", true}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 3}}}, {"update", inc}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 30}, {"u", 30}}}, {"update", inc}, {"upsert", true}, {"new", true}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 4}}}, {"remove", true}},
	}

	run := func(r, i int) bson.Raw {
		cmd := append(writes[i][:len(writes[i]):len(writes[i])], bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: int64(i + 1)})
		return ok(t, dialRaw(t, r).run(cmd))
	}

	// Sessions know their last number only, so each write is repeated over all moves before the next.
	for i := range writes {
		first := withoutTimes(t, run(0, i))
		home := homeOf(t, 0, db+".c")

		for round := range 2 {
			cur, err := coll.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
			before := all(t, cur, err)

			to := (home + round + 1) % shardCount
			require.NoError(t, moveTo(t, round, db+".c", to))

			if i%3 == 1 {
				aloneOn(t, db, "c", to)
			}

			for r := range routerCount {
				require.Equal(t, first, withoutTimes(t, run(r, i)), "%v at router %d, round %d", writes[i], r, round)
			}

			cur, err = coll.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
			require.Equal(t, before, all(t, cur, err), "%v", writes[i])
		}
	}

	// One number later it is another write.
	require.Equal(t, int32(1), ok(t, dialRaw(t, 1).run(bson.D{
		{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 1}}}, {"u", inc}}}}, {"$db", db}, {"lsid", lsid}, {"txnNumber", int64(len(writes) + 1)},
	})).Lookup("n").Int32())

	// A batch of which the first part ran before: the rest runs now.
	lsid = session()
	part := bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 5}}}, {"u", inc}}}}, {"$db", db}, {"lsid", lsid}, {"txnNumber", int64(1)}}
	ok(t, dialRaw(t, 0).run(part))
	require.NoError(t, moveTo(t, 0, db+".c", otherThan(homeOf(t, 0, db+".c"))))

	part[1].Value = append(part[1].Value.(bson.A), bson.D{{"q", bson.D{{"_id", 1}}}, {"u", inc}})
	reply := ok(t, dialRaw(t, 1).run(part))
	require.Equal(t, int32(2), reply.Lookup("n").Int32(), "%s", reply)

	var doc struct{ N int }
	require.NoError(t, coll.FindOne(t.Context(), bson.D{{"_id", 5}}).Decode(&doc))
	require.Equal(t, 1, doc.N)
	require.NoError(t, coll.FindOne(t.Context(), bson.D{{"_id", 1}}).Decode(&doc))
	require.Equal(t, 4, doc.N)
}

// A cursor that was opened before a move goes on to its end at the former shard, which keeps its copy for it.
func TestMoveKeepsCursors(t *testing.T) {
	db := newMoving(t)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")

	var docs []any
	for i := range 1000 {
		docs = append(docs, bson.D{{"_id", i}, {"u", i}})
	}

	_, err := coll.InsertMany(ctx, docs)
	require.NoError(t, err)
	_, err = router(t, 0).Database(db).Collection("one").InsertOne(ctx, bson.D{{"x", 1}})
	require.NoError(t, err)

	home := homeOf(t, 0, db+".c")
	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(10))
	require.NoError(t, err)
	require.True(t, cur.Next(ctx))

	require.NoError(t, moveTo(t, 1, db+".c", otherThan(home)))
	_, err = coll.InsertOne(ctx, bson.D{{"_id", 5000}, {"u", 5000}})
	require.NoError(t, err)

	// It cannot move back over what is read there.
	err = moveTo(t, 1, db+".c", home)
	require.Equal(t, 46, code(err), "%v", err)
	_, there := uuidOn(t, home, db, "c")
	require.True(t, there)

	n := 1
	for cur.Next(ctx) {
		n++
	}

	require.NoError(t, cur.Err())
	require.Equal(t, 1000, n)
	require.Equal(t, int64(1001), count(t, coll, bson.D{}))
	aloneOn(t, db, "c", otherThan(home))

	// Dropped with a copy left behind, nothing of it is left.
	cur, err = coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(10))
	require.NoError(t, err)
	require.NoError(t, moveTo(t, 1, db+".c", home))
	require.NoError(t, coll.Drop(ctx))
	require.Error(t, cur.All(ctx, &[]bson.Raw{}))

	for i := range shardCount {
		_, there := uuidOn(t, i, db, "c")
		require.False(t, there, "shard %d", i)
	}
}

// Transactions of before a move are waited for, or fail in a way by which their clients begin them anew; nothing is half seen.
func TestMoveAndTransactions(t *testing.T) {
	db := newMoving(t)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 1).Database(db).Collection("c")
	_, err := coll.InsertOne(ctx, bson.D{{"_id", 0}, {"u", 0}})
	require.NoError(t, err)

	home := homeOf(t, 0, db+".c")
	inTxn, s := begin(t, coll, bson.D{{"_id", 1}, {"u", 1}})
	done := make(chan error, 1)

	go func() { done <- moveTo(t, 0, db+".c", otherThan(home)) }()

	select {
	case err := <-done:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(2 * time.Second):
	}

	// Meanwhile everything goes on, in the transaction and beside it.
	_, err = coll.InsertOne(inTxn, bson.D{{"_id", 2}, {"u", 2}})
	require.NoError(t, err)
	_, err = coll.InsertOne(ctx, bson.D{{"_id", 3}, {"u", 3}})
	require.NoError(t, err)

	// DDL does not wait for the whole copy.
	_, err = coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"y", 1}}})
	require.Equal(t, 117, code(err), "%v", err)
	err = moveTo(t, 2, db+".c", home)
	require.Equal(t, 117, code(err), "%v", err)

	require.NoError(t, s.CommitTransaction(inTxn))
	require.NoError(t, <-done)
	require.Equal(t, int64(4), count(t, coll, bson.D{}))

	// A transaction that began on another collection cannot see it where it is now.
	other := router(t, 1).Database(db).Collection("other")
	_, err = other.InsertOne(ctx, bson.D{{"_id", 0}})
	require.NoError(t, err)
	require.NoError(t, moveTo(t, 0, db+".other", home))

	stopped := stopAt(t, victim, "copy")
	moved := stopped.begin(func() error { return moveTo(t, victim, db+".c", home) })

	// The collection is there, and empty.
	old, s2 := begin(t, other, bson.D{{"_id", 1}})

	stopped.release()
	require.NoError(t, <-moved)

	err = coll.FindOne(old, bson.D{{"_id", 0}}).Err()
	require.Equal(t, 246, code(err), "%v", err)
	require.True(t, err.(mongo.ServerError).HasErrorLabel("TransientTransactionError")) //nolint:errorlint // it is one
	require.NoError(t, s2.AbortTransaction(old))
	require.Equal(t, int64(4), count(t, coll, bson.D{}))

	again, s3 := begin(t, other, bson.D{{"_id", 2}})
	require.NoError(t, coll.FindOne(again, bson.D{{"_id", 0}}).Err())
	require.NoError(t, s3.CommitTransaction(again))
}

// Reads at a time before the move, and change streams from before it, say that they cannot; secondaries wait.
func TestMoveAndTimes(t *testing.T) {
	db := newMoving(t)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")
	_, err := coll.InsertOne(ctx, bson.D{{"_id", 0}, {"u", 0}})
	require.NoError(t, err)

	var reply bson.Raw
	require.NoError(t, router(t, 0).Database(db).RunCommand(ctx, bson.D{{"find", "c"}}).Decode(&reply))
	sec, inc := reply.Lookup("operationTime").Timestamp()
	before := bson.Timestamp{T: sec, I: inc}

	stream, err := coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetMaxAwaitTime(100*time.Millisecond))
	require.NoError(t, err)
	_, err = coll.InsertOne(ctx, bson.D{{"_id", 1}, {"u", 1}})
	require.NoError(t, err)
	require.True(t, stream.Next(ctx))

	token := stream.ResumeToken()

	require.NoError(t, moveTo(t, 1, db+".c", otherThan(homeOf(t, 0, db+".c"))))
	_, err = coll.InsertOne(ctx, bson.D{{"_id", 2}, {"u", 2}})
	require.NoError(t, err)

	// It sees nothing of the copy, nor of its end: it ends.
	require.False(t, stream.Next(ctx), "%s", stream.Current)
	require.Equal(t, 286, code(stream.Err()), "%v", stream.Err())

	_, err = coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(token))
	require.Equal(t, 286, code(err), "%v", err)
	_, err = coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetStartAtOperationTime(&before))
	require.Equal(t, 286, code(err), "%v", err)

	stream, err = coll.Watch(ctx, mongo.Pipeline{})
	require.NoError(t, err)
	_, err = coll.InsertOne(ctx, bson.D{{"_id", 3}, {"u", 3}})
	require.NoError(t, err)
	require.True(t, stream.Next(ctx))
	require.Equal(t, int32(3), stream.Current.Lookup("documentKey", "_id").Int32())
	require.NoError(t, stream.Close(ctx))

	for r := range routerCount {
		d := router(t, r).Database(db)
		err = d.RunCommand(ctx, bson.D{{"find", "c"}, {"readConcern", bson.D{{"level", "snapshot"}, {"atClusterTime", before}}}}).Err()
		require.Equal(t, 239, code(err), "%v", err)
		require.NoError(t, d.RunCommand(ctx, bson.D{{"find", "c"}, {"readConcern", bson.D{{"level", "snapshot"}}}}).Err())

		for _, level := range []string{"local", "majority", "available", ""} {
			rc := bson.D{{"afterClusterTime", before}}
			if level != "" {
				rc = bson.D{{"level", level}}
			}

			var reply bson.Raw
			require.NoError(t, d.RunCommand(ctx, bson.D{{"find", "c"}, {"readConcern", rc}}, options.RunCmd().SetReadPreference(readpref.SecondaryPreferred())).Decode(&reply), level)

			list, err := reply.Lookup("cursor", "firstBatch").Array().Values()
			require.NoError(t, err)
			require.Len(t, list, 4)
		}

		n, err := d.Collection("c", options.Collection().SetReadPreference(readpref.Nearest())).CountDocuments(context.Background(), bson.D{})
		require.NoError(t, err)
		require.Equal(t, int64(4), n)
	}
}
