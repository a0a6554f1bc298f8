package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
)

// TestTrace: the log can tell whom an operation asked, why, and how long each took.
func TestTrace(t *testing.T) {
	t.Parallel()
	r := overShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) == "find" {
			return emptyFind
		}
		return nil
	})
	var op *Op
	_, err := do(t, r, func(o *Op) { op = o }, e("find", "a"))
	require.Nil(t, err)
	require.Len(t, op.Trace.Asked, 1)
	require.Equal(t, "s", op.Trace.Asked[0].Shard)
	require.Positive(t, op.Trace.Asked[0].Took)
	require.False(t, op.Trace.Scattered())

	r.scatter(t.Context(), op, []string{"s", "missing"}, func(dst []byte, _ int) []byte { return r.appendMessage(dst, op, &patch{}) })
	require.Len(t, op.Trace.Asked, 2)
	require.False(t, op.Trace.Scattered(), "a shard that is not there was not asked")
	op.Trace.Asked[1].Shard = "t"
	require.True(t, op.Trace.Scattered())
	op.Trace.Why = target.WhyAll
	require.Equal(t, Trace{Asked: []Asked{}}, op.Trace.Cleared())
}
