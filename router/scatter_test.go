package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// faulty is a value that cannot be sent.
type faulty struct{}

// MarshalBSON implements bson.Marshaler.
func (faulty) MarshalBSON() ([]byte, error) { panic("a fault") }

// TestPanicOnTheWayToAShard is the error of that operation, and no end of the router.
func TestPanicOnTheWayToAShard(t *testing.T) {
	t.Parallel()
	r := overShard(t, func(wire.Doc) bson.D { return nil })
	list := r.OnAllShards(t.Context(), "d", bson.D{e("x", faulty{})})
	require.Len(t, list, 1)
	require.Equal(t, "s", list[0].Shard)
	requireCode(t, mongoerr.InternalError, list[0].Err)

	op := &Op{Cmd: &wire.Command{}, Reply: &wire.Reply{}, Buffers: new(wire.Buffers)}
	answers := r.scatter(t.Context(), op, []string{"s"}, func([]byte, int) []byte { panic("a fault") })
	requireCode(t, mongoerr.InternalError, answers[0].err)
	r.releaseAll(op, answers)
}
