package router

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Statement ids that would end a mongod or make it take one statement for another are
// refused.
func TestStatementIDs(t *testing.T) {
	for _, tt := range []struct {
		field string
		value any
		code  mongoerr.Code
	}{
		{"stmtIds", bson.A{int32(0), int32(1)}, 0},
		{"stmtIds", bson.A{int32(7), int32(3)}, 0},
		{"stmtIds", nil, 0},
		{"stmtIds", bson.A{int32(0), int32(0)}, mongoerr.BadValue},
		{"stmtIds", bson.A{int32(0), bson.D{{Key: "a", Value: int32(1)}}}, mongoerr.TypeMismatch},
		{"stmtIds", bson.A{int32(0), int64(1)}, mongoerr.TypeMismatch},
		{"stmtIds", bson.A{int32(0), int32(-1)}, mongoerr.BadValue},
		{"stmtIds", bson.A{int32(0)}, mongoerr.InvalidLength},
		{"stmtIds", bson.A{int32(0), int32(1), int32(2)}, mongoerr.InvalidLength},
		{"stmtIds", "x", mongoerr.TypeMismatch},
		{"stmtId", int32(5), 0},
		{"stmtId", "x", mongoerr.TypeMismatch},
		{"stmtId", int32(-1), mongoerr.BadValue},
		{"stmtId", int32(math.MaxInt32), mongoerr.BadValue},
	} {
		require.Equal(t, tt.code, mongoerr.CodeOf(readStmtIDs(writeOp(t, bson.E{Key: tt.field, Value: tt.value}), 2)), "%v", tt)
	}
	both := writeOp(t, bson.E{Key: "stmtIds", Value: bson.A{int32(0), int32(1)}}, bson.E{Key: "stmtId", Value: int32(0)})
	require.Equal(t, mongoerr.InvalidOptions, mongoerr.CodeOf(readStmtIDs(both, 2)))
	require.NoError(t, readStmtIDs(writeOp(t), 2))
}

func writeOp(t *testing.T, args ...bson.E) *Op {
	t.Helper()
	body, err := bson.Marshal(append(bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: "d"}}, args...))
	require.NoError(t, err)
	op := &Op{Cmd: &wire.Command{}}
	require.NoError(t, op.Cmd.Parse(body))
	return op
}
