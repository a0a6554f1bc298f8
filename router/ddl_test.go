package router

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ddlShard is a shard that notes the commands it gets.
type ddlShard struct {
	mu   sync.Mutex
	seen []wire.Doc // guarded by mu
	held []bson.D   // guarded by mu; what listCollections says
}

// answer notes a command and answers it, by failing if it is the named one.
func (s *ddlShard) answer(failing string, reply bson.D) func(wire.Doc) bson.D {
	return func(cmd wire.Doc) bson.D {
		s.mu.Lock()
		defer s.mu.Unlock()
		el, _ := cmd.First()
		s.seen = append(s.seen, append(wire.Doc(nil), cmd...))
		switch string(el.Name) {
		case failing:
			return reply
		case "listCollections":
			filter, _ := cmd.Lookup("filter")
			d, _ := filter.Doc()
			want, all := d.Lookup("name")
			name, _ := want.Str()
			var list []bson.D
			for _, c := range s.held {
				if !all || c[0].Value == name {
					list = append(list, c)
				}
			}
			return collections(list...)
		}
		return nil
	}
}

// got returns the commands of one name.
func (s *ddlShard) got(name string) []wire.Doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []wire.Doc
	for _, cmd := range s.seen {
		if el, _ := cmd.First(); string(el.Name) == name {
			list = append(list, cmd)
		}
	}
	return list
}

