package compat

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// busy writes to one shard until stop is called, so that its clock runs ahead of the others'.
func busy(t *testing.T, coll *mongo.Collection, key int32) (stop func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)

	go func() {
		for {
			_, err := coll.UpdateOne(ctx, bson.D{{"k", key}}, bson.D{{"$inc", bson.D{{"noise", 1}}}})
			if ctx.Err() != nil {
				done <- nil
				return
			}

			if err != nil {
				done <- err
				return
			}
		}
	}()

	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// A causal session that wrote on the busy shard must be able to read on an idle one, whose own clock is far behind, and the
// other way round; the session may go on at another router.
func TestCausalSessionOverBusyAndIdleShards(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	keys := keysOn(t, db+".c", 3)
	busyKey, idleKey, noiseKey := keys["shard_0"][0], keys["shard_1"][0], keys["shard_0"][1]

	colls := [2]*mongo.Collection{}
	for r := range colls {
		colls[r] = router(t, r).Database(db).Collection("c")
	}

	_, err := colls[0].InsertMany(t.Context(), []any{
		bson.D{{"_id", "busy"}, {"k", busyKey}, {"n", 0}},
		bson.D{{"_id", "idle"}, {"k", idleKey}, {"n", 0}},
		bson.D{{"_id", "noise"}, {"k", noiseKey}},
	})
	require.NoError(t, err)

	defer busy(t, colls[1], noiseKey)()

	begin := time.Now()

	for i := range 1000 {
		from, to := i%2, (i/2)%2 // the same router, and the other
		advanceAndCheck(t, colls[from], colls[to], busyKey, idleKey, i+1)
	}

	t.Logf("1000 rounds in %v", time.Since(begin).Round(time.Millisecond))
}

// advanceAndCheck writes at one router and reads at another in causally related sessions.
func advanceAndCheck(t *testing.T, from, to *mongo.Collection, busyKey, idleKey int32, n int) {
	t.Helper()

	ctx := opContext(t, 20*time.Second)
	client := from.Database().Client()

	writer, err := client.StartSession(options.Session().SetCausalConsistency(true))
	require.NoError(t, err)

	defer writer.EndSession(ctx)

	wctx := mongo.NewSessionContext(ctx, writer)
	_, err = from.UpdateOne(wctx, bson.D{{"k", idleKey}}, bson.D{{"$set", bson.D{{"n", n}}}})
	require.NoError(t, err)
	_, err = from.UpdateOne(wctx, bson.D{{"k", busyKey}}, bson.D{{"$set", bson.D{{"n", n}}}})
	require.NoError(t, err)
	require.NotNil(t, writer.OperationTime())

	reader := writer
	if to != from {
		reader, err = to.Database().Client().StartSession(options.Session().SetCausalConsistency(true))
		require.NoError(t, err)

		defer reader.EndSession(ctx)

		require.NoError(t, reader.AdvanceClusterTime(writer.ClusterTime()))
		require.NoError(t, reader.AdvanceOperationTime(writer.OperationTime()))
	}

	rctx := mongo.NewSessionContext(ctx, reader)

	for _, key := range []int32{idleKey, busyKey} {
		var doc struct{ N int }
		require.NoError(t, to.FindOne(rctx, bson.D{{"k", key}}).Decode(&doc), "round %d", n)
		require.Equal(t, n, doc.N, "round %d sees its own write", n)
	}

	sum, err := to.CountDocuments(rctx, bson.D{{"n", n}})
	require.NoError(t, err)
	require.Equal(t, int64(2), sum, "round %d over all shards", n)
}

// Times only grow, whichever router and shard answers.
func TestClusterTimeIsMonotonic(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	conns := [2]*rawConn{dialRaw(t, 0), dialRaw(t, 1)}

	var last bson.D
	var lastT, lastI uint32

	for i := range 300 {
		cmd := bson.D{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", i}, {"k", i}}}}, {"$db", db}}
		if last != nil {
			cmd = append(cmd, bson.E{Key: "$clusterTime", Value: last})
		}

		reply := ok(t, conns[i%2].run(cmd))
		ts, inc := reply.Lookup("$clusterTime", "clusterTime").Timestamp()
		require.False(t, ts < lastT || ts == lastT && inc < lastI, "cluster time went back: %s", reply)

		opT, opI := reply.Lookup("operationTime").Timestamp()
		require.False(t, opT > ts || opT == ts && opI > inc, "operationTime is beyond the cluster time: %s", reply)

		lastT, lastI = ts, inc
		last = nil
		require.NoError(t, bson.Unmarshal(reply.Lookup("$clusterTime").Document(), &last))
	}

	// A time that nobody gave out is not believed: the cluster's clock must not jump because a client says so.
	far := bson.D{{"clusterTime", bson.Timestamp{T: lastT + 1000000, I: 1}}, {"signature", bson.D{
		{"hash", bson.Binary{Data: make([]byte, 20)}}, {"keyId", int64(0)},
	}}}
	reply := conns[0].run(bson.D{{"ping", 1}, {"$db", "admin"}, {"$clusterTime", far}})
	ts, _ := reply.Lookup("$clusterTime", "clusterTime").Timestamp()
	require.Less(t, ts, lastT+1000000, "%s", reply)
}
