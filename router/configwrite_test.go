package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestConfigUpdateThatIsRefused counts nothing of the statement.
func TestConfigUpdateThatIsRefused(t *testing.T) {
	t.Parallel()
	r := idleRouter(t, newStore(t, nowhere), "r:1", Options{})
	set := func(id string, fields ...bson.E) bson.D {
		return bson.D{e("q", bson.D{e("_id", id)}), e("u", bson.D{e("$set", bson.D(fields))}), e("upsert", true)}
	}
	op := &Op{Cmd: &wire.Command{}, Reply: &wire.Reply{}}
	op.Reply.Begin(nil)
	require.NoError(t, op.Cmd.Parse(doc(t, e("update", "settings"), e("$db", "config"), e("ordered", false), e("updates", bson.A{
		set("chunksize", e("value", 64)), set("chunksize", e("value", 5000)), set("automerge", e("enabled", "yes")), set("chunksize", e("value", 32)),
	}))))
	require.NoError(t, r.UpdateConfig(t.Context(), op, "settings"))
	var reply struct {
		N        int
		Modified int `bson:"nModified"`
		Upserted []struct{ Index int }
		Errors   []struct{ Index, Code int } `bson:"writeErrors"`
	}
	body, err := wire.ReplyBody(op.Reply.Finish(1, 1, 0, nil))
	require.NoError(t, err)
	require.NoError(t, bson.Unmarshal(body, &reply))
	require.Equal(t, 2, reply.N)
	require.Equal(t, 1, reply.Modified)
	require.Equal(t, []struct{ Index int }{{0}}, reply.Upserted)
	require.Equal(t, []struct{ Index, Code int }{{1, 121}, {2, 121}}, reply.Errors)
	require.EqualValues(t, 32, r.Snapshot().ChunkSize())
}

// TestConfigUpdateDropsNothing: what it does not do is refused, as what is wrong anywhere.
func TestConfigUpdateDropsNothing(t *testing.T) {
	t.Parallel()
	filter, plain := e("q", bson.D{e("_id", "chunksize")}), e("u", bson.D{e("$set", bson.D{e("value", 64)})})
	for name, c := range map[string]struct {
		stmt bson.D
		code mongoerr.Code
	}{
		"as it should be":  {bson.D{filter, plain, e("upsert", true), e("multi", true)}, 0},
		"unknown field":    {bson.D{filter, plain, e("odd", 1)}, 40415},
		"no update":        {bson.D{filter}, 40414},
		"collation":        {bson.D{filter, plain, e("collation", bson.D{e("locale", "en")})}, mongoerr.NotImplemented},
		"hint":             {bson.D{filter, plain, e("hint", "_id_")}, mongoerr.NotImplemented},
		"set and unset":    {bson.D{filter, e("u", bson.D{e("$set", bson.D{e("value", 1)}), e("$unset", bson.D{e("value", 1)})})}, mongoerr.ConflictingUpdateOperators},
		"another operator": {bson.D{filter, e("u", bson.D{e("$inc", bson.D{e("value", 1)})})}, mongoerr.NotImplemented},
	} {
		_, err := readConfigUpdate(doc(t, c.stmt...))
		if c.code == 0 {
			require.NoError(t, err, name)
			continue
		}
		requireCode(t, c.code, err)
	}
}
