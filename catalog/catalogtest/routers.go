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
		Acked: 99, Silent: true, Users: []catalog.ShardUser{{Shard: "s0", User: "u0"}, {Shard: "s1", User: "u1"}},
	}
	self, replaced, err := f.Register(f.t.Context(), r)
	f.NoError(err)
	f.Nil(replaced)
	f.WithinDuration(began, self.Ping, patience)
	want := r
	want.Number, want.Ping, want.Acked, want.Silent = 1, self.Ping, 0, false
	f.Equal(&want, self)
	f.NoError(f.Heartbeat(f.t.Context(), "a1", 1, nil))

	self, replaced, err = f.Register(f.t.Context(), catalog.Router{Incarnation: "a2", Name: "a:1"})
	f.NoError(err)
	f.Equal("a1", replaced.Incarnation)
	f.Equal(r.Users, replaced.Users)
	f.Equal(catalog.Version(1), replaced.Acked)
	f.Equal("a2", self.Incarnation)
	f.Equal(1, self.Number)
	f.Empty(self.Users)
	f.ErrorIs(f.Heartbeat(f.t.Context(), "a1", 1, nil), catalog.ErrEvicted)
	f.NoError(f.Heartbeat(f.t.Context(), "a2", 1, nil))

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
	f.Zero(first.Acked)
	f.False(first.Silent)
	users := []catalog.ShardUser{{Shard: "s0", User: "u"}}
	f.NoError(f.Heartbeat(f.t.Context(), "a1", 7, users))
	f.Equal(catalog.Version(7), one().Acked)
	f.Equal(users, one().Users)
	f.NoError(f.Heartbeat(f.t.Context(), "a1", 6, nil))
	second := one()
	f.Equal(catalog.Version(7), second.Acked)
	f.Equal(users, second.Users)
	f.False(second.Ping.Before(first.Ping))
	f.NoError(f.Heartbeat(f.t.Context(), "a1", 8, []catalog.ShardUser{}))
	f.Empty(one().Users)
	f.ErrorIs(f.Heartbeat(f.t.Context(), "other", 8, nil), catalog.ErrEvicted)
}

func testDeregister(f *fixture) {
	f.register("a:1", "a1")
	f.NoError(f.Deregister(f.t.Context(), "a1"))
	f.NoError(f.Deregister(f.t.Context(), "a1"))
	rs, err := f.Routers(f.t.Context())
	f.NoError(err)
	f.Empty(rs)
	f.ErrorIs(f.Heartbeat(f.t.Context(), "a1", 1, nil), catalog.ErrEvicted)
}
