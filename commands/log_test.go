package commands

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
)

// TestLogLine is all that a line about a slow operation says.
func TestLogLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := &Handler{opts: Options{Log: zerolog.New(&out), Slow: time.Millisecond}}
	body, err := bson.Marshal(bson.D{e("find", "c"), e("$db", "d")})
	require.NoError(t, err)
	var reply wire.Reply
	reply.Begin(nil)
	reply.Doc("cursor", func() []byte {
		b, err := bson.Marshal(bson.D{e("firstBatch", bson.A{bson.D{}, bson.D{}, bson.D{}}), e("id", int64(0))})
		require.NoError(t, err)
		return b
	}())
	op := router.Op{Cmd: &wire.Command{}, Reply: &reply, Conn: 7, Trace: router.Trace{
		Why: target.WhyAll, Asked: []router.Asked{{Shard: "a", Took: 3 * time.Millisecond}, {Shard: "b", Took: 4 * time.Millisecond}},
	}}
	require.NoError(t, op.Cmd.Parse(body))
	h.logLine(&request{Op: &op, row: &Command{}}, 0, nil, time.Second)
	var line struct {
		Level, Command, DB, Collection, Why string
		Took                                float64
		Documents                           int
		Scattered                           bool
		Shards                              []struct {
			Shard string
			Took  float64
		}
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), out.String())
	require.Greater(t, line.Took, 999.0, "milliseconds")
	line.Took = 0
	require.Equal(t, "info find d c all", line.Level+" "+line.Command+" "+line.DB+" "+line.Collection+" "+line.Why)
	require.Equal(t, 3, line.Documents)
	require.True(t, line.Scattered)
	require.Equal(t, "b", line.Shards[1].Shard)
	require.InDelta(t, 4.0, line.Shards[1].Took, 0)
}
