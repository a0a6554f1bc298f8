package catalogtest

import "github.com/shardgate/shardgate/catalog"

func (f *fixture) acquire(name, incarnation string) catalog.Lock {
	f.t.Helper()
	l, err := f.Acquire(f.t.Context(), name, incarnation, "test of "+name)
	f.NoError(err)
	return l
}

func (f *fixture) locked(name, incarnation string) {
	f.t.Helper()
	l, err := f.Acquire(f.t.Context(), name, incarnation, "in vain")
	f.ErrorIs(err, catalog.ErrLocked)
	f.Zero(l)
}

func (f *fixture) release(l catalog.Lock) {
	f.t.Helper()
	f.NoError(f.Release(f.t.Context(), l))
}

func testLockConflicts(f *fixture) {
	f.register("a:1", "a1")
	f.register("b:1", "b1")
	coll := f.acquire("db.c", "a1")
	f.Equal(catalog.Lock{Name: "db.c", Router: "a1", Token: coll.Token, Why: "test of db.c"}, coll)
	other := f.acquire("db.c.d", "b1")
	f.acquire("db2", "b1")
	f.acquire("d.c", "b1")
	f.locked("db.c", "b1")
	f.locked("db.c", "a1") // its own, too
	f.locked("db", "b1")
	f.locked("db", "a1")
	_, err := f.Acquire(f.t.Context(), "db.c", "b1", "")
	f.ErrorContains(err, "a:1")
	f.ErrorContains(err, "test of db.c")
	f.release(coll)
	f.locked("db", "a1")
	f.release(other)
	db := f.acquire("db", "a1")
	f.locked("db.c", "b1")
	f.locked("db.new", "a1")
	f.locked("db", "b1")
	f.acquire("$shards", "a1")
	f.acquire("$shards.x", "b1")
	f.acquire("$balancer", "b1")
	f.locked("$shards", "b1")
	f.release(db)
	f.acquire("db.c", "b1")
}

func testLockTokens(f *fixture) {
	f.register("a:1", "a1")
	first := f.acquire("db.c", "a1")
	f.release(first)
	f.release(first)
	second := f.acquire("db.c", "a1")
	f.Greater(second.Token, first.Token)
	f.release(first) // lost long ago: must not free the second
	f.locked("db.c", "a1")
	f.Greater(f.acquire("db.d", "a1").Token, second.Token)
}

func testLockNeedsRouter(f *fixture) {
	_, err := f.Acquire(f.t.Context(), "db.c", "nobody", "why")
	f.ErrorIs(err, catalog.ErrEvicted)
}

func testLockGuardsApply(f *fixture) {
	f.cluster()
	f.register("a:1", "a1")
	l, m := f.acquire("db.c", "a1"), f.acquire("$x", "a1")
	change := catalog.Change{Locks: []catalog.Lock{l, m}, Put: []catalog.CollectionChunks{unsharded("db.c", "s0")}}
	f.apply(change)
	stranger := l
	stranger.Router = "b1"
	f.refused(catalog.ErrLockLost, catalog.Change{Locks: []catalog.Lock{m, stranger}})
	f.release(l)
	f.refused(catalog.ErrLockLost, change)
	again := f.acquire("db.c", "a1")
	f.refused(catalog.ErrLockLost, change) // held, but by another token
	change.Locks[0] = again
	f.apply(change)
}

func testLockGoesWithRouter(f *fixture) {
	f.register("a:1", "a1")
	f.register("b:1", "b1")
	lost := f.acquire("db.c", "a1")
	f.register("a:1", "a2")
	f.refused(catalog.ErrLockLost, catalog.Change{Locks: []catalog.Lock{lost}})
	lost = f.acquire("db", "b1")
	f.NoError(f.Deregister(f.t.Context(), "b1"))
	f.refused(catalog.ErrLockLost, catalog.Change{Locks: []catalog.Lock{lost}})
	f.acquire("db.c", "a2")
	f.release(lost)
}
