package router

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
)

// rowOf returns a router's row.
func rowOf(t *testing.T, store catalog.Store, name string) catalog.Router {
	t.Helper()
	routers, err := store.Routers(t.Context())
	require.NoError(t, err)
	for i := range routers {
		if routers[i].Name == name {
			return routers[i]
		}
	}
	require.Fail(t, "not registered", name)
	return catalog.Router{}
}

// TestRunningOperationHoldsItsCollectionAlone: a barrier passes when nothing older is in
// flight on what it is about, whatever runs elsewhere.
func TestRunningOperationHoldsItsCollectionAlone(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	old := enter(t, r)
	seen := r.Snapshot().Version
	v := setState(t, store, catalog.StateFenced)
	eventually(t, "the router acknowledges", func() bool { return acked(t, store, "r:1") >= v })
	require.Equal(t, []catalog.Hold{{NS: "d.a", Version: seen}}, rowOf(t, store, "r:1").Ack.Held)
	for _, lock := range []string{"d.b", "d.aa", "e", "$shards"} {
		require.NoError(t, r.barrier(t.Context(), v, lock), lock)
	}
	require.NoError(t, r.barrier(t.Context(), seen, "d.a"), "by this one it may run")

	patient := r.opts.BarrierTimeout
	r.opts.BarrierTimeout = time.Millisecond
	for _, lock := range []string{"d.a", "d"} {
		err := r.barrier(t.Context(), v, lock)
		requireCode(t, 46, err)
		require.ErrorContains(t, err, "r:1 (operations on d.a still run)")
	}
	r.opts.BarrierTimeout = patient
	passed := make(chan error, 1)
	go func() { passed <- r.barrier(t.Context(), v, "d.a") }()
	r.leave(old)
	require.NoError(t, <-passed)
	require.Empty(t, rowOf(t, store, "r:1").Ack.Held)
}

// TestOldestHoldCounts: a collection that changed twice is held by the older of two.
func TestOldestHoldCounts(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r := idleRouter(t, store, "r:1", Options{})
	first := enter(t, r)
	v := r.Snapshot().Version
	setState(t, store, catalog.StateOpen)
	require.NoError(t, r.Refresh(t.Context()))
	second := enter(t, r)
	setState(t, store, catalog.StateOpen)
	require.NoError(t, r.Refresh(t.Context()))
	held := func() []catalog.Hold {
		require.NoError(t, r.acknowledge(t.Context()))
		return rowOf(t, store, "r:1").Ack.Held
	}
	require.Equal(t, []catalog.Hold{{NS: "d.a", Version: v}}, held())
	r.leave(first)
	require.Equal(t, []catalog.Hold{{NS: "d.a", Version: v + 1}}, held())
	r.leave(second)
	require.Empty(t, held())
}

// withAuth is a shard that cannot be reached and has users.
func withAuth() Options {
	return Options{
		BarrierTimeout: 20 * time.Millisecond,
		Backend:        backend.Config{Admin: backend.Credential{User: "admin", Password: "p", Source: "admin"}},
	}
}

// TestPredecessorIsWaitedFor: a router that died and was started again at once holds up DDL
// for as long as it takes to shut its predecessor out, but makes none fail.
func TestPredecessorIsWaitedFor(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	former := catalog.ShardUser{Shard: "s", User: "shardgate-first"}
	_, _, err := store.Register(t.Context(), catalog.Router{Incarnation: "first", Name: "r:1", Users: []catalog.ShardUser{former}})
	require.NoError(t, err)
	o := withAuth()
	r, _ := startRouter(t, store, "r:1", o)
	v := r.Snapshot().Version
	eventually(t, "the router acknowledges", func() bool { return acked(t, store, "r:1") >= v })
	done := make(chan error, 1)
	go func() { done <- r.barrier(t.Context(), v, "d.a") }()
	select {
	case err := <-done:
		t.Fatalf("the barrier did not wait: %v", err)
	case <-time.After(20 * o.BarrierTimeout):
	}
	r.usersMu.Lock()
	delete(r.former, former)
	r.usersMu.Unlock()
	require.NoError(t, <-done)
}

