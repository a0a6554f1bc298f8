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
