package catalogtest

import (
	"time"

	"github.com/shardgate/shardgate/catalog"
)

func testRegisterNumbers(f *fixture) {
	f.Equal(1, f.register("a:1", "a1").Number)
	f.Equal(2, f.register("b:1", "b1").Number)
	f.Equal(3, f.register("c:1", "c1").Number)
	f.NoError(f.Deregister(f.t.Context(), "b1"))
	f.Equal(2, f.register("d:1", "d1").Number)
	f.Equal(4, f.register("e:1", "e1").Number)
	rs, err := f.Routers(f.t.Context())
	f.NoError(err)
	var got []string
	for i, r := range rs {
		f.Equal(i+1, r.Number)
		got = append(got, r.Incarnation)
	}
	f.Equal([]string{"a1", "d1", "c1", "e1"}, got)
}

func testRegisterReplaces(f *fixture) {
	began := time.Now()
	r := catalog.Router{
		Incarnation: "a1", Name: "a:1", Version: "1.2", Started: time.UnixMilli(1700000000123).UTC(),
		Ack: catalog.Ack{Version: 99, Held: []catalog.Hold{{NS: "d.a", Version: 5}}}, Silent: true, Users: []catalog.ShardUser{{Shard: "s0", User: "u0"}, {Shard: "s1", User: "u1"}},
	}
	self, replaced, err := f.Register(f.t.Context(), r)
	f.NoError(err)
	f.Nil(replaced)
	f.WithinDuration(began, self.Ping, patience)
	want := r
	want.Number, want.Ping, want.Ack, want.Silent = 1, self.Ping, catalog.Ack{}, false
	f.Equal(&want, self)
	ack := catalog.Ack{Version: 1, Held: []catalog.Hold{{NS: "d.a", Version: 0}}}
	f.NoError(f.Heartbeat(f.t.Context(), "a1", ack, nil))

	own := catalog.ShardUser{Shard: "s0", User: "own"}
	self, replaced, err = f.Register(f.t.Context(), catalog.Router{Incarnation: "a2", Name: "a:1", Users: []catalog.ShardUser{own}})
	f.NoError(err)
	f.Equal("a1", replaced.Incarnation)
	f.Equal(r.Users, replaced.Users)
	f.Equal(ack, replaced.Ack)
	f.Equal("a2", self.Incarnation)
	f.Equal(1, self.Number)
	f.Zero(self.Ack)
	f.Equal(append([]catalog.ShardUser{own}, r.Users...), self.Users, "they are to be dropped yet")
	f.ErrorIs(f.Heartbeat(f.t.Context(), "a1", ack, nil), catalog.ErrEvicted)
	f.NoError(f.Heartbeat(f.t.Context(), "a2", ack, nil))

	_, _, err = f.Register(f.t.Context(), catalog.Router{Incarnation: "a2", Name: "b:1"})
	f.ErrorIs(err, catalog.ErrConflict)
}

func testHeartbeat(f *fixture) {
	f.register("a:1", "a1")
	one := func() catalog.Router {
		f.t.Helper()
		rs, err := f.Routers(f.t.Context())
		f.NoError(err)
		f.Len(rs, 1)
		return rs[0]
	}
	first := one()
	f.Zero(first.Ack)
	f.False(first.Silent)
	users := []catalog.ShardUser{{Shard: "s0", User: "u"}}
	held := []catalog.Hold{{NS: "d.a", Version: 5, Writes: 6, Cursors: 4}, {NS: "d.b", Version: 3}}
	f.NoError(f.Heartbeat(f.t.Context(), "a1", catalog.Ack{Version: 7, Held: held}, users))
	f.Equal(catalog.Ack{Version: 7, Held: held}, one().Ack)
	f.Equal(users, one().Users)
	f.NoError(f.Heartbeat(f.t.Context(), "a1", catalog.Ack{Version: 6, Held: held[1:]}, nil))
	second := one()
	f.Equal(catalog.Ack{Version: 7, Held: held[1:]}, second.Ack, "the version never falls")
	f.Equal(users, second.Users)
	f.False(second.Ping.Before(first.Ping))
	f.NoError(f.Heartbeat(f.t.Context(), "a1", catalog.Ack{Version: 8}, []catalog.ShardUser{}))
	f.Empty(one().Users)
	f.Empty(one().Ack.Held)
	f.ErrorIs(f.Heartbeat(f.t.Context(), "other", catalog.Ack{Version: 8}, nil), catalog.ErrEvicted)
}

func testDeregister(f *fixture) {
	f.register("a:1", "a1")
	f.NoError(f.Deregister(f.t.Context(), "a1"))
	f.NoError(f.Deregister(f.t.Context(), "a1"))
	rs, err := f.Routers(f.t.Context())
	f.NoError(err)
	f.Empty(rs)
	f.ErrorIs(f.Heartbeat(f.t.Context(), "a1", catalog.Ack{Version: 1}, nil), catalog.ErrEvicted)
}

// evict evicts a router by its last heartbeat.
func (f *fixture) evict(incarnation string) {
	f.t.Helper()
	f.NoError(f.Evict(f.t.Context(), incarnation, f.row(incarnation).Ping))
}

