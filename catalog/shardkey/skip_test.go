package shardkey

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestFieldLen(t *testing.T) {
	for _, l := range append(readGolden(t, "bson_order.jsonl"), readGolden(t, "hashed_keys.jsonl")...) {
		key := AppendOrdered(nil, l.typ, l.value)
		require.Equal(t, len(key), FieldLen(append(key, After, 1, 2)), l.JSON)
		for i := range key {
			require.Equal(t, -1, FieldLen(key[:i]), "%s up to %d", l.JSON, i)
		}
	}
	for _, v := range []any{
		bson.DBPointer{DB: "x"},
		bson.Undefined{},
		dec("-1E+400"), "a\x00b",
		bson.CodeWithScope{Code: "a\x00", Scope: bson.D{{Key: "q", Value: bson.A{int32(1), "x"}}}},
	} {
		typ, value := marshal(t, v)
		key := AppendOrdered(nil, typ, value)
		require.Equal(t, len(key), FieldLen(append(key, 0)), "%v", v)
	}
	require.Equal(t, 9, FieldLen(AppendHash(nil, -1)))
	require.Equal(t, -1, FieldLen([]byte{classEnd}))
}
