package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestCursorCommandsAreStrict: getMore and killCursors take and refuse what they do at a mongod.
func TestCursorCommandsAreStrict(t *testing.T) {
	judge, routed := dialJudge(t), dialRaw(t, 0)
	one := int64(1)

	for _, cmd := range []bson.D{
		{{"getMore", 1}, {"collection", "c"}},
		{{"getMore", 1.0}, {"collection", "c"}},
		{{"getMore", "x"}, {"collection", "c"}},
		{{"getMore", nil}, {"collection", "c"}},
		{{"getMore", one}},
		{{"getMore", one}, {"collection", nil}},
		{{"getMore", one}, {"collection", 5}},
		{{"getMore", one}, {"collection", ""}},
		{{"getMore", one}, {"collection", "c"}, {"batchSize", "x"}},
		{{"getMore", one}, {"collection", "c"}, {"batchSize", 1.5}},
		{{"getMore", one}, {"collection", "c"}, {"batchSize", -1}},
		{{"getMore", one}, {"collection", "c"}, {"batchSize", nil}},
		{{"getMore", one}, {"collection", "c"}, {"maxTimeMS", "x"}},
		{{"getMore", one}, {"collection", "c"}, {"zork", 1}},
		{{"getMore", one}, {"collection", "c"}, {"comment", "x"}},
		{{"killCursors", "c"}, {"cursors", bson.A{1}}},
		{{"killCursors", "c"}, {"cursors", bson.A{1.0}}},
		{{"killCursors", "c"}, {"cursors", bson.A{one, "x"}}},
		{{"killCursors", "c"}, {"cursors", bson.A{}}},
		{{"killCursors", "c"}, {"cursors", bson.A{one, int64(0)}}},
		{{"killCursors", "c"}, {"cursors", 5}},
		{{"killCursors", "c"}, {"cursors", nil}},
		{{"killCursors", "c"}},
		{{"killCursors", 5}, {"cursors", bson.A{one}}},
		{{"killCursors", ""}, {"cursors", bson.A{one}}},
		{{"killCursors", "c"}, {"cursors", bson.A{one}}, {"zork", 1}},
	} {
		cmd = append(cmd, bson.E{Key: "$db", Value: "d"})
		want, got := judge.run(cmd), routed.run(cmd)
		sameError(t, want, got, cmd)
		require.Equal(t, want.Lookup("cursorsNotFound"), got.Lookup("cursorsNotFound"), "%v", cmd)
	}
}

// TestCursorKeepsItsAPI: a getMore that declares another API version than the command that made the cursor is refused, on one shard
// and on all, and the cursor stays.
func TestCursorKeepsItsAPI(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	judge, routed := dialJudge(t), dialRaw(t, 0)

	for _, c := range []*rawConn{judge, routed} {
		ok(t, c.run(bson.D{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", 1}}, bson.D{{"_id", 2}}, bson.D{{"_id", 3}}, bson.D{{"_id", 4}}}}, {"$db", db}}))
	}

	v1 := bson.D{{"apiVersion", "1"}}
	apis := []bson.D{nil, v1, join(v1, bson.D{{"apiStrict", true}}), join(v1, bson.D{{"apiStrict", false}}), join(v1, bson.D{{"apiDeprecationErrors", true}})}

	for _, find := range []bson.D{{{"find", "c"}}, {{"find", "c"}, {"sort", bson.D{{"_id", 1}}}}, {{"find", "c"}, {"filter", bson.D{{"_id", 1}}}}} {
		for _, first := range apis {
			for _, second := range apis {
				var replies []bson.Raw

				for _, c := range []*rawConn{judge, routed} {
					open := ok(t, c.run(join(find, bson.D{{"batchSize", 0}, {"$db", db}}, first)))
					more := bson.D{{"getMore", open.Lookup("cursor", "id").Int64()}, {"collection", "c"}, {"batchSize", 1}, {"$db", db}}
					replies = append(replies, c.run(join(more, second)))

					if errorCode(replies[len(replies)-1]) != 0 {
						require.Len(t, batch(t, ok(t, c.run(join(more, first))), "nextBatch"), 1, "the cursor is there")
					}
				}

				require.Equal(t, errorCode(replies[0]), errorCode(replies[1]), "%v after %v: %s, %s", second, first, replies[0], replies[1])
				require.Equal(t, replies[0].Lookup("errmsg"), replies[1].Lookup("errmsg"))
			}
		}
	}
}
