package router

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// wrapped is a Store whose Load can be made to lie or fail.
type wrapped struct {
	catalog.Store

	load atomic.Pointer[func(*catalog.Delta, error) (*catalog.Delta, error)]
}

func (w *wrapped) Load(ctx context.Context, after catalog.Version) (*catalog.Delta, error) {
	d, err := w.Store.Load(ctx, after)
	if f := w.load.Load(); f != nil {
		return (*f)(d, err)
	}
	return d, err
}

// TestNewThatFailsLeavesNoRow: a router that is registered and not there would hold
// every DDL up.
func TestNewThatFailsLeavesNoRow(t *testing.T) {
	t.Parallel()
	store := &wrapped{Store: newStore(t, nowhere)}
	fail := func(*catalog.Delta, error) (*catalog.Delta, error) { return nil, catalog.ErrUnavailable }
	store.load.Store(&fail)
	_, err := New(t.Context(), Options{Store: store, Name: "r:1"})
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	routers, err := store.Routers(t.Context())
	require.NoError(t, err)
	require.Empty(t, routers)
}

// deafStore loses the reply of Register.
type deafStore struct{ catalog.Store }

func (s deafStore) Register(ctx context.Context, row catalog.Router) (self, replaced *catalog.Router, err error) {
	if _, _, err = s.Store.Register(ctx, row); err != nil {
		return nil, nil, err
	}
	return nil, nil, catalog.ErrUnavailable
}

// TestRegistrationWhoseReplyWasLost holds nothing up but what it inherited.
func TestRegistrationWhoseReplyWasLost(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	inherited := []catalog.ShardUser{{Shard: "s", User: "u"}}
	_, _, err := store.Register(t.Context(), catalog.Router{Name: "r:1", Incarnation: "first", Users: inherited})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = New(ctx, Options{Store: deafStore{store}, Name: "r:1", Log: zerolog.Nop()})
	cancel()
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	require.Equal(t, inherited, rowOf(t, store, "r:1").Users)
	r, _ := startRouter(t, store, "r:2", Options{BarrierTimeout: time.Second})
	require.NoError(t, r.EnableSharding(t.Context(), "new", ""))
	requireCode(t, 46, r.barrier(t.Context(), 1, "d.a"))
}

// TestRunThatIsOverAtOnce closes all the same.
func TestRunThatIsOverAtOnce(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r := newRouter(t, store, "r:1", Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.Run(ctx))
	routers, err := store.Routers(t.Context())
	require.NoError(t, err)
	require.Empty(t, routers)
}

// TestStopDoesNotWaitForADeadShard: the shard's login was never done, nor a predecessor
// shut out of it.
func TestStopDoesNotWaitForADeadShard(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"without users": {}, "with users": withAuth()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t, nowhere)
			_, _, err := store.Register(t.Context(), catalog.Router{Incarnation: "first", Name: "r:1"})
			require.NoError(t, err)
			_, stop := startRouter(t, store, "r:1", o)
			start := time.Now()
			stop()
			require.Less(t, time.Since(start), 10*time.Second)
		})
	}
}

func TestCatalogAway(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{})
	store.SetAvailable(false)
	r.reload.signal()
	eventually(t, "the router notices", r.CatalogDown)
	r.leave(enter(t, r))
	for _, err := range []error{
		r.EnableSharding(t.Context(), "new", ""),
		r.Create(t.Context(), "d.new", nil, false),
		r.CreateImplicitly(t.Context(), "d.new"),
	} {
		requireCode(t, 133, err)
		require.ErrorContains(t, err, "catalog")
	}
	require.NoError(t, r.CreateImplicitly(t.Context(), "d.a"), "it is known")
	store.SetAvailable(true)
	eventually(t, "the router notices", func() bool { return !r.CatalogDown() })
	require.NoError(t, r.EnableSharding(t.Context(), "new", ""))
}

