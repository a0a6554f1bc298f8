package commands

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
)

// TestStepDownOfAShardInDDL: what a shard says of its role in a write concern error is not
// said of the router, where drivers look for it.
func TestStepDownOfAShardInDDL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code, want int32
		name       string
	}{{189, 6, "HostUnreachable"}, {11602, 6, "HostUnreachable"}, {64, 64, "WriteConcernFailed"}} {
		body, err := bson.Marshal(bson.D{e("ok", 1.0), e("writeConcernError", bson.D{
			e("code", tt.code), e("codeName", "WriteConcernFailed"), e("errmsg", "no"), e("errInfo", bson.D{e("x", int32(1))}),
		})})
		require.NoError(t, err)
		var reply wire.Reply
		reply.Begin(nil)
		req := &request{Op: &router.Op{Reply: &reply}}
		require.NoError(t, req.rawReplies([]router.ShardReplies{{Shard: "s", Host: "s/h:1", Body: body}}))
		d, err := wire.ReplyBody(reply.Finish(0, 0, 0, nil))
		require.NoError(t, err)
		var got bson.D
		require.NoError(t, bson.Unmarshal(bson.Raw(d).Lookup("writeConcernError").Document(), &got))
		require.Equal(t, bson.D{
			e("code", tt.want), e("codeName", tt.name), e("errmsg", "no at s"), e("errInfo", bson.D{e("x", int32(1))}),
		}, got)
	}
}
