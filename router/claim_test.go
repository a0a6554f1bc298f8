package router

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
)

// TestClaimDuringAStepDown: noting a claim is tried again; the client has no second try, as
// it gets a statement's error.
func TestClaimDuringAStepDown(t *testing.T) {
	t.Parallel()
	var tries atomic.Int32
	host := fakeShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "find":
			return bson.D{e("cursor", bson.D{
				e("firstBatch", bson.A{bson.D{e("_id", int32(1)), e("k", int32(1))}}), e("id", int64(0)), e("ns", "d.h"),
			}), e("ok", 1.0)}
		case "findAndModify":
			if tries.Add(1) == 1 {
				return failure(10107)
			}
			one := bson.D{e("$eq", int32(1))}
			return bson.D{e("value", bson.D{e("choice", bson.D{
				e("attempt", int32(0)), e("shard", "t"), e("filter", bson.D{e("_id", one), e("k", one)}),
			})}), e("ok", 1.0)}
		case "update":
			return bson.D{e("n", int32(1)), e("nModified", int32(1)), e("ok", 1.0)}
		}
		return nil
	})
	store := newStore(t, host)
	key, err := shardkey.ParsePattern(bson.Raw(doc(t, e("k", "hashed"))))
	require.NoError(t, err)
	c := row("d.h", "s")
	c.Kind, c.Key = catalog.KindSharded, key.Raw()
	c.Chunks = shardkey.InitialChunks(key, 4, []string{"s", "t"}, "s", 1)
	_, err = store.Apply(t.Context(), catalog.Change{
		Shards: []catalog.Shard{{ID: "t", Host: host, Weight: 1}}, Put: []catalog.CollectionChunks{c},
	})
	require.NoError(t, err)
	r, _ := startRouter(t, store, "r:1", Options{})
	eventually(t, "the primaries", func() bool { return r.Shard("s").HasPrimary() && r.Shard("t").HasPrimary() })
	reply, failed := do(t, r, retryable, e("update", "h"), e("updates", bson.A{
		bson.D{e("q", bson.D{e("x", int32(1))}), e("u", bson.D{e("$set", bson.D{e("y", int32(1))})})},
	}))
	require.Nil(t, failed)
	require.Equal(t, e("n", int32(1)), reply[0], "%v", reply)
	require.Equal(t, int32(2), tries.Load())
}