// TestCatalogThatWentBackStopsDDL: reads and writes go on by the newest state seen.
func TestCatalogThatWentBackStopsDDL(t *testing.T) {
	t.Parallel()
	store := &wrapped{Store: newStore(t, nowhere)}
	r, _ := startRouter(t, store, "r:1", Options{})
	seen := r.Snapshot()
	back := func(*catalog.Delta, error) (*catalog.Delta, error) {
		return &catalog.Delta{Version: 1, Full: true}, nil
	}
	store.load.Store(&back)
	requireCode(t, 133, r.Refresh(t.Context()))
	require.Same(t, seen, r.Snapshot())
	r.leave(enter(t, r))
	requireCode(t, 133, r.EnableSharding(t.Context(), "new", ""))
}

// TestCatalogIsAnotherOne: its id or its history differs, whatever its version.
func TestCatalogIsAnotherOne(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(d *catalog.Delta){
		"the version went back":  func(d *catalog.Delta) { d.Version = 1 },
		"the timeline went back": func(d *catalog.Delta) { d.Timeline = 1; d.Version += 5 },
		"another cluster's":      func(d *catalog.Delta) { d.Cluster = "other"; d.Version += 5 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &wrapped{Store: newStore(t, nowhere)}
			second := func(d *catalog.Delta, err error) (*catalog.Delta, error) { d.Timeline = 2; return d, err }
			store.load.Store(&second)
			r := idleRouter(t, store, "r:1", Options{})
			require.NoError(t, r.tick(t.Context()))
			setState(t, store, catalog.StateFenced)
			seen := r.Snapshot()
			other := func(d *catalog.Delta, err error) (*catalog.Delta, error) { d.Timeline = 2; lie(d); return d, err }
			store.load.Store(&other)
			requireCode(t, 133, r.withLock(t.Context(), "d.a", "test", func(catalog.Lock) error { t.Error("runs"); return nil }))
			store.load.Store(&second)
			requireCode(t, 133, r.Refresh(t.Context()))
			require.NoError(t, r.tick(t.Context()))
			require.Same(t, seen, r.Snapshot())
			require.False(t, r.CatalogDown())

			// Its row is as it was once: what it acts by is no state of this catalog.
			again := func() {
				require.NoError(t, store.Deregister(t.Context(), r.Self().Incarnation))
				require.NoError(t, r.syncMu.lock(t.Context()))
				defer r.syncMu.unlock()
				r.sent = beat{}
			}
			again()
			_, _, err := store.Register(t.Context(), catalog.Router{Incarnation: r.Self().Incarnation, Name: "r:1"})
			require.NoError(t, err)
			require.NoError(t, r.tick(t.Context()))
			require.Zero(t, acked(t, store, "r:1"))
			again()
			require.ErrorIs(t, r.tick(t.Context()), errOtherCatalog, "it does not register there")
		})
	}
}

// TestCatalogWasPromoted: a replica may lack changes and have others of the same number,
// so everything is loaded anew.
func TestCatalogWasPromoted(t *testing.T) {
	t.Parallel()
	store := &wrapped{Store: newStore(t, nowhere)}
	timeline := int64(1)
	tell := func(d *catalog.Delta, err error) (*catalog.Delta, error) { d.Timeline = timeline; return d, err }
	store.load.Store(&tell)
	r := idleRouter(t, store, "r:1", Options{})
	seen := enter(t, r)
	require.NoError(t, r.Refresh(t.Context()))
	require.Same(t, seen, r.Snapshot().Entries["d.a"])
	timeline = 2
	require.NoError(t, r.Refresh(t.Context()))
	require.NotSame(t, seen, r.Snapshot().Entries["d.a"])
	require.NoError(t, r.acknowledge(t.Context()))
	require.Len(t, rowOf(t, store, "r:1").Ack.Held, 1, "what runs by the old tables is in flight")
	r.leave(seen)
}

