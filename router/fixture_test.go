package router

import (
	"context"
	"flag"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

var update = flag.Bool("update", false, "write the goldens anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// nowhere is a shard's address at which nobody listens.
const nowhere = "s/127.0.0.1:1"

func doc(tb testing.TB, elems ...bson.E) wire.Doc {
	tb.Helper()
	b, err := bson.Marshal(append(bson.D{}, elems...))
	require.NoError(tb, err)
	return wire.Doc(b)
}

func e(key string, value any) bson.E { return bson.E{Key: key, Value: value} }

// newRouter is a router over a store. It knows what is in the catalog, but runs only
// with startRouter.
func newRouter(t *testing.T, store catalog.Store, name string, o Options) *Router {
	t.Helper()
	o.Store, o.Name, o.Log = store, name, zerolog.New(io.Discard)
	r, err := New(t.Context(), o)
	require.NoError(t, err)
	return r
}

// idleRouter is a router that never runs: it is registered and silent.
func idleRouter(t *testing.T, store catalog.Store, name string, o Options) *Router {
	t.Helper()
	r := newRouter(t, store, name, o)
	t.Cleanup(func() { r.Close(context.Background()) })
	return r
}

// startRouter is a router that runs to the test's end, or until stop.
func startRouter(t *testing.T, store catalog.Store, name string, o Options) (r *Router, stop func()) {
	t.Helper()
	r = newRouter(t, store, name, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return r, stop
}

// row is an unsharded collection on a shard.
func row(ns, shard string) catalog.CollectionChunks {
	return catalog.CollectionChunks{
		Collection: catalog.Collection{
			NS: ns, UUID: uuid.NewSHA1(uuid.Nil, []byte(ns)), Kind: catalog.KindUnsharded, State: catalog.StateOpen, Epoch: bson.NewObjectID(),
		},
		Chunks: shardkey.SingleChunk(shard, 1),
	}
}

// newStore is a catalog with shard s at the given address and the collections d.a and
// d.b on it.
func newStore(t *testing.T, host string) *mem.Store {
	t.Helper()
	store := mem.New(mem.Options{})
	t.Cleanup(store.Close)
	_, err := store.Apply(t.Context(), catalog.Change{
		Shards:    []catalog.Shard{{ID: "s", Host: host, Weight: 1}},
		Databases: []catalog.Database{{Name: "d", Primary: "s", Placement: catalog.PlacementSpread}},
	})
	require.NoError(t, err)
	_, err = store.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{row("d.a", "s"), row("d.b", "s")}})
	require.NoError(t, err)
	return store
}

// setState opens or fences d.a behind the routers' backs and returns the version.
func setState(t *testing.T, store catalog.Store, state catalog.State, locks ...catalog.Lock) catalog.Version {
	t.Helper()
	c := row("d.a", "s").Collection
	c.State = state
	v, err := store.Apply(t.Context(), catalog.Change{Locks: locks, Rows: []catalog.Collection{c}})
	require.NoError(t, err)
	return v
}

// requireCode checks an error's code.
func requireCode(t *testing.T, want mongoerr.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, mongoerr.CodeOf(err), "%v", err)
}

// What a fakeShard may do instead of answering.
var (
	hangUp   = bson.D{e("hang up", true)}   // end the connection
	shutDown = bson.D{e("shut down", true)} // and take no new ones
)

// fakeShard is the primary of the replica set "s" that answers commands by a
// function; nil means ok.
func fakeShard(t *testing.T, answer func(cmd wire.Doc) bson.D) (host string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	hello := bson.D{
		e("isWritablePrimary", true), e("ismaster", true), e("helloOk", true), e("setName", "s"), e("setVersion", int32(1)),
		e("hosts", bson.A{addr}), e("me", addr), e("primary", addr), e("secondary", false),
		e("maxBsonObjectSize", int32(16777216)), e("maxMessageSizeBytes", int32(48000000)), e("maxWriteBatchSize", int32(100000)),
		e("logicalSessionTimeoutMinutes", int32(30)), e("minWireVersion", int32(0)), e("maxWireVersion", int32(17)), e("ok", 1.0),
	}
	var down atomic.Bool
	serve := func(c net.Conn) {
		defer c.Close()
		in := wire.NewReader(c, new(wire.Buffers))
		for {
			b, err := in.Next(wire.MaxMessageLen)
			if err != nil {
				return
			}
			h := wire.ParseHeader(b)
			var m wire.Msg
			var reply bson.D
			switch first, _ := command(b, &m); {
			case h.OpCode == wire.OpQuery, string(first.Name) == "hello", string(first.Name) == "isMaster":
				reply = hello
			default:
				if reply = answer(m.Body); reply == nil {
					reply = bson.D{e("ok", 1.0)}
				}
			}
			if reply[0].Key == shutDown[0].Key {
				down.Store(true)
			}
			if down.Load() || reply[0].Key == hangUp[0].Key {
				return
			}
			raw, err := bson.Marshal(reply)
			if err != nil {
				return
			}
			var out []byte
			if h.OpCode == wire.OpQuery {
				out = wire.AppendReplyStart(nil, 1, h.RequestID, 0)
			} else {
				out = wire.AppendMsgStart(nil, 1, h.RequestID, 0)
			}
			out = append(out, raw...)
			wire.SetLength(out)
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "s/" + addr
}

func command(b []byte, m *wire.Msg) (wire.Elem, bool) {
	if wire.ParseMsg(b, m) != nil {
		return wire.Elem{}, false
	}
	return m.Body.First()
}