// overDDL is a router over a ddlShard.
func overDDL(t *testing.T, s *ddlShard, failing string, reply bson.D) *Router {
	t.Helper()
	r, _ := startRouter(t, newStore(t, fakeShard(t, s.answer(failing, reply))), "r:1", Options{BarrierTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	return r
}

// TestUnconfirmedIsNotDone: a create or drop that a failover may undo has failed.
func TestUnconfirmedIsNotDone(t *testing.T) {
	t.Parallel()
	unconfirmed := bson.D{
		e("ok", 1.0), e("writeConcernError", bson.D{e("code", int32(64)), e("errmsg", "waiting for replication timed out")}),
	}
	id := row("d.a", "s").UUID
	r := overDDL(t, &ddlShard{held: []bson.D{held("new", uuid.New())}}, "create", unconfirmed)
	err := r.Create(t.Context(), "d.new", nil, false)
	requireCode(t, 64, err)
	require.ErrorContains(t, err, "at s")
	require.Nil(t, r.Snapshot().Entries["d.new"])

	r = overDDL(t, &ddlShard{held: []bson.D{held("a", id)}}, "drop", unconfirmed)
	_, err = r.Drop(t.Context(), "d.a", nil)
	requireCode(t, 64, err)
	require.Equal(t, catalog.StateDropping, r.Snapshot().Entries["d.a"].Coll.State)
}

// TestStepDownDuringDDL: it is the shard that is no primary, not the router.
func TestStepDownDuringDDL(t *testing.T) {
	t.Parallel()
	for _, reply := range []bson.D{
		failure(10107), failure(11602),
		{e("ok", 1.0), e("writeConcernError", bson.D{e("code", int32(189)), e("errmsg", "stepped down")})},
	} {
		r := overDDL(t, &ddlShard{}, "create", reply)
		requireCode(t, mongoerr.HostUnreachable, r.Create(t.Context(), "d.new", nil, false))
	}
}

// TestDropDatabaseIsGuarded: whatever arrives late at a shard cannot hit what is made
// after it. All goes by UUID, and a view by its definition.
func TestDropDatabaseIsGuarded(t *testing.T) {
	t.Parallel()
	views := uuid.New()
	s := &ddlShard{held: []bson.D{
		held("a", row("d.a", "s").UUID), held("b", row("d.b", "s").UUID), held("system.views", views),
		{e("name", "v"), e("type", "view"), e("options", bson.D{}), e("info", bson.D{e("readOnly", true)})},
	}}
	store := newStore(t, fakeShard(t, s.answer("", nil)))
	putView(t, store, catalog.StateOpen)
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	require.NoError(t, r.DropDatabase(t.Context(), "d"))
	require.Empty(t, r.Snapshot().Databases)
	require.Empty(t, r.Snapshot().Entries)
	require.Empty(t, s.got("dropDatabase"))
	ids := map[string]bool{}
	for _, cmd := range s.got("drop") {
		u, ok := cmd.Lookup("collectionUUID")
		require.True(t, ok, "%s", bson.Raw(cmd))
		ids[string(u.Value[5:])] = true
	}
	for _, id := range []uuid.UUID{row("d.a", "s").UUID, row("d.b", "s").UUID, views} {
		require.True(t, ids[string(id[:])])
	}
	ops := s.got("applyOps")
	require.Len(t, ops, 1)
	require.Equal(t, "d.v", bson.Raw(ops[0]).Lookup("applyOps", "0", "o", "_id").StringValue())
}

// TestDropOfAView takes it away where it is.
func TestDropOfAView(t *testing.T) {
	t.Parallel()
	s := &ddlShard{held: []bson.D{
		held("system.views", uuid.New()),
		{e("name", "v"), e("type", "view"), e("options", bson.D{}), e("info", bson.D{e("readOnly", true)})},
	}}
	store := newStore(t, fakeShard(t, s.answer("", nil)))
	putView(t, store, catalog.StateOpen)
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	_, err := r.Drop(t.Context(), "d.v", nil)
	require.NoError(t, err)
	require.Nil(t, r.Snapshot().Entries["d.v"])
	require.Len(t, s.got("applyOps"), 1)
	require.Empty(t, s.got("drop"))
}

// TestClientsLimitBoundsDDL: a time limit that passes before anything was done is 50, and
// leaves all as it was.
func TestClientsLimitBoundsDDL(t *testing.T) {
	t.Parallel()
	id := row("d.a", "s").UUID
	s := &ddlShard{held: []bson.D{held("a", id)}}
	store := newStore(t, fakeShard(t, s.answer("", nil)))
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience, LockTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	lock, err := store.Acquire(t.Context(), "d", r.Self().Incarnation, "test")
	require.NoError(t, err)
	refused := func() {
		t.Helper()
		for what, do := range map[string]func(context.Context) error{
			"create":       func(ctx context.Context) error { return r.Create(ctx, "d.new", nil, false) },
			"drop":         func(ctx context.Context) error { _, err := r.Drop(ctx, "d.a", nil); return err },
			"dropDatabase": func(ctx context.Context) error { return r.DropDatabase(ctx, "d") },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := do(ctx)
			cancel()
			requireCode(t, 50, err)
			snap := r.Snapshot()
			require.Nil(t, snap.Entries["d.new"], what)
			require.Equal(t, catalog.StateOpen, snap.Entries["d.a"].Coll.State, what)
		}
	}
	refused() // the lock is held
	require.NoError(t, store.Release(t.Context(), lock))
	idleRouter(t, store, "silent:1", Options{})
	refused() // the barrier is held up
	require.Empty(t, s.got("create"))
	require.Empty(t, s.got("drop"))
}

// firstStore lets something happen just before the next change.
type firstStore struct {
	catalog.Store

	first func()
}

func (s *firstStore) Apply(ctx context.Context, c catalog.Change) (catalog.Version, error) {
	if f := s.first; f != nil {
		s.first = nil
		f()
	}
	return s.Store.Apply(ctx, c)
}

// TestFirstCollectionsOfADatabase: two routers that make them at once make one database.
func TestFirstCollectionsOfADatabase(t *testing.T) {
	t.Parallel()
	s := &ddlShard{held: []bson.D{held("c", uuid.New()), held("e", uuid.New())}}
	inner := newStore(t, fakeShard(t, s.answer("", nil)))
	store := &firstStore{Store: inner}
	one, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	two, _ := startRouter(t, inner, "r:2", Options{BarrierTimeout: patience})
	for _, r := range []*Router{one, two} {
		eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	}
	store.first = func() { require.NoError(t, two.Create(t.Context(), "new.e", nil, false)) }
	require.NoError(t, one.Create(t.Context(), "new.c", nil, false))
	require.Equal(t, two.Snapshot().Databases["new"].UUID, one.Snapshot().Databases["new"].UUID)
	d, err := inner.Load(t.Context(), 0)
	require.NoError(t, err)
	for _, row := range d.Databases {
		if row.Name == "new" {
			require.Equal(t, two.Snapshot().Databases["new"], row)
		}
	}
	require.NotNil(t, one.Snapshot().Entries["new.e"])
	require.NotNil(t, one.Snapshot().Entries["new.c"])
}

// TestTakeInReplacesNothing: what came into the catalog since is not lost to what a new
// shard brings.
func TestTakeInReplacesNothing(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []catalog.Change{
		{Databases: []catalog.Database{{Name: "x", Primary: "s", Placement: catalog.PlacementSpread}}},
		{
			Databases: []catalog.Database{{Name: "x", Primary: "s", Placement: catalog.PlacementSpread}},
			Put:       []catalog.CollectionChunks{row("x.c", "s")},
		},
		{Put: []catalog.CollectionChunks{row("d.c", "s")}},
	} {
		store := newStore(t, nowhere)
		r := idleRouter(t, store, "r:1", Options{})
		c, err := r.takeIn(r.Snapshot(), "t", &backend.Probe{Databases: map[string][]backend.ProbedCollection{
			"x": {{Name: "c", Type: "collection"}}, "d": {{Name: "c", Type: "collection"}},
		}})
		require.NoError(t, err)
		c.Shards = []catalog.Shard{{ID: "t", Host: "t/127.0.0.1:2"}}
		_, err = store.Apply(t.Context(), meanwhile)
		require.NoError(t, err)
		_, err = store.Apply(t.Context(), *c)
		require.ErrorIs(t, err, catalog.ErrConflict)
	}
}

// TestAddShardTakesInTimeSeries: what is known of one is the UUID of its buckets.
func TestAddShardTakesInTimeSeries(t *testing.T) {
	t.Parallel()
	r := idleRouter(t, newStore(t, nowhere), "r:1", Options{})
	id := uuid.New()
	series := backend.ProbedCollection{Name: "ts", Type: "timeseries", Options: bson.Raw(doc(t, e("timeseries", bson.D{e("timeField", "t")})))}
	buckets := backend.ProbedCollection{Name: "system.buckets.ts", Type: "collection"}
	buckets.Info.UUID = bson.Binary{Subtype: 4, Data: id[:]}
	c, err := r.takeIn(r.Snapshot(), "t", &backend.Probe{Databases: map[string][]backend.ProbedCollection{"x": {series, buckets}}})
	require.NoError(t, err)
	require.Len(t, c.Put, 1)
	require.Equal(t, "x.ts", c.Put[0].NS)
	require.Equal(t, id, c.Put[0].UUID)
}

// TestBucketsAreTheirSeries: who names the buckets is counted with all others, and waits
// with them; nothing is made by such a name.
func TestBucketsAreTheirSeries(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	series := row("d.ts", "s")
	series.Options = bson.Raw(doc(t, e("timeseries", bson.D{e("timeField", "t")})))
	_, err := store.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{series}})
	require.NoError(t, err)
	r := idleRouter(t, store, "r:1", Options{})
	entry, err := r.enter(t.Context(), []byte("d.system.buckets.ts"), time.Time{})
	require.NoError(t, err)
	require.Same(t, r.Snapshot().Entries["d.ts"], entry)
	require.Equal(t, int64(1), entry.inflight.Load())
	require.Equal(t, "d.system.buckets.ts", entry.stored())
	r.leave(entry)

	entry, err = r.enter(t.Context(), []byte("d.system.buckets.a"), time.Time{}) // a is none
	require.NoError(t, err)
	require.Nil(t, entry)
	for _, ns := range []string{"d.system.buckets.ts", "d.system.buckets.a", "d.system.buckets.new"} {
		requireCode(t, mongoerr.NotImplemented, r.Create(t.Context(), ns, nil, false))
		requireCode(t, mongoerr.NotImplemented, r.CreateImplicitly(t.Context(), ns))
	}
}

