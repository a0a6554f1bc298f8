package router

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
)

// newWatch has seen nothing yet.
func newWatch() *watch {
	return &watch{seen: map[string]sighting{}, begun: map[catalog.ShardUser]bool{}, done: make(chan catalog.ShardUser, 10)}
}

// evictor is a router that may evict others, of shards that nobody can reach.
func evictor(t *testing.T, store *mem.Store, evictAfter time.Duration) *Router {
	t.Helper()
	o := withAuth()
	o.EvictAfter = evictAfter
	r := idleRouter(t, store, "r:1", o)
	require.NoError(t, r.acknowledge(t.Context()))
	return r
}

// silent is a router that has beaten once.
func silent(t *testing.T, store *mem.Store) *Router {
	t.Helper()
	r := idleRouter(t, store, "other:1", withAuth())
	eventually(t, "its users are in its row", func() bool {
		return r.acknowledge(t.Context()) == nil && len(rowOf(t, store, "other:1").Users) == len(r.Snapshot().Shards)
	})
	return r
}

// TestSilentRouterIsEvicted and holds up what lies on shards that it is not shut out of,
// and nothing else, its locks included.
func TestSilentRouterIsEvicted(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	_, err := store.Apply(t.Context(), catalog.Change{
		Shards:    []catalog.Shard{{ID: "well", Host: nowhere, Weight: 1}},
		Databases: []catalog.Database{{Name: "e", Primary: "well", Placement: catalog.PlacementSpread}},
		Put:       []catalog.CollectionChunks{row("e.a", "well")},
	})
	require.NoError(t, err)
	r, other := evictor(t, store, time.Millisecond), silent(t, store)
	inc := other.Self().Incarnation
	lost := map[string]catalog.Lock{}
	for _, name := range []string{"d.a", "e", "$shards"} {
		lost[name], err = store.Acquire(t.Context(), name, inc, "test")
		require.NoError(t, err)
	}
	w := newWatch()
	r.look(t.Context(), w)
	require.False(t, rowOf(t, store, "other:1").Evicted, "it is seen for the first time")
	eventually(t, "it is evicted", func() bool {
		r.look(t.Context(), w)
		return rowOf(t, store, "other:1").Evicted
	})
	v := setState(t, store, catalog.StateOpen)
	require.NoError(t, r.Refresh(t.Context()))
	require.NoError(t, r.acknowledge(t.Context()))
	for _, name := range []string{"d.a", "e"} {
		requireCode(t, 46, await(t, r, v, name))
		_, err = r.acquire(t.Context(), name, "test")
		require.ErrorIs(t, err, catalog.ErrLocked, name)
	}
	require.NoError(t, await(t, r, v, "new"), "nothing lies there")
	_, err = r.acquire(t.Context(), "$shards", "test")
	require.NoError(t, err)

	require.NoError(t, store.ShutOut(t.Context(), inc, catalog.ShardUser{Shard: "well", User: userOf(inc)}))
	require.NoError(t, await(t, r, v, "e.a"))
	_, err = r.acquire(t.Context(), "e.a", "test")
	require.NoError(t, err)
	err = await(t, r, v, "d.a")
	requireCode(t, 46, err)
	require.ErrorContains(t, err, "other:1 (it is silent, and not shut out of s)")
	_, err = r.acquire(t.Context(), "d.a", "test")
	require.ErrorIs(t, err, catalog.ErrLocked)
	_, err = store.Apply(t.Context(), catalog.Change{Locks: []catalog.Lock{lost["d.a"]}})
	require.ErrorIs(t, err, catalog.ErrLockLost, "it changes nothing any more")

	require.NoError(t, store.ShutOut(t.Context(), inc, catalog.ShardUser{Shard: "s", User: userOf(inc)}))
	require.NoError(t, await(t, r, v, "d.a"))
	_, err = r.acquire(t.Context(), "d.a", "test")
	require.NoError(t, err)
	routers, err := store.Routers(t.Context())
	require.NoError(t, err)
	require.Len(t, routers, 1)
}

// await is a barrier that waits for nobody.
func await(t *testing.T, r *Router, v catalog.Version, lock string) error {
	t.Helper()
	return r.await(t.Context(), v, lock, time.Millisecond, oldOperations)
}

