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

// TestLostWriteIsFoundByItsConnection: what runs on it is killed, and while it is there it
// may have the write yet to read; other operations of its session are left alone.
func TestLostWriteIsFoundByItsConnection(t *testing.T) {
	t.Parallel()
	ops := func(list ...any) bson.D {
		return bson.D{e("cursor", bson.D{e("firstBatch", bson.A(list)), e("id", int64(0)), e("ns", "admin.$cmd.aggregate")}), e("ok", 1.0)}
	}
	var asked, killed atomic.Int32
	names := make(chan string, 10)
	idle := make(chan struct{})
	r := overShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "insert":
			return hangUp
		case "aggregate":
			list, _ := bson.Raw(cmd).Lookup("pipeline", "1", "$match", "appName", "$in").Array().Values()
			if len(list) != 1 {
				return nil
			}
			switch asked.Add(1) {
			case 1:
				names <- list[0].StringValue()
				return ops(bson.D{e("opid", int32(7)), e("active", true)})
			case 2:
				names <- list[0].StringValue()
				<-idle
				return ops(bson.D{e("active", false)})
			}
			return ops()
		case "killOp":
			op, _ := cmd.Lookup("op")
			n, _ := op.Int64()
			killed.Add(int32(n))
		}
		return nil
	})
	_, err := do(t, r, nil, oneInsert...)
	require.NotNil(t, err)
	name := <-names
	require.Greater(t, len(name), 20)
	require.Equal(t, name, <-names)
	require.Equal(t, int32(7), killed.Load())
	entry := r.snap.Load().Entries["d.a"]
	require.Equal(t, int64(1), entry.inflight.Load())
	close(idle)
	eventually(t, "it is gone", func() bool { return entry.inflight.Load() == 0 })
	require.Equal(t, int32(7), killed.Load(), "an idle connection is not killed")
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
