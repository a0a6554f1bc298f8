package router

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
)

// nullShard answers every command at once: the router alone is measured (PERF.md,
// "CPU per operation against a backend that answers at once"). It speaks just enough
// of hello for the driver's monitor.
func nullShard(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { l.Close() })
	addr := l.Addr().String()
	hello, err := bson.Marshal(bson.D{
		{Key: "isWritablePrimary", Value: true},
		{Key: "ismaster", Value: true},
		{Key: "helloOk", Value: true},
		{Key: "setName", Value: "null"},
		{Key: "setVersion", Value: int32(1)},
		{Key: "hosts", Value: bson.A{addr}},
		{Key: "me", Value: addr},
		{Key: "primary", Value: addr},
		{Key: "secondary", Value: false},
		{Key: "maxBsonObjectSize", Value: int32(16777216)},
		{Key: "maxMessageSizeBytes", Value: int32(48000000)},
		{Key: "maxWriteBatchSize", Value: int32(100000)},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)},
		{Key: "minWireVersion", Value: int32(0)},
		{Key: "maxWireVersion", Value: int32(17)},
		{Key: "ok", Value: 1.0},
	})
	require.NoError(tb, err)
	find, err := bson.Marshal(bson.D{
		{Key: "cursor", Value: bson.D{
			{Key: "firstBatch", Value: bson.A{bson.D{{Key: "_id", Value: int32(5)}, {Key: "name", Value: "a document of some size"}}}},
			{Key: "id", Value: int64(0)},
			{Key: "ns", Value: "bench.c"},
		}},
		{Key: "ok", Value: 1.0},
		{Key: "$clusterTime", Value: bson.D{
			{Key: "clusterTime", Value: bson.Timestamp{T: 1700000000, I: 1}},
			{Key: "signature", Value: bson.D{{Key: "hash", Value: make([]byte, 20)}, {Key: "keyId", Value: int64(0)}}},
		}},
		{Key: "operationTime", Value: bson.Timestamp{T: 1700000000, I: 1}},
	})
	require.NoError(tb, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go nullConn(c, hello, find)
		}
	}()
	return addr
}

func nullConn(c net.Conn, hello, find []byte) {
	defer c.Close()
	var pool wire.Buffers
	in := wire.NewReader(c, &pool)
	for {
		b, err := in.Next(wire.MaxMessageLen)
		if err != nil {
			return
		}
		h := wire.ParseHeader(b)
		var out []byte
		if h.OpCode == wire.OpQuery {
			out = wire.AppendReplyStart(nil, 1, h.RequestID, 0)
			out = append(out, hello...)
		} else {
			body := find
			if e, ok := wire.Doc(b[wire.MsgBodyAt:]).First(); ok && string(e.Name) != "find" {
				body = hello
			}
			out = wire.AppendMsgStart(nil, 1, h.RequestID, 0)
			out = append(out, body...)
		}
		wire.SetLength(out)
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// benchRouter is a router over one null shard with a hashed collection bench.c.
func benchRouter(tb testing.TB, chunks int) *Router {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	store := mem.New(mem.Options{})
	addr := nullShard(tb)
	r, err := New(ctx, Options{Store: store, Name: "bench:1", Log: zerolog.New(io.Discard), Backend: backend.Config{}})
	require.NoError(tb, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-done })
	_, err = store.Apply(ctx, catalog.Change{
		Shards:    []catalog.Shard{{ID: "null", Host: "null/" + addr, Weight: 1}},
		Databases: []catalog.Database{{Name: "bench", Primary: "null", Placement: catalog.PlacementSpread}},
	})
	require.NoError(tb, err)
	key, err := bson.Marshal(bson.D{{Key: "_id", Value: "hashed"}})
	require.NoError(tb, err)
	p, err := shardkey.ParsePattern(key)
	require.NoError(tb, err)
	_, err = store.Apply(ctx, catalog.Change{Put: []catalog.CollectionChunks{{
		Collection: catalog.Collection{NS: "bench.c", Kind: catalog.KindSharded, State: catalog.StateOpen, Key: key},
		Chunks:     shardkey.InitialChunks(p, chunks, []string{"null"}, "null", 1),
	}}})
	require.NoError(tb, err)
	require.NoError(tb, r.Refresh(ctx))
	require.Eventually(tb, func() bool { return r.Shard("null") != nil && r.Shard("null").HasPrimary() }, 10*time.Second, time.Millisecond)
	return r
}

// findMessage is a point find as a driver sends it.
func findMessage(tb testing.TB) []byte {
	tb.Helper()
	body, err := bson.Marshal(bson.D{
		{Key: "find", Value: "c"},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.ObjectID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}}},
		{Key: "limit", Value: int64(1)},
		{Key: "singleBatch", Value: true},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		{Key: "$clusterTime", Value: bson.D{
			{Key: "clusterTime", Value: bson.Timestamp{T: 1700000000, I: 1}},
			{Key: "signature", Value: bson.D{{Key: "hash", Value: make([]byte, 20)}, {Key: "keyId", Value: int64(1)}}},
		}},
		{Key: "$db", Value: "bench"},
	})
	require.NoError(tb, err)
	msg := wire.AppendMsgStart(nil, 7, 0, 0)
	msg = append(msg, body...)
	wire.SetLength(msg)
	return msg
}