// TestPredecessorOnADeadShard: what lies there is not changed until the predecessor is
// shut out; all else is. It is not forgotten when the router stops, nor when it dies.
func TestPredecessorOnADeadShard(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	put := catalog.Change{
		Shards:    []catalog.Shard{{ID: "well", Host: nowhere, Weight: 1}},
		Databases: []catalog.Database{{Name: "e", Primary: "well", Placement: catalog.PlacementSpread}},
		Put:       []catalog.CollectionChunks{row("e.a", "well")},
	}
	v, err := store.Apply(t.Context(), put)
	require.NoError(t, err)
	dead := catalog.ShardUser{Shard: "s", User: "shardgate-first"}
	_, _, err = store.Register(t.Context(), catalog.Router{Incarnation: "first", Name: "r:1", Users: []catalog.ShardUser{dead}})
	require.NoError(t, err)

	r, stop := startRouter(t, store, "r:1", withAuth())
	shutOutOf := func(r *Router, shard string) {
		r.usersMu.Lock()
		defer r.usersMu.Unlock()
		delete(r.former, catalog.ShardUser{Shard: shard, User: dead.User})
	}
	shutOutOf(r, "well")
	eventually(t, "the router acknowledges", func() bool { return acked(t, store, "r:1") >= v })
	shutOutOf(r, "well")
	eventually(t, "it has shut out the one it can", func() bool {
		return r.barrier(t.Context(), v, "e.a") == nil
	})
	for _, lock := range []string{"e.a", "e.new", "d.new", "$shards"} {
		require.NoError(t, r.barrier(t.Context(), v, lock), lock)
	}
	for _, lock := range []string{"d.a", "d"} {
		err := await(t, r, v, lock)
		requireCode(t, 46, err)
		require.ErrorContains(t, err, "r:1 (its predecessor is not shut out of s)", lock)
	}

	stop()
	last := rowOf(t, store, "r:1")
	require.Equal(t, catalog.Stopped, last.Ack.Version)
	require.Contains(t, last.Users, dead)
	other := idleRouter(t, store, "other:1", Options{BarrierTimeout: 20 * time.Millisecond})
	require.NoError(t, other.acknowledge(t.Context()))
	require.NoError(t, other.barrier(t.Context(), v, "e.a"), "who has stopped holds up nothing else")
	requireCode(t, 46, other.barrier(t.Context(), v, "d.a"))

	third := idleRouter(t, store, "r:1", withAuth())
	require.Contains(t, third.Self().Users, dead)
	require.Contains(t, third.shardUsers(), dead)
}

// TestLostWriteKeepsTheRow: a router that stops while a write may still run on a shard
// holds its collection, and nothing else.
func TestLostWriteKeepsTheRow(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, stop := startRouter(t, store, "r:1", Options{})
	entry := enter(t, r)
	r.finish(t.Context(), &Op{lost: []lostWrite{{shard: "s"}}}, entry)
	stop()
	last := rowOf(t, store, "r:1").Ack
	require.Equal(t, catalog.Ack{Version: catalog.Stopped, Held: []catalog.Hold{{NS: "d.a", Version: r.Snapshot().Version}}}, last)

	_, stop = startRouter(t, store, "r:1", Options{})
	stop()
	routers, err := store.Routers(t.Context())
	require.NoError(t, err)
	require.Empty(t, routers, "the next one goes on from there; without users there is nobody to shut out")
}

// TestTheNewerOfTwoStays: two routers under one name do not take it from each other for
// ever.
func TestTheNewerOfTwoStays(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	old := newRouter(t, store, "r:1", Options{})
	ended := make(chan error, 1)
	go func() { ended <- old.Run(context.Background()) }()
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	old.reload.signal()
	setState(t, store, catalog.StateOpen)
	err := <-ended
	require.ErrorIs(t, err, errReplaced)
	require.ErrorContains(t, err, "r:1")
	require.ErrorContains(t, err, "advertise")
	require.Equal(t, r.Self().Incarnation, rowOf(t, store, "r:1").Incarnation)
	require.NoError(t, r.EnableSharding(t.Context(), "new", ""))
}