// row is the row of an incarnation, which must be there.
func (f *fixture) row(incarnation string) catalog.Router {
	f.t.Helper()
	rs, err := f.Routers(f.t.Context())
	f.NoError(err)
	for i := range rs {
		if rs[i].Incarnation == incarnation {
			return rs[i]
		}
	}
	f.Fail("not registered", incarnation)
	return catalog.Router{}
}

func testEvict(f *fixture) {
	f.cluster()
	users := []catalog.ShardUser{{Shard: "s0", User: "u"}, {Shard: "s1", User: "u"}}
	_, _, err := f.Register(f.t.Context(), catalog.Router{Name: "a:1", Incarnation: "a1", Users: users})
	f.NoError(err)
	l := f.acquire("db.c", "a1")
	seen := f.row("a1").Ping
	f.NoError(f.ShutOut(f.t.Context(), "a1", users[0]), "it is not evicted")
	f.Equal(users, f.row("a1").Users)
	f.NoError(f.Evict(f.t.Context(), "nobody", seen))
	f.ErrorIs(f.Evict(f.t.Context(), "a1", seen.Add(-time.Second)), catalog.ErrConflict, "it has answered since")
	f.False(f.row("a1").Evicted)

	f.evict("a1")
	f.evict("a1")
	f.True(f.row("a1").Evicted)
	f.ErrorIs(f.Heartbeat(f.t.Context(), "a1", catalog.Ack{Version: 9}, []catalog.ShardUser{}), catalog.ErrEvicted)
	_, err = f.Acquire(f.t.Context(), "db.d", "a1", "in vain")
	f.ErrorIs(err, catalog.ErrEvicted)
	f.refused(catalog.ErrLockLost, catalog.Change{Locks: []catalog.Lock{l}})
	f.NoError(f.Deregister(f.t.Context(), "a1"))
	row := f.row("a1")
	f.Equal(users, row.Users, "it does not go before it is shut out")
	f.Zero(row.Ack)

	f.NoError(f.ShutOut(f.t.Context(), "a1", users[1]))
	f.NoError(f.ShutOut(f.t.Context(), "a1", users[1]))
	f.Equal(users[:1], f.row("a1").Users)
	f.NoError(f.ShutOut(f.t.Context(), "a1", users[0]))
	rs, err := f.Routers(f.t.Context())
	f.NoError(err)
	f.Empty(rs)
	f.register("b:1", "b1")
	f.acquire("db.c", "b1")
	f.evict("b1")
	f.register("c:1", "c1")
	f.acquire("db.c", "c1") // one without users was gone at once
}

func testEvictedJoinsAgain(f *fixture) {
	users := []catalog.ShardUser{{Shard: "s0", User: "u"}, {Shard: "s1", User: "u"}}
	_, _, err := f.Register(f.t.Context(), catalog.Router{Name: "a:1", Incarnation: "a1", Users: users})
	f.NoError(err)
	f.acquire("db.c", "a1")
	f.evict("a1")
	f.NoError(f.ShutOut(f.t.Context(), "a1", users[1]))
	self, replaced, err := f.Register(f.t.Context(), catalog.Router{Name: "a:1", Incarnation: "a2"})
	f.NoError(err)
	f.True(replaced.Evicted)
	f.False(self.Evicted)
	f.Equal(users[:1], self.Users, "what it is not shut out of yet")
	f.NoError(f.ShutOut(f.t.Context(), "a1", users[0]))
	f.Equal(users[:1], f.row("a2").Users)
	f.NoError(f.Heartbeat(f.t.Context(), "a2", catalog.Ack{Version: 1}, nil))
	f.acquire("db.c", "a2")
}

func testBreak(f *fixture) {
	f.cluster()
	brk := func(name string, shards ...string) {
		f.t.Helper()
		f.NoError(f.Break(f.t.Context(), name, shards))
	}
	users := []catalog.ShardUser{{Shard: "s0", User: "u"}, {Shard: "s1", User: "u"}}
	_, _, err := f.Register(f.t.Context(), catalog.Router{Name: "a:1", Incarnation: "a1", Users: users})
	f.NoError(err)
	f.register("b:1", "b1")
	lost := f.acquire("db.c", "a1")
	f.acquire("e", "a1")
	f.acquire("$shards", "a1")
	brk("db.c")
	f.locked("db.c", "b1") // its holder lives
	f.evict("a1")
	brk("db.c", "s0")
	brk("db", "s1")
	brk("db.other")
	f.locked("db.c", "b1")
	f.NoError(f.ShutOut(f.t.Context(), "a1", users[0]))
	brk("db.c", "s0", "s1")
	f.locked("db.c", "b1")
	brk("db.c", "s0")
	again := f.acquire("db.c", "b1")
	f.release(lost)
	f.apply(catalog.Change{Locks: []catalog.Lock{again}})
	f.locked("e.c", "b1")
	brk("e.c", "s2")
	f.acquire("e.c", "b1")
	brk("$shards")
	f.acquire("$shards", "b1")
	brk("db.c")
	f.locked("db.c", "b1") // its own
}
