package router

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
)

// enter is Router.enter on d.a without a time limit.
func enter(t *testing.T, r *Router) *Entry {
	t.Helper()
	entry, err := r.enter(t.Context(), []byte("d.a"), time.Time{})
	require.NoError(t, err)
	require.NotNil(t, entry)
	return entry
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, time.Millisecond, what)
}

// acked returns the version that a router has acknowledged.
func acked(t *testing.T, store catalog.Store, name string) catalog.Version {
	t.Helper()
	routers, err := store.Routers(t.Context())
	require.NoError(t, err)
	for i := range routers {
		if routers[i].Name == name {
			return routers[i].Ack.Version
		}
	}
	require.Fail(t, "not registered", name)
	return 0
}

func TestGateCounts(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{})
	a, b := enter(t, r), enter(t, r)
	require.Same(t, a, b)
	require.Equal(t, int64(2), a.inflight.Load())
	r.leave(a)
	r.leave(b)
	require.Zero(t, a.inflight.Load())

	entry, err := r.enter(t.Context(), []byte("d.none"), time.Time{})
	require.NoError(t, err)
	require.Nil(t, entry)
	r.leave(nil)
}

// TestUnchangedCollectionsKeepTheirEntry: what runs on them is no concern of a change.
func TestUnchangedCollectionsKeepTheirEntry(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{})
	entry := r.Snapshot().Entries["d.b"]
	require.NotNil(t, entry)
	entry.inflight.Add(1) // an operation that never ends
	v := setState(t, store, catalog.StateFenced)
	eventually(t, "the version is acknowledged", func() bool { return acked(t, store, "r:1") >= v })
	require.Same(t, entry, r.Snapshot().Entries["d.b"])
	entry.inflight.Add(-1)
}

func TestFenceHoldsOperations(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{})
	lock, err := store.Acquire(t.Context(), "d.a", r.Self().Incarnation, "test")
	require.NoError(t, err)
	v := setState(t, store, catalog.StateFenced, lock)
	eventually(t, "the router sees the fence", func() bool { return r.Snapshot().Version >= v })

	_, err = r.enter(t.Context(), []byte("d.a"), time.Now().Add(5*time.Millisecond))
	requireCode(t, 50, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.enter(ctx, []byte("d.a"), time.Time{})
	requireCode(t, 11600, err)
	r.leave(func() *Entry {
		e, err := r.enter(t.Context(), []byte("d.b"), time.Time{})
		require.NoError(t, err)
		return e
	}())

	type result struct {
		entry *Entry
		err   error
	}
	got := make(chan result, 1)
	go func() {
		entry, err := r.enter(t.Context(), []byte("d.a"), time.Time{})
		got <- result{entry, err}
	}()
	select {
	case <-got:
		require.Fail(t, "passed a fence")
	case <-time.After(20 * time.Millisecond):
	}
	setState(t, store, catalog.StateOpen, lock)
	res := <-got
	require.NoError(t, res.err)
	require.Equal(t, catalog.StateOpen, res.entry.Coll.State)
	r.leave(res.entry)
	require.NoError(t, store.Release(t.Context(), lock))
}

func TestFenceHasALimit(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{HoldLimit: 5 * time.Millisecond})
	v := setState(t, store, catalog.StateFenced)
	eventually(t, "the router sees the fence", func() bool { return r.Snapshot().Version >= v })
	_, err := r.enter(t.Context(), []byte("d.a"), time.Time{})
	requireCode(t, 46, err)
	require.ErrorContains(t, err, "d.a")
}

// TestDropEndsTheWait: who waits at a fence learns that the collection is gone.
func TestDropEndsTheWait(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{})
	v := setState(t, store, catalog.StateFenced)
	eventually(t, "the router sees the fence", func() bool { return r.Snapshot().Version >= v })
	got := make(chan *Entry, 1)
	go func() {
		entry, err := r.enter(t.Context(), []byte("d.a"), time.Time{})
		if err != nil {
			t.Error(err)
		}
		got <- entry
	}()
	_, err := store.Apply(t.Context(), catalog.Change{Drop: []string{"d.a"}})
	require.NoError(t, err)
	require.Nil(t, <-got)
}

