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
	"github.com/shardgate/shardgate/cmd/shardgate/dev/nullshard"
	"github.com/shardgate/shardgate/wire"
)

// nullShard answers every command at once: the router alone is measured (PERF.md,
// "CPU per operation against a backend that answers at once").
func nullShard(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { l.Close() })
	addr := l.Addr().String()
	s, err := nullshard.New("null", addr)
	require.NoError(tb, err)
	go s.Serve(l)
	return addr
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
	f := finder{r: benchRouter(b, 10_000)}
	msg := findMessage(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := f.find(context.Background(), msg); err != nil {
			b.Fatal(err)
		}
	}
}

// finder does all of a point find, with what a connection keeps between commands.
type finder struct {
	r     *Router
	pool  wire.Buffers
	m     wire.Msg
	cmd   wire.Command
	op    Op
	reply wire.Reply
}

func (f *finder) find(ctx context.Context, msg []byte) error {
	buf := f.pool.Get(4096)
	f.reply.Begin(*buf)
	if err := wire.ParseMsg(msg, &f.m); err != nil {
		return err
	}
	if err := f.cmd.Parse(f.m.Body); err != nil {
		return err
	}
	f.op = Op{Msg: &f.m, Cmd: &f.cmd, Reply: &f.reply, Buffers: &f.pool, Trace: f.op.Trace.Cleared()}
	if err := f.r.Find(ctx, &f.op); err != nil {
		return err
	}
	f.reply.Finish(1, f.m.RequestID, 0, f.r.Clock.Signed())
	*buf = f.reply.Elems
	f.pool.Put(buf)
	return nil
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
