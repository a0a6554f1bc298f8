package commands

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// fields are a document's names and types, in order.
func fields(t *testing.T, d bson.Raw) (list []string) {
	t.Helper()
	elems, err := d.Elements()
	require.NoError(t, err)
	for _, el := range elems {
		list = append(list, el.Key()+" "+el.Value().Type.String())
	}
	return list
}

func TestHello(t *testing.T) {
	t.Parallel()
	c := connect(t)
	rest := []string{
		"msg string", "topologyVersion embedded document", "maxBsonObjectSize 32-bit integer", "maxMessageSizeBytes 32-bit integer",
		"maxWriteBatchSize 32-bit integer", "localTime UTC datetime", "logicalSessionTimeoutMinutes 32-bit integer",
		"connectionId 32-bit integer", "minWireVersion 32-bit integer", "maxWireVersion 32-bit integer", "ok double",
	}
	for name, first := range map[string]string{"hello": "isWritablePrimary", "isMaster": "ismaster", "ismaster": "ismaster"} {
		d := c.run("d", e(name, int32(1)))
		require.Equal(t, append([]string{first + " boolean"}, rest...), fields(t, d), name)
		require.Equal(t, "isdbgrid", d.Lookup("msg").StringValue())
		require.Equal(t, int32(17), d.Lookup("maxWireVersion").Int32())
		require.Equal(t, []string{"processId objectID", "counter 64-bit integer"}, fields(t, d.Lookup("topologyVersion").Document()))

		d = c.run("d", e(name, int32(1)), e("helloOk", true))
		require.True(t, d.Lookup("helloOk").Boolean())
		require.Equal(t, "helloOk boolean", fields(t, d)[3])
		for _, no := range []string{"setName", "hosts", "primary", "me", "secondary"} {
			_, err := d.LookupErr(no)
			require.Error(t, err, "%s would make a driver take it for a member of a replica set", no)
		}
	}
}

// TestHelloCompression: of the client's compressors those that the router has, in the
// client's order; where there is none, the field is not there.
func TestHelloCompression(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for _, with := range []struct{ ask, get any }{
		{bson.A{"zlib", "snappy", "noop", "zstd", "lz4", 1}, []string{"zlib", "snappy", "zstd"}},
		{bson.A{"none"}, nil},
		{bson.A{}, nil},
		{"snappy", nil},
	} {
		d := c.run("admin", e("hello", int32(1)), e("compression", with.ask))
		got, err := d.LookupErr("compression")
		if with.get == nil {
			require.Error(t, err)
			continue
		}
		var list []string
		require.NoError(t, got.Unmarshal(&list))
		require.Equal(t, with.get, list)
	}
}

func TestHelloByOpQuery(t *testing.T) {
	t.Parallel()
	c := connect(t)
	ask := func(ns string, cmd bson.D) bson.Raw {
		body, err := bson.Marshal(cmd)
		require.NoError(t, err)
		msg := append(wire.AppendHeader(nil, 1, 0, wire.OpQuery), 0, 0, 0, 0)
		msg = append(append(msg, ns...), 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
		c.send(append(msg, body...))
		b, err := c.in.Next(wire.MaxMessageLen)
		require.NoError(t, err)
		require.Equal(t, wire.OpReply, wire.ParseHeader(b).OpCode)
		return slices.Clone(bson.Raw(b[36:]))
	}
	require.True(t, ask("admin.$cmd", bson.D{e("isMaster", int32(1))}).Lookup("ismaster").Boolean())
	require.True(t, ask("d.$cmd", bson.D{e("hello", int32(1))}).Lookup("isWritablePrimary").Boolean())
	require.Zero(t, code(t, ask("admin.$cmd", bson.D{e("buildinfo", int32(1))})))
	for _, cmd := range []string{"ping", "find", "frobnicate"} {
		require.Equal(t, int32(352), code(t, ask("admin.$cmd", bson.D{e(cmd, int32(1))})), cmd)
	}
	require.Equal(t, int32(5739101), ask("d.c", bson.D{}).Lookup("code").Int32())
}

func TestHelloWaitRefuses(t *testing.T) {
	t.Parallel()
	c := connect(t)
	version := c.run("admin", e("hello", int32(1))).Lookup("topologyVersion")
	negative := bson.D{e("processId", bson.NewObjectID()), e("counter", int64(-1))}
	for _, tt := range []struct {
		name string
		args []bson.E
		want int32
	}{
		{"version alone", []bson.E{e("topologyVersion", version)}, 51760},
		{"wait alone", []bson.E{e("maxAwaitTimeMS", int32(5))}, 51760},
		{"both null", []bson.E{e("topologyVersion", nil), e("maxAwaitTimeMS", nil)}, 0},
		{"negative wait", []bson.E{e("topologyVersion", version), e("maxAwaitTimeMS", int32(-5))}, 51759},
		{"wait is no number", []bson.E{e("topologyVersion", version), e("maxAwaitTimeMS", "5")}, 51759},
		{"negative counter", []bson.E{e("topologyVersion", negative), e("maxAwaitTimeMS", int32(5))}, 51758},
		{"no counter", []bson.E{e("topologyVersion", bson.D{}), e("maxAwaitTimeMS", int32(5))}, 51758},
		{"version is no object", []bson.E{e("topologyVersion", int32(1)), e("maxAwaitTimeMS", int32(5))}, 14},
		{"no wait", []bson.E{e("topologyVersion", version), e("maxAwaitTimeMS", int32(0))}, 0},
		{"short wait", []bson.E{e("topologyVersion", version), e("maxAwaitTimeMS", int32(1))}, 0},
		{"another process", []bson.E{
			e("topologyVersion", bson.D{e("processId", bson.NewObjectID()), e("counter", int64(0))}), e("maxAwaitTimeMS", int64(1)<<40),
		}, 0},
	} {
		require.Equal(t, tt.want, code(t, c.run("admin", append([]bson.E{e("hello", int32(1))}, tt.args...)...)), tt.name)
	}
}

// TestHelloStreams where the client allows it, and to the router's end.
func TestHelloStreams(t *testing.T) {
	t.Parallel()
	c := connect(t)
	waiting := bson.D{
		e("hello", int32(1)), e("topologyVersion", c.run("admin", e("hello", int32(1))).Lookup("topologyVersion")), e("maxAwaitTimeMS", int32(1)),
	}
	c.command(0, "admin", waiting)
	m, _ := c.reply()
	require.False(t, m.MoreToCome(), "not allowed")
	c.command(wire.FlagExhaustAllowed, "admin", bson.D{e("hello", int32(1))})
	m, _ = c.reply()
	require.False(t, m.MoreToCome(), "nothing to wait for")

	c.command(wire.FlagExhaustAllowed, "admin", waiting)
	last := int32(1)
	for range 3 {
		m, d := c.reply()
		require.Zero(t, code(t, d))
		require.True(t, m.MoreToCome())
		require.Equal(t, last, m.ResponseTo)
		last = m.RequestID
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stop() }()
	for more := true; more; {
		m, d := c.reply()
		require.Zero(t, code(t, d))
		more = m.MoreToCome()
	}
	<-stopped
}