// TestNothingRunsBehindABarrier is the gate's whole purpose: two routers, many
// operations, and a collection that is fenced and opened again and again. Behind the
// barrier nothing may be running.
func TestNothingRunsBehindABarrier(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	one, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	two, _ := startRouter(t, store, "r:2", Options{BarrierTimeout: patience})
	ctx, cancel := context.WithCancel(t.Context())
	var running, fenced, done atomic.Int64
	var wg sync.WaitGroup
	for _, r := range []*Router{one, two} {
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					entry, err := r.enter(ctx, []byte("d.a"), time.Time{})
					if err != nil {
						continue
					}
					running.Add(1)
					if fenced.Load() != 0 {
						t.Error("an operation runs behind a barrier")
					}
					done.Add(1)
					running.Add(-1)
					r.leave(entry)
				}
			})
		}
	}
	lock, err := store.Acquire(t.Context(), "d.a", one.Self().Incarnation, "test")
	require.NoError(t, err)
	for i := range 50 {
		before := done.Load()
		v := setState(t, store, catalog.StateFenced, lock)
		r := one
		if i%2 == 1 {
			r = two
		}
		require.NoError(t, r.barrier(t.Context(), v, "d.a"))
		fenced.Store(1)
		require.Zero(t, running.Load())
		fenced.Store(0)
		setState(t, store, catalog.StateOpen, lock)
		eventually(t, "operations go on", func() bool { return done.Load() > before })
	}
	cancel()
	wg.Wait()
}

// TestEnterLooksTwice: an operation that was about to begin when its table was replaced
// must not run by it after the replacement was acknowledged. Without the second look
// at the snapshot this fails within moments.
func TestEnterLooksTwice(t *testing.T) {
	t.Parallel()
	const tables = 20_000
	c := row("d.a", "s").Collection
	all := make([]*Snapshot, tables)
	acked := make(map[*Entry]*atomic.Bool, tables)
	for i := range all {
		entry := &Entry{Coll: &c, replaced: make(chan struct{})}
		acked[entry] = new(atomic.Bool)
		all[i] = &Snapshot{Entries: map[string]*Entry{"d.a": entry}}
	}
	r := &Router{drained: newHint()}
	r.snap.Store(all[0])
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				entry, err := r.enter(t.Context(), []byte("d.a"), time.Time{})
				if err != nil {
					t.Error(err)
					return
				}
				if acked[entry].Load() {
					t.Error("admitted by a table that was given up")
					cancel()
				}
				r.leave(entry)
				runtime.Gosched()
			}
		})
	}
	for i := 1; i < tables && ctx.Err() == nil; i++ {
		old := all[i-1].Entries["d.a"]
		r.snap.Store(all[i])
		close(old.replaced)
		for old.inflight.Load() != 0 {
			runtime.Gosched()
		}
		acked[old].Store(true)
		runtime.Gosched()
	}
	cancel()
	wg.Wait()
}

func TestBarrierNamesTheSilentRouter(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: time.Second})
	idleRouter(t, store, "silent:1", Options{})
	idleRouter(t, store, "silent:2", Options{})
	err := r.EnableSharding(t.Context(), "new", "")
	requireCode(t, 46, err)
	require.ErrorContains(t, err, "silent:1, silent:2")
	require.NotContains(t, err.Error(), "r:1")
}

// TestFenceIsTakenBack: a fence that a silent router holds up leaves the collection
// open.
func TestFenceIsTakenBack(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: 20 * time.Millisecond})
	idleRouter(t, store, "silent:1", Options{})
	err := r.withLock(t.Context(), "d.a", "test", func(l catalog.Lock) error {
		return r.fenceEntries(t.Context(), l, []*Entry{r.Snapshot().Entries["d.a"]})
	})
	requireCode(t, 46, err)
	entry := enter(t, r)
	require.Equal(t, catalog.StateOpen, entry.Coll.State)
	r.leave(entry)
	lock, err := store.Acquire(t.Context(), "d.a", r.Self().Incarnation, "test")
	require.NoError(t, err, "the lock was given back")
	require.NoError(t, store.Release(t.Context(), lock))
}

// TestDDLOnOneIsSeenOnTheOther: when it is acknowledged, every router acts by it.
func TestDDLOnOneIsSeenOnTheOther(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	one, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
	two, _ := startRouter(t, store, "r:2", Options{BarrierTimeout: patience})
	require.NotEqual(t, one.Self().Number, two.Self().Number)
	for i, name := range []string{"db1", "db2", "db3", "db4"} {
		by, other := one, two
		if i%2 == 1 {
			by, other = two, one
		}
		require.NoError(t, by.EnableSharding(t.Context(), name, ""))
		require.Contains(t, other.Snapshot().Databases, name)
		require.NoError(t, other.EnableSharding(t.Context(), name, ""), "again is no error")
	}
	requireCode(t, 13297, one.EnableSharding(t.Context(), "DB1", ""))
	requireCode(t, 70, one.EnableSharding(t.Context(), "db9", "nosuch"))
}

