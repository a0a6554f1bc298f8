package router

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// TestLostWriteStaysInFlight: a write whose reply was lost may still run, whatever became
// of later attempts.
func TestLostWriteStaysInFlight(t *testing.T) {
	t.Parallel()
	for _, end := range []bson.D{shutDown, failure(11602)} { // nothing more is sent, or it is refused
		var again atomic.Bool
		host := fakeShard(t, func(cmd wire.Doc) bson.D {
			switch el, _ := cmd.First(); {
			case string(el.Name) == "aggregate":
				return bson.D{e("ok", 0.0), e("code", int32(1))} // $currentOp does not help
			case string(el.Name) != "insert":
				return nil
			case again.Swap(true), end[0].Key == shutDown[0].Key:
				return end
			}
			return hangUp
		})
		r, _ := startRouter(t, newStore(t, host), "r:1", Options{RetryTimeout: 500 * time.Millisecond})
		eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
		_, err := do(t, r, retryable, oneInsert...)
		require.NotNil(t, err)
		require.Equal(t, int64(1), r.snap.Load().Entries["d.a"].inflight.Load())
	}
}

// TestLostWriteIsFoundByItsConnection: other operations of its session are left alone.
func TestLostWriteIsFoundByItsConnection(t *testing.T) {
	t.Parallel()
	asked := make(chan bson.Raw, 1)
	var killed atomic.Int32
	r := overShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "insert":
			return hangUp
		case "aggregate":
			select {
			case asked <- append(bson.Raw(nil), cmd...):
				return bson.D{e("cursor", bson.D{
					e("firstBatch", bson.A{bson.D{e("opid", int32(7))}}), e("id", int64(0)), e("ns", "admin.$cmd.aggregate"),
				}), e("ok", 1.0)}
			default:
			}
		case "killOp":
			op, _ := cmd.Lookup("op")
			n, _ := op.Int64()
			killed.Store(int32(n))
		}
		return nil
	})
	_, err := do(t, r, nil, oneInsert...)
	require.NotNil(t, err)
	match := (<-asked).Lookup("pipeline", "1", "$match").Document()
	require.Equal(t, bson.TypeBinary, match.Lookup("lsid.id").Type)
	conns, lerr := match.Lookup("connectionId", "$in").Array().Values()
	require.NoError(t, lerr)
	require.Len(t, conns, 1)
	require.Positive(t, conns[0].AsInt64())
	eventually(t, "it is killed", func() bool { return killed.Load() == 7 })
}

// TestRepeatedWriteIsNotLost: the shard has answered for it.
func TestRepeatedWriteIsNotLost(t *testing.T) {
	t.Parallel()
	var again atomic.Bool
	r := overShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) != "insert" {
			return nil
		}
		if !again.Swap(true) {
			return hangUp
		}
		return bson.D{e("n", int32(1)), e("ok", 1.0)}
	})
	_, err := do(t, r, retryable, oneInsert...)
	require.Nil(t, err)
	require.Zero(t, r.snap.Load().Entries["d.a"].inflight.Load())
}