// TestAddShardThatIsThere: a shard is known by each of its members.
func TestAddShardThatIsThere(t *testing.T) {
	t.Parallel()
	r := idleRouter(t, newStore(t, nowhere), "r:1", Options{})
	p := &backend.Probe{SetName: "s", Hosts: []string{"127.0.0.1:2", "127.0.0.1:1"}}
	_, err := r.addProbed(t.Context(), p, "other", 1)
	requireCode(t, mongoerr.IllegalOperation, err)
	id, err := r.addProbed(t.Context(), p, "", 1)
	require.NoError(t, err)
	require.Equal(t, "s", id)
}

// TestOwnDatabaseIsNotForClients: it cannot be brought into the catalog by its name either.
func TestOwnDatabaseIsNotForClients(t *testing.T) {
	t.Parallel()
	r := idleRouter(t, newStore(t, nowhere), "r:1", Options{})
	requireCode(t, mongoerr.InvalidNamespace, r.EnableSharding(t.Context(), InternalDB, ""))
	requireCode(t, mongoerr.InvalidNamespace, r.Create(t.Context(), InternalDB+".c", nil, false))
}

// TestApplyOpsIsGuarded: its first operation fails where the guard is gone.
func TestApplyOpsIsGuarded(t *testing.T) {
	t.Parallel()
	_, guard := catalog.SplitNS(guardOf("d.new"))
	require.NotEqual(t, guardOf("d.other"), guardOf("d.new"))
	id, like := uuid.New(), collInfo{Name: "new", Type: "collection"}
	made := uuid.New()
	like.Info.UUID = bson.Binary{Subtype: 4, Data: made[:]}
	s := &ddlShard{held: []bson.D{held(guard, id)}}
	r := overDDL(t, s, "", nil)
	require.NoError(t, r.createWithUUID(t.Context(), "s", "d.new", &like))
	ops := bson.Raw(s.got("applyOps")[0]).Lookup("applyOps").Array()
	require.Equal(t, "i", ops.Index(0).Document().Lookup("op").StringValue())
	_, first := ops.Index(0).Document().Lookup("ui").Binary()
	require.Equal(t, id[:], first)
	_, second := ops.Index(1).Document().Lookup("ui").Binary()
	require.Equal(t, made[:], second)
	require.Len(t, s.got("drop"), 1, "the guard goes with the attempt")
}

func TestSameIndexKey(t *testing.T) {
	t.Parallel()
	key := func(elems ...bson.E) bson.Raw { return bson.Raw(doc(t, elems...)) }
	one := key(e("a", int32(1)), e("b", "hashed"))
	require.True(t, SameIndexKey(one, key(e("a", 1.0), e("b", "hashed"))))
	require.True(t, SameIndexKey(one, key(e("a", int64(1)), e("b", "hashed"))))
	for _, other := range []bson.Raw{
		key(e("a", int32(-1)), e("b", "hashed")), key(e("b", "hashed"), e("a", int32(1))), key(e("a", int32(1))),
		key(e("a", int32(1)), e("b", int32(1))), key(e("a", 1.5), e("b", "hashed")), nil,
	} {
		require.False(t, SameIndexKey(one, other), "%s", other)
	}
}
