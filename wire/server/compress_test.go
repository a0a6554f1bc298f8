package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// TestCompressedInKind: each reply is compressed as its message was, whatever hello agreed on.
func TestCompressedInKind(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{}
	s := start(t, Options{Handler: f})
	c := s.dial(t)
	for i, how := range []wire.Compressor{
		wire.CompressorSnappy, 0, wire.CompressorZlib, wire.CompressorZstd, wire.CompressorZstd, 0,
	} {
		msg := request(t, int32(i), 0, bson.D{{Key: "ping", Value: int32(1)}})
		if how == 0 {
			c.send(msg)
			require.Equal(t, int32(i), c.reply().ResponseTo)
			continue
		}
		packed, err := wire.AppendCompressed(nil, msg, how)
		require.NoError(t, err)
		c.send(packed)
		b, err := c.r.Next(wire.MaxMessageLen)
		require.NoError(t, err)
		require.Equal(t, wire.OpCompressed, wire.ParseHeader(b).OpCode)
		require.Equal(t, int32(i), wire.ParseHeader(b).ResponseTo)
		plain, by, err := wire.Decompress(nil, b, wire.MaxMessageLen)
		require.NoError(t, err)
		require.Equal(t, how, by)
		var m wire.Msg
		require.NoError(t, wire.ParseMsg(plain, &m))
		require.Equal(t, int64(1), number(t, m.Body, "ok"))
	}
	require.Equal(t, int64(6), f.calls.Load())
}

// TestCompressedQuery: a mongod answers an old hello, too, in kind.
func TestCompressedQuery(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Handler: &fakeHandler{}})
	c := s.dial(t)
	packed, err := wire.AppendCompressed(nil, opQuery(t, "admin.$cmd", bson.D{{Key: "isMaster", Value: int32(1)}}), wire.CompressorSnappy)
	require.NoError(t, err)
	c.send(packed)
	b, err := c.r.Next(wire.MaxMessageLen)
	require.NoError(t, err)
	plain, _, err := wire.Decompress(nil, b, wire.MaxMessageLen)
	require.NoError(t, err)
	require.Equal(t, wire.OpReply, wire.ParseHeader(plain).OpCode)
}