// BenchmarkPointFind is the whole way of a point find through the router: parse,
// route, gate, patch, round trip to a null shard, adopt the reply.
func BenchmarkPointFind(b *testing.B) {
	r := benchRouter(b, 10_000)
	msg := findMessage(b)
	ctx := context.Background()
	var pool wire.Buffers
	var m wire.Msg
	var cmd wire.Command
	var op Op
	var reply wire.Reply
	b.ReportAllocs()
	for b.Loop() {
		buf := pool.Get(4096)
		reply.Begin(*buf)
		if err := wire.ParseMsg(msg, &m); err != nil {
			b.Fatal(err)
		}
		if err := cmd.Parse(m.Body); err != nil {
			b.Fatal(err)
		}
		op = Op{Msg: &m, Cmd: &cmd, Reply: &reply, Buffers: &pool}
		if err := r.Find(ctx, &op); err != nil {
			b.Fatal(err)
		}
		reply.Finish(1, m.RequestID, 0, r.Clock.Signed())
		*buf = reply.Elems
		pool.Put(buf)
	}
}

// TestPointFindPlanAllocatesNothing keeps the point operations' way free of garbage.
func TestPointFindPlanAllocatesNothing(t *testing.T) {
	r := benchRouter(t, 100)
	msg := findMessage(t)
	ctx := context.Background()
	p := planner{r: r, out: make([]byte, 0, 4096)}
	allocs := testing.AllocsPerRun(100, func() {
		require.NoError(t, p.plan(ctx, msg))
	})
	require.Zero(t, allocs)
}

// planner does everything of a point find but the network, with what a connection
// keeps between commands.
type planner struct {
	r   *Router
	m   wire.Msg
	cmd wire.Command
	op  Op
	out []byte
}

func (p *planner) plan(ctx context.Context, msg []byte) error {
	if err := wire.ParseMsg(msg, &p.m); err != nil {
		return err
	}
	if err := p.cmd.Parse(p.m.Body); err != nil {
		return err
	}
	p.op = Op{Msg: &p.m, Cmd: &p.cmd}
	s, err := p.r.admit(ctx, &p.op)
	if err != nil {
		return err
	}
	defer p.r.leave(s.entry)
	filter, err := filterOf(&p.op, "filter")
	if err != nil {
		return err
	}
	if err := p.r.route(&s, &p.op, filter); err != nil {
		return err
	}
	p.out = p.r.appendMessage(p.out[:0], &p.op, &patch{})
	return nil
}

// BenchmarkPointFindPlan is the same without the network: parse, route, gate, patch.
func BenchmarkPointFindPlan(b *testing.B) {
	r := benchRouter(b, 10_000)
	msg := findMessage(b)
	ctx := context.Background()
	p := planner{r: r, out: make([]byte, 0, 4096)}
	b.ReportAllocs()
	for b.Loop() {
		if err := p.plan(ctx, msg); err != nil {
			b.Fatal(err)
		}
	}
}
