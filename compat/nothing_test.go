package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// errorCode is the code of a reply or of its first statement that failed.
func errorCode(reply bson.Raw) int32 {
	if c, ok := reply.Lookup("code").AsInt64OK(); ok {
		return int32(c)
	}

	c, _ := reply.Lookup("writeErrors", "0", "code").AsInt64OK()

	return int32(c)
}

// What is wrong with a command is said where there is no collection, too.
func TestCommandsOnNothing(t *testing.T) {
	db := newDB(t)
	judge, routed := dialJudge(t), dialRaw(t, 0)
	bad := bson.D{{"x", bson.D{{"$bad", 1}}}}

	for _, tt := range []struct {
		want int32
		cmd  bson.D
	}{
		{0, bson.D{{"find", "c"}, {"filter", bson.D{{"x", 1}}}}},
		{2, bson.D{{"find", "c"}, {"filter", bad}}},
		{2, bson.D{{"find", "c"}, {"sort", bson.D{{"x", 5}}}, {"filter", bad}}},
		{31254, bson.D{{"find", "c"}, {"projection", bson.D{{"x", 1}, {"y", 0}}}}},
		{40415, bson.D{{"find", "c"}, {"frobnicate", 1}}},
		{0, bson.D{{"count", "c"}}},
		{2, bson.D{{"count", "c"}, {"query", bad}}},
		{0, bson.D{{"distinct", "c"}, {"key", "x"}}},
		{2, bson.D{{"distinct", "c"}, {"key", "x"}, {"query", bad}}},
		{0, bson.D{{"findAndModify", "c"}, {"query", bson.D{}}, {"remove", true}}},
		{9, bson.D{{"findAndModify", "c"}, {"query", bson.D{}}, {"update", bson.D{{"$frobnicate", 1}}}}},
		{0, bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{}}, {"u", bson.D{{"$set", bson.D{{"a", 1}}}}}}}}}},
		{9, bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{}}, {"u", bson.D{{"$frobnicate", 1}}}}}}}},
		{0, bson.D{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{}}, {"limit", 1}}}}}},
		{2, bson.D{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bad}, {"limit", 0}}}}}},
		{2, bson.D{{"aggregate", "c"}, {"pipeline", bson.A{bson.D{{"$match", bad}}}}, {"cursor", bson.D{}}}},
	} {
		cmd := append(tt.cmd, bson.E{Key: "$db", Value: db})
		want, got := judge.run(cmd), routed.run(cmd)
		require.Equal(t, tt.want, errorCode(want), "%v: %s", cmd, want)
		require.Equal(t, tt.want, errorCode(got), "%v: %s", cmd, got)
	}

	// The failure ends a transaction, as ever.
	lsid := session()
	statement := func(number int64, cmd ...bson.E) int32 {
		return errorCode(routed.run(append(cmd, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: number}, bson.E{Key: "autocommit", Value: false})))
	}
	update := bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{}}, {"u", bson.D{{"$frobnicate", 1}}}}}}, {"$db", db}, {"startTransaction", true}}
	commit := bson.D{{"commitTransaction", 1}, {"$db", "admin"}}

	require.Equal(t, int32(9), statement(1, update...))
	require.Equal(t, int32(251), statement(1, commit...))
	require.Equal(t, int32(2), statement(2, bson.E{Key: "find", Value: "c"}, bson.E{Key: "filter", Value: bad}, update[2], update[3]))
	require.Equal(t, int32(251), statement(2, commit...))

	names, err := router(t, 0).Database(db).ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Empty(t, names)
}