// TestFencedIsKept: which collections are fenced is known without a walk over all.
func TestFencedIsKept(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r := idleRouter(t, store, "r:1", Options{})
	fenced := func() []string {
		require.NoError(t, r.Refresh(t.Context()))
		return slices.Collect(maps.Keys(r.Snapshot().fenced))
	}
	require.Empty(t, fenced())
	setState(t, store, catalog.StateFenced)
	require.Equal(t, []string{"d.a"}, fenced())
	_, err := store.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{row("d.c", "s")}})
	require.NoError(t, err)
	require.Equal(t, []string{"d.a"}, fenced())
	setState(t, store, catalog.StateOpen)
	require.Empty(t, fenced())
	setState(t, store, catalog.StateFenced)
	require.Len(t, fenced(), 1)
	_, err = store.Apply(t.Context(), catalog.Change{Drop: []string{"d.a"}})
	require.NoError(t, err)
	require.Empty(t, fenced())
}

func TestRoutersShareTheClocksKey(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	one, two := idleRouter(t, store, "r:1", Options{}), idleRouter(t, store, "r:2", Options{})
	one.Clock.Advance(5<<32 | 3)
	two.Clock.Learn(*one.Clock.Signed())
	require.Equal(t, one.Clock.Now(), two.Clock.Now())
	foreign := idleRouter(t, newStore(t, nowhere), "r:1", Options{})
	foreign.Clock.Learn(*one.Clock.Signed())
	require.Zero(t, foreign.Clock.Now())
}

// collections answers listCollections with what a shard holds.
func collections(held ...bson.D) bson.D {
	list := bson.A{}
	for _, c := range held {
		list = append(list, c)
	}
	return bson.D{e("cursor", bson.D{e("firstBatch", list), e("id", int64(0)), e("ns", "d.$cmd.listCollections")}), e("ok", 1.0)}
}

// TestShardWithABrokenRow is there as soon as its row is mended.
func TestShardWithABrokenRow(t *testing.T) {
	t.Parallel()
	store := newStore(t, "no set")
	r := idleRouter(t, store, "r:1", Options{})
	require.Nil(t, r.Shard("s"))
	_, err := store.Apply(t.Context(), catalog.Change{Shards: []catalog.Shard{{ID: "s", Host: nowhere, Weight: 1}}})
	require.NoError(t, err)
	require.NoError(t, r.Refresh(t.Context()))
	require.NotNil(t, r.Shard("s"))
}

// TestLoadThatTakesLong does not make the router silent, and acknowledges nothing of what is
// being loaded; what runs by older tables is told.
func TestLoadThatTakesLong(t *testing.T) {
	t.Parallel()
	store := &wrapped{Store: newStore(t, nowhere)}
	r := idleRouter(t, store, "r:1", Options{})
	require.NoError(t, r.tick(t.Context()))
	old := enter(t, r)
	defer r.leave(old)
	setState(t, store, catalog.StateFenced)
	require.NoError(t, r.Refresh(t.Context())) // it has not told yet that something runs by the older table
	setState(t, store, catalog.StateOpen)
	before := rowOf(t, store, "r:1")
	require.Empty(t, before.Ack.Held)
	late := func(d *catalog.Delta, err error) (*catalog.Delta, error) {
		eventually(t, "it beats", func() bool { return rowOf(t, store, "r:1").Ping.After(before.Ping) })
		now := rowOf(t, store, "r:1")
		require.Equal(t, before.Ack.Version, now.Ack.Version)
		require.Equal(t, "d.a", now.Ack.Held[0].NS)
		return d, err
	}
	store.load.Store(&late)
	require.NoError(t, r.Refresh(t.Context()))
	require.True(t, r.isHeard())
}

// slowStore has its caller wait after a heartbeat was taken.
type slowStore struct {
	catalog.Store

	taken time.Time
}

func (s *slowStore) Heartbeat(ctx context.Context, incarnation string, ack catalog.Ack, users []catalog.ShardUser) error {
	err := s.Store.Heartbeat(ctx, incarnation, ack, users)
	s.taken = time.Now()
	return err
}

// TestHeardIsNotLaterThanHeard: a router that is stopped before the reply comes has not been
// heard since.
func TestHeardIsNotLaterThanHeard(t *testing.T) {
	t.Parallel()
	store := &slowStore{Store: newStore(t, nowhere)}
	r := idleRouter(t, store, "r:1", Options{})
	require.NoError(t, r.acknowledge(t.Context()))
	require.True(t, r.heard.Load().Before(store.taken))
}