func TestLocksAreWaitedFor(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{LockTimeout: 15 * time.Millisecond})
	for _, name := range []string{"new", "new.coll"} { // the database's lock excludes its collections'
		lock, err := store.Acquire(t.Context(), name, r.Self().Incarnation, "movePrimary")
		require.NoError(t, err)
		err = r.EnableSharding(t.Context(), "new", "")
		requireCode(t, 46, err)
		require.ErrorContains(t, err, "movePrimary")
		require.NoError(t, store.Release(t.Context(), lock))
	}
	require.NoError(t, r.EnableSharding(t.Context(), "new", ""))
}

// TestHeldWrites: while writes are held back reads go on, and a barrier of writes does not
// wait for reads.
func TestHeldWrites(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: 20 * time.Millisecond})
	lock, err := store.Acquire(t.Context(), "d.a", r.Self().Incarnation, "test")
	require.NoError(t, err)
	reading := enter(t, r)
	writing, err := r.pass(t.Context(), []byte("d.a"), time.Time{}, true)
	require.NoError(t, err)
	seen := r.Snapshot().Version
	v := setState(t, store, catalog.StateHeld, lock)
	eventually(t, "the router acknowledges", func() bool { return acked(t, store, "r:1") >= v })
	require.Equal(t, []catalog.Hold{{NS: "d.a", Version: seen, Writes: seen}}, rowOf(t, store, "r:1").Ack.Held)

	r.leave(enter(t, r))
	_, err = r.pass(t.Context(), []byte("d.a"), time.Now().Add(5*time.Millisecond), true)
	requireCode(t, 50, err)

	requireCode(t, 46, r.await(t.Context(), v, "d.a", 20*time.Millisecond, oldWrites))
	r.leaveAs(writing, true)
	require.NoError(t, r.await(t.Context(), v, "d.a", patience, oldWrites))
	requireCode(t, 46, r.barrier(t.Context(), v, "d.a"))
	require.Equal(t, []catalog.Hold{{NS: "d.a", Version: seen}}, rowOf(t, store, "r:1").Ack.Held)
	r.leave(reading)
	require.NoError(t, r.await(t.Context(), v, "d.a", patience, oldOperations))

	setState(t, store, catalog.StateOpen, lock)
	writing, err = r.pass(t.Context(), []byte("d.a"), time.Time{}, true)
	require.NoError(t, err)
	r.leaveAs(writing, true)
}

// TestHeldCursors: cursors of older tables hold up those who wait for them, and no DDL.
func TestHeldCursors(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r, _ := startRouter(t, store, "r:1", Options{})
	lock, err := store.Acquire(t.Context(), "d.a", r.Self().Incarnation, "test")
	require.NoError(t, err)
	e := enter(t, r)
	idle, killed := r.newCursor(&Op{Cmd: &wire.Command{}}, e, "d.a"), r.newCursor(&Op{Cmd: &wire.Command{}}, e, "d.a")
	r.cursors.add(1, idle)
	r.cursors.add(1, killed)
	r.leave(e)
	seen := r.Snapshot().Version
	v := setState(t, store, catalog.StateHeld, lock)
	require.NoError(t, r.await(t.Context(), v, "d.a", patience, oldOperations))
	require.Equal(t, []catalog.Hold{{NS: "d.a", Version: catalog.Stopped, Cursors: seen}}, rowOf(t, store, "r:1").Ack.Held)
	requireCode(t, 46, r.await(t.Context(), v, "d.a", 20*time.Millisecond, oldCursors))

	// One is killed while a getMore has it: that may still read.
	_, err = r.cursors.checkOut(killed.ID)
	require.NoError(t, err)
	r.cursors.remove(killed.ID)
	r.cursors.remove(idle.ID)
	requireCode(t, 46, r.await(t.Context(), v, "d.a", 20*time.Millisecond, oldCursors))
	require.True(t, r.cursors.checkIn(killed, false))
	require.NoError(t, r.await(t.Context(), v, "d.a", patience, oldCursors))
	held, err := r.inFlight(t.Context())
	require.NoError(t, err)
	require.Empty(t, held)
}
