package compat

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// openOnShards counts the cursors that are open on a collection over all shards.
func openOnShards(t testing.TB, ns string) (n int) {
	t.Helper()

	for i := range shardCount {
		cur, err := shard(t, i).Database("admin").Aggregate(t.Context(), bson.A{
			bson.D{{"$currentOp", bson.D{{"allUsers", true}, {"idleCursors", true}}}},
			bson.D{{"$match", bson.D{{"ns", ns}, {"cursor", bson.D{{"$exists", true}}}}}},
		})
		n += len(all(t, cur, err))
	}

	return n
}

// TestCursorsOfAClientThatLeaves: what nobody can ask for any more is closed on the shards.
func TestCursorsOfAClientThatLeaves(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	var docs []any
	for i := range 200 {
		docs = append(docs, bson.D{{"_id", i}})
	}

	_, err := router(t, 0).Database(db).Collection("c").InsertMany(t.Context(), docs)
	require.NoError(t, err)

	closed := func(why string) {
		t.Helper()
		eventually(t, opLimit, why, func() error {
			if n := openOnShards(t, db+".c"); n > 0 {
				return fmt.Errorf("%d are open", n)
			}

			return nil
		})
	}
	find := func(c *rawConn, more ...bson.E) bson.Raw {
		t.Helper()
		return ok(t, c.run(append(bson.D{{"find", "c"}, {"batchSize", 2}, {"$db", db}}, more...)))
	}

	// Without a session of its own: with its connection.
	c := dialRaw(t, 0)
	require.NotZero(t, find(c).Lookup("cursor", "id").Int64())
	require.NotZero(t, find(c, bson.E{Key: "sort", Value: bson.D{{"_id", 1}}}).Lookup("cursor", "id").Int64())
	require.Equal(t, 2*shardCount, openOnShards(t, db+".c"))
	require.NoError(t, c.Close())
	closed("its connection has ended")

	// With one: with the session, not with the connection.
	c = dialRaw(t, 0)
	lsid := session()
	id := find(c, bson.E{Key: "lsid", Value: lsid}).Lookup("cursor", "id").Int64()
	require.NoError(t, c.Close())

	c = dialRaw(t, 0)
	more := bson.D{{"getMore", id}, {"collection", "c"}, {"batchSize", 2}, {"lsid", lsid}, {"$db", db}}
	require.Len(t, batch(t, ok(t, c.run(more)), "nextBatch"), 2)
	ok(t, c.run(bson.D{{"endSessions", bson.A{lsid}}, {"$db", "admin"}}))
	closed("its session has ended")

	// When it is done, killed, or has its limit.
	require.Zero(t, find(c, bson.E{Key: "limit", Value: 2}).Lookup("cursor", "id").Int64())
	require.Zero(t, find(c, bson.E{Key: "singleBatch", Value: true}).Lookup("cursor", "id").Int64())
	closed("there is no more to come")

	id = find(c).Lookup("cursor", "id").Int64()
	ok(t, c.run(bson.D{{"killCursors", "c"}, {"cursors", bson.A{id}}, {"$db", db}}))
	closed("it was killed")
	refused(t, c.run(bson.D{{"getMore", id}, {"collection", "c"}, {"$db", db}}), 43, "CursorNotFound")
}

// TestReadsOfAClientThatLeaves: what runs on the shards for a client ends with its connection; a write goes on to its end.
func TestReadsOfAClientThatLeaves(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	var docs []any
	for i := range 1000 {
		docs = append(docs, bson.D{{"_id", i}})
	}

	_, err := router(t, 0).Database(db).Collection("c").InsertMany(t.Context(), docs)
	require.NoError(t, err)

	// Of each shard's documents, one takes a second: minutes in all.
	slow := bson.D{{"$where", "sleep(1000) || true"}}
	running := func() (n int) {
		for i := range shardCount {
			cur, err := shard(t, i).Database("admin").Aggregate(t.Context(), bson.A{
				bson.D{{"$currentOp", bson.D{{"allUsers", true}}}}, bson.D{{"$match", bson.D{{"ns", db + ".c"}, {"active", true}}}},
			})
			n += len(all(t, cur, err))
		}

		return n
	}
	becomes := func(want int, what string) {
		t.Helper()
		eventually(t, opLimit, what, func() error {
			if n := running(); n != want {
				return fmt.Errorf("%d run", n)
			}

			return nil
		})
	}
	leave := func(cmd bson.D) *rawConn {
		c := dialRaw(t, 0)
		c.write(c.msg(0, c.body(append(cmd, bson.E{Key: "$db", Value: db}))))

		return c
	}

	for _, cmd := range []bson.D{
		{{"find", "c"}, {"filter", slow}},
		{{"find", "c"}, {"filter", append(bson.D{{"_id", bson.D{{"$gte", 0}}}}, slow...)}, {"sort", bson.D{{"_id", 1}}}, {"lsid", session()}},
		{{"aggregate", "c"}, {"pipeline", bson.A{bson.D{{"$match", bson.D{{"$expr", bson.D{{"$function", bson.D{{"body", "function() { sleep(1000); return true }"}, {"args", bson.A{}}, {"lang", "js"}}}}}}}}}}, {"cursor", bson.D{}}},
		{{"count", "c"}, {"query", slow}},
		{{"distinct", "c"}, {"key", "_id"}, {"query", slow}},
	} {
		c := leave(cmd)
		becomes(shardCount, "it runs on all shards")
		require.NoError(t, c.Close())
		becomes(0, fmt.Sprintf("%v ends with its client", cmd))
	}

	// One shard, and a getMore.
	c := dialRaw(t, 0)
	first := ok(t, c.run(bson.D{{"find", "c"}, {"filter", slow}, {"batchSize", 0}, {"$db", db}}))
	c.write(c.msg(0, c.body(bson.D{{"getMore", first.Lookup("cursor", "id").Int64()}, {"collection", "c"}, {"$db", db}})))
	becomes(1, "the getMore runs")
	require.NoError(t, c.Close())
	becomes(0, "the getMore ends with its client")

	// A write is done, whether its client hears of it or not.
	c = leave(bson.D{{"update", "c"}, {"updates", bson.A{bson.D{
		{"q", bson.D{{"_id", 7}, {"$where", "sleep(3000) || true"}}}, {"u", bson.D{{"$set", bson.D{{"done", true}}}}},
	}}}})
	becomes(1, "the update runs")
	require.NoError(t, c.Close())
	eventually(t, opLimit, "the update is done", func() error {
		if n := count(t, router(t, 0).Database(db).Collection("c"), bson.D{{"done", true}}); n != 1 {
			return fmt.Errorf("%d are", n)
		}

		return nil
	})
}
