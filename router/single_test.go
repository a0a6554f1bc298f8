package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// TestAttemptThatOthersHaveClosed: a router that was paused meets a mark in the place of its
// write. That is not to look like the write's result.
func TestAttemptThatOthersHaveClosed(t *testing.T) {
	t.Parallel()
	mark := bson.D{e("cursor", bson.D{e("firstBatch", bson.A{bson.D{e("_id", "mark")}}), e("id", int64(0)), e("ns", "x.y")}), e("ok", 1.0)}
	for _, c := range []struct {
		name   string
		answer bson.D // of the shard to the write
		marked bool
		n      int64
		cmd    []bson.E
	}{
		{"an update", bson.D{e("n", int32(1)), e("nModified", int32(1)), e("ok", 1.0)}, false, 1, []bson.E{e("update", "a"), e("updates", bson.A{bson.D{e("q", bson.D{}), e("u", bson.D{})}})}},
		{
			"an update that meets a mark",
			bson.D{e("n", int32(1)), e("nModified", int32(0)), e("upserted", bson.A{bson.D{e("index", int32(0)), e("_id", "mark")}}), e("retriedStmtIds", bson.A{int32(0)}), e("ok", 1.0)},
			true, 0,
			[]bson.E{e("update", "a"), e("updates", bson.A{bson.D{e("q", bson.D{}), e("u", bson.D{})}})},
		},
		{"a repeated delete", bson.D{e("n", int32(1)), e("retriedStmtIds", bson.A{int32(0)}), e("ok", 1.0)}, false, 1, []bson.E{e("delete", "a"), e("deletes", bson.A{bson.D{e("q", bson.D{}), e("limit", int32(1))}})}},
		{"a delete that meets a mark", bson.D{e("n", int32(1)), e("retriedStmtIds", bson.A{int32(0)}), e("ok", 1.0)}, true, 0, []bson.E{e("delete", "a"), e("deletes", bson.A{bson.D{e("q", bson.D{}), e("limit", int32(1))}})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := overShard(t, func(cmd wire.Doc) bson.D {
				switch el, _ := cmd.First(); string(el.Name) {
				case "update", "delete":
					return c.answer
				case "find":
					if c.marked {
						return mark
					}
					return emptyFind
				}
				return nil
			})
			var reply wire.Reply
			reply.Begin(nil)
			op := &Op{Cmd: &wire.Command{}, Reply: &reply, Buffers: new(wire.Buffers), Session: Session{ID: UUID{1}}, Write: true}
			retryable(op)
			require.NoError(t, op.Cmd.Parse(doc(t, append(c.cmd, e("$db", "d"))...)))
			kind := kindOf([]byte(c.cmd[0].Key))
			list, _, err := statements(op, kind.field)
			require.NoError(t, err)
			entry := enter(t, r)
			b := &batch{kind: kind, entry: entry, stmts: []statement{{doc: list, aim: aim{shards: []string{"s"}, way: waySingle}}}}
			var res writeResult
			w := r.singleOf(op, b, 0, &res)
			n, err := w.do.write(t.Context(), op, w, "s", doc(t))
			require.NoError(t, err)
			require.Equal(t, c.n, n)
			require.Equal(t, c.n, res.n)
			require.Empty(t, res.upserted)
			r.leave(entry)
		})
	}
}