// TestOnlyWhoWatchesEvicts: who was stopped, or could not reach the catalog, knows nothing
// of the others' silence.
func TestOnlyWhoWatchesEvicts(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := evictor(t, store, 20*time.Millisecond), silent(t, store)
	w := newWatch()
	long := func() { time.Sleep(30 * time.Millisecond) }
	r.look(t.Context(), w)
	long()
	store.SetAvailable(false)
	r.look(t.Context(), w)
	store.SetAvailable(true)
	r.look(t.Context(), w)
	long()
	w.looked = time.Now().Add(-2 * lookGap)
	r.look(t.Context(), w)
	long()
	heard := time.Now().Add(-2 * heardGap)
	r.heard.Store(&heard)
	r.look(t.Context(), w)
	require.False(t, rowOf(t, store, "other:1").Evicted)
	now := time.Now()
	r.heard.Store(&now)
	long()
	r.look(t.Context(), w)
	require.True(t, rowOf(t, store, "other:1").Evicted)
}

// TestRouterThatAnswersInTimeStays, however little time was left.
func TestRouterThatAnswersInTimeStays(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, other := evictor(t, store, time.Nanosecond), silent(t, store)
	seen := rowOf(t, store, "other:1")
	eventually(t, "another heartbeat", func() bool {
		require.NoError(t, other.store.Heartbeat(t.Context(), seen.Incarnation, catalog.Ack{}, nil))
		return !rowOf(t, store, "other:1").Ping.Equal(seen.Ping)
	})
	require.False(t, r.evict(t.Context(), &seen))
	require.False(t, rowOf(t, store, "other:1").Evicted)
}

// TestWithoutUsersNobodyIsEvicted: it would not be certain.
func TestWithoutUsersNobodyIsEvicted(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	idleRouter(t, store, "other:1", Options{})
	r, _ := startRouter(t, store, "r:1", Options{EvictAfter: 4 * time.Millisecond, BarrierTimeout: 50 * time.Millisecond})
	requireCode(t, 46, r.EnableSharding(t.Context(), "new", ""))
	require.False(t, rowOf(t, store, "other:1").Evicted)
}

// TestEvictedRouterEnds without a trace in the catalog, and another one takes its place
// and its users.
func TestEvictedRouterEnds(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	old := newRouter(t, store, "r:1", withAuth())
	ended := make(chan error, 1)
	go func() { ended <- old.Run(context.Background()) }()
	eventually(t, "its users are in its row", func() bool { return len(rowOf(t, store, "r:1").Users) == 1 })
	users := rowOf(t, store, "r:1").Users
	eventually(t, "it is evicted", func() bool {
		return store.Evict(t.Context(), old.Self().Incarnation, rowOf(t, store, "r:1").Ping) == nil
	})
	require.ErrorIs(t, <-ended, ErrEvicted)
	require.True(t, old.Evicted())
	require.Equal(t, users, rowOf(t, store, "r:1").Users)
	require.True(t, rowOf(t, store, "r:1").Evicted)

	o := withAuth()
	o.Former = old.Self().Incarnation
	next := idleRouter(t, store, "r:1", o)
	require.Contains(t, next.shardUsers(), users[0])
	require.False(t, rowOf(t, store, "r:1").Evicted)
}

// TestRouterWithoutARowEnds: somebody has taken it away.
func TestRouterWithoutARowEnds(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r := newRouter(t, store, "r:1", Options{})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	require.NoError(t, store.Deregister(t.Context(), r.Self().Incarnation))
	require.ErrorIs(t, <-ended, ErrEvicted)
}

// TestUnheardRouterAsksTheCatalog before it says that there is nothing of a name: others
// may have made it and gone on without this router.
func TestUnheardRouterAsksTheCatalog(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r := idleRouter(t, store, "r:1", Options{EvictAfter: time.Nanosecond})
	require.NoError(t, r.acknowledge(t.Context()))
	_, err := store.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{row("d.new", "s")}})
	require.NoError(t, err)
	e, err := r.enter(t.Context(), []byte("d.new"), time.Time{})
	require.NoError(t, err)
	require.NotNil(t, e)
	r.leave(e)
	e, err = r.enter(t.Context(), []byte("d.none"), time.Time{})
	require.NoError(t, err)
	require.Nil(t, e)
}
