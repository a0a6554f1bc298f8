package catalogtest

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

func testNew(f *fixture) {
	d := f.load(0)
	f.True(d.Full)
	f.Equal(catalog.Version(1), d.Version)
	f.Len(d.Settings, 1)
	f.Equal(catalog.ClusterIDSetting, d.Settings[0].ID)
	id, ok := d.Settings[0].Doc.Lookup("value").ObjectIDOK()
	f.True(ok)
	f.False(id.IsZero())
	f.Equal(id.Hex(), d.Cluster)
	f.Equal(d.Cluster, f.load(d.Version).Cluster, "told each time")
	f.Empty(d.Shards)
	f.Empty(d.Databases)
	f.Empty(d.Collections)
}

func testRoundTrip(f *fixture) {
	s, db := shard("s0"), database("db", "s0")
	full := catalog.Change{
		Shards: []catalog.Shard{shard("s1"), s}, Databases: []catalog.Database{db},
		Put:      []catalog.CollectionChunks{sharded("db.s"), unsharded("db.a", "s1"), view("db.v")},
		Settings: []catalog.Setting{{ID: "balancer", Doc: doc("_id", "balancer")}},
	}
	v := f.apply(full)
	d := f.load(0)
	f.Equal(v, d.Version)
	s1 := shard("s1")
	s.Added, s1.Added = v, v
	f.Equal([]catalog.Shard{s, s1}, d.Shards)
	f.Equal([]catalog.Database{db}, d.Databases)
	want := []catalog.CollectionChunks{unsharded("db.a", "s1"), sharded("db.s"), view("db.v")}
	for i := range want {
		want[i].Version = v
	}
	f.Equal(want, f.whole(d))
	f.Len(d.Settings, 2)
	f.Equal(full.Settings[0], d.Settings[0])
}

func testReplaces(f *fixture) {
	added := f.cluster()
	c := sharded("db.s")
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{c}})
	s, db := shard("s0"), database("db", "s1")
	s.Host, s.Draining, s.Tags, s.Capabilities = "s0/other:1", true, nil, nil
	c.Key, c.Kind, c.Collation, c.Options = nil, catalog.KindUnsharded, nil, nil
	c.LastMod = time.UnixMilli(1700000000123).UTC()
	c.Chunks = []catalog.Chunk{chunk(9, 0, 255, "s1")}
	c.Chunks[0].Jumbo = true
	set := catalog.Setting{ID: "chunksize", Doc: doc("value", int32(1))}
	v := f.apply(catalog.Change{
		Shards: []catalog.Shard{s}, Databases: []catalog.Database{db},
		Put: []catalog.CollectionChunks{c}, Settings: []catalog.Setting{set},
	})
	set.Doc = doc("value", int32(2))
	last := f.apply(catalog.Change{Settings: []catalog.Setting{set}})
	d := f.load(0)
	s.Added, c.Version = added, v
	f.Equal(last, d.Version)
	f.Equal(s, d.Shards[0])
	f.Equal([]catalog.Database{db}, d.Databases)
	f.Equal([]catalog.CollectionChunks{c}, f.whole(d))
	f.Equal(set, d.Settings[0])
}

func testVersions(f *fixture) {
	v := f.cluster()
	f.Equal(v+1, f.apply(catalog.Change{}))
	f.refused(catalog.ErrConflict, catalog.Change{Expect: []catalog.Expect{{NS: "db.none", Version: 1}}})
	f.Equal(v+2, f.apply(catalog.Change{Log: []catalog.LogEntry{{ID: "1"}}}))
	f.Equal(v+2, f.version())
}

func testRows(f *fixture) {
	v := f.cluster()
	c := sharded("db.s")
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{c}})
	c.State, c.Migrations, c.NoBalance = catalog.StateFenced, false, false
	c.Version = f.apply(catalog.Change{Rows: []catalog.Collection{c.Collection, view("db.v").Collection}})
	d := f.load(v)
	vw := view("db.v")
	vw.Version = c.Version
	f.Equal([]catalog.CollectionChunks{c, vw}, f.whole(d))

	c.State = catalog.StateDropping
	c.Version = f.apply(catalog.Change{Rows: []catalog.Collection{c.Collection}})
	row := c
	row.Chunks = nil
	f.Equal(row, f.part(f.load(c.Version-1)), "no chunk changed")
	f.Equal([]catalog.CollectionChunks{c, vw}, f.whole(f.load(v)))

	bad := unsharded("db.s", "s0").Collection // has three chunks
	f.refused(catalog.ErrInvalid, catalog.Change{Rows: []catalog.Collection{bad}})
	bad.NS = "db.new" // has none
	f.refused(catalog.ErrInvalid, catalog.Change{Rows: []catalog.Collection{bad}})
}

func testExpect(f *fixture) {
	f.cluster()
	create := catalog.Change{
		Expect: []catalog.Expect{{NS: "db.c"}},
		Put:    []catalog.CollectionChunks{unsharded("db.c", "s0")},
	}
	v := f.apply(create)
	f.refused(catalog.ErrConflict, create)
	update := catalog.Change{
		Expect: []catalog.Expect{{NS: "db.c", Version: v}, {NS: "db.d"}},
		Rows:   []catalog.Collection{unsharded("db.c", "s0").Collection},
	}
	f.apply(update)
	f.refused(catalog.ErrConflict, update)
	f.apply(catalog.Change{Drop: []string{"db.c"}})
	f.apply(create)
}

// testExpectDatabase: who makes a database is told when another was first.
func testExpectDatabase(f *fixture) {
	f.cluster()
	create := catalog.Change{
		Expect:    []catalog.Expect{{NS: "new"}, {NS: "new.c"}},
		Databases: []catalog.Database{database("new", "s0")},
		Put:       []catalog.CollectionChunks{unsharded("new.c", "s0")},
	}
	v := f.apply(create)
	create.Expect = create.Expect[:1]
	create.Databases[0].Primary = "s1"
	f.refused(catalog.ErrConflict, create)
	f.Equal("s0", f.load(v - 1).Databases[0].Primary)
	f.apply(catalog.Change{Expect: []catalog.Expect{{NS: "new", Version: v}}})
	f.apply(catalog.Change{DropDatabases: []string{"new"}})
	f.apply(create)
}

func testReferences(f *fixture) {
	f.cluster()
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{unsharded("db.c", "s1")}})
	refuse := func(c catalog.Change) {
		f.t.Helper()
		f.refused(catalog.ErrConflict, c)
	}
	refuse(catalog.Change{DropShards: []string{"s0"}}) // a primary
	refuse(catalog.Change{DropShards: []string{"s1"}}) // has a chunk
	refuse(catalog.Change{Put: []catalog.CollectionChunks{unsharded("db.d", "s9")}})
	refuse(catalog.Change{Put: []catalog.CollectionChunks{unsharded("dc.d", "s0")}})
	refuse(catalog.Change{Databases: []catalog.Database{database("dc", "s9")}})
	f.apply(catalog.Change{
		Put: []catalog.CollectionChunks{unsharded("db.c", "s0")}, DropShards: []string{"s1"},
	})
	f.Len(f.load(0).Shards, 1)
}

func testInvalid(f *fixture) {
	f.cluster()
	change := func(edit func(c *catalog.CollectionChunks)) {
		f.t.Helper()
		c := sharded("db.s")
		edit(&c)
		f.refused(catalog.ErrInvalid, catalog.Change{Put: []catalog.CollectionChunks{c}})
	}
	change(func(c *catalog.CollectionChunks) { c.NS = "db" })
	change(func(c *catalog.CollectionChunks) { c.Kind = "other" })
	change(func(c *catalog.CollectionChunks) { c.State = "" })
	change(func(c *catalog.CollectionChunks) { c.Key = nil })
	change(func(c *catalog.CollectionChunks) { c.Chunks = nil })
	change(func(c *catalog.CollectionChunks) { c.Kind, c.Key = catalog.KindUnsharded, nil })
	change(func(c *catalog.CollectionChunks) { c.Chunks = append(c.Chunks[:1], c.Chunks[2]) })
	change(func(c *catalog.CollectionChunks) { c.Chunks[1].MinKey = []byte{9} })
	change(func(c *catalog.CollectionChunks) { c.Chunks[1].MaxKey = c.Chunks[1].MinKey })
	change(func(c *catalog.CollectionChunks) { c.Chunks[1].ID = c.Chunks[0].ID })
	change(func(c *catalog.CollectionChunks) { c.Chunks[1].Shard = "" })
	c := sharded("db.s")
	f.refused(catalog.ErrInvalid, catalog.Change{Put: []catalog.CollectionChunks{c, c}})
	f.refused(catalog.ErrInvalid, catalog.Change{
		Put: []catalog.CollectionChunks{c}, Rows: []catalog.Collection{c.Collection},
	})
	f.refused(catalog.ErrInvalid, catalog.Change{Shards: []catalog.Shard{{ID: "x"}}})
	f.refused(catalog.ErrInvalid, catalog.Change{Databases: []catalog.Database{database("a.b", "s0")}})
	f.refused(catalog.ErrInvalid, catalog.Change{Settings: []catalog.Setting{{ID: "x"}}})
}

// testNotShared changes what was handed in and out; the Store must not notice.
func testNotShared(f *fixture) {
	f.cluster()
	c := sharded("db.s")
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{c}})
	want := f.load(0)
	spoil := func(c catalog.CollectionChunks) {
		c.Chunks[0].MinKey[0]++
		c.Chunks[0].History[0].Shard = "spoilt"
		c.Chunks[1].Shard = "spoilt"
		c.Key[4]++
	}
	spoil(c)
	spoil(f.load(0).Collections[0].CollectionChunks)
	got := f.load(0)
	got.Shards[0].Tags[0] = "spoilt"
	f.Equal(want, f.load(0))
}

func testDropAndPut(f *fixture) {
	v := f.cluster()
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{sharded("db.s")}})
	renamed := sharded("db.t")
	again := unsharded("db.s", "s1")
	v2 := f.apply(catalog.Change{
		Drop: []string{"db.s", "db.unknown"}, Put: []catalog.CollectionChunks{renamed, again},
	})
	d := f.load(v)
	renamed.Version, again.Version = v2, v2
	f.Equal([]catalog.CollectionChunks{again, renamed}, f.whole(d))
	f.Empty(d.CollectionsGone)
}

func testChunkEdit(f *fixture) {
	f.cluster()
	c := sharded("db.s")
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{c, unsharded("db.u", "s0")}})
	edit := func(remove []bson.ObjectID, put ...catalog.Chunk) catalog.Version {
		f.t.Helper()
		return f.apply(catalog.Change{Chunks: []catalog.ChunkEdit{{NS: "db.s", Remove: remove, Put: put}}})
	}
	all := func(want catalog.CollectionChunks) {
		f.t.Helper()
		f.Equal(want, f.whole(f.load(0))[0])
	}
	changed := func(want catalog.CollectionChunks, chunks ...catalog.Chunk) {
		f.t.Helper()
		want.Chunks = chunks
		f.Equal(want, f.part(f.load(want.Version-1)))
	}
	v := edit([]bson.ObjectID{chunkID(1)}, chunk(4, 0, 5, "s0"), chunk(1, 5, 10, "s1")) // split, move
	want := sharded("db.s")
	want.Version = v
	want.Chunks = []catalog.Chunk{chunk(4, 0, 5, "s0"), chunk(1, 5, 10, "s1"), c.Chunks[1], c.Chunks[2]}
	all(want)
	changed(want, want.Chunks[0], want.Chunks[1])

	v = edit([]bson.ObjectID{chunkID(2), chunkID(1)}, chunk(1, 5, 20, "s1")) // merge
	want.Version = v
	want.Chunks = []catalog.Chunk{chunk(4, 0, 5, "s0"), chunk(1, 5, 20, "s1"), c.Chunks[2]}
	all(want)
	changed(want, want.Chunks[1])
	both := want
	both.Chunks = want.Chunks[:2]
	f.Equal(both, f.part(f.load(v-2)), "of both changes what is left")

	// The two ends at once, and the row with them.
	want.State = catalog.StateFenced
	v = f.apply(catalog.Change{Rows: []catalog.Collection{want.Collection}, Chunks: []catalog.ChunkEdit{{
		NS: "db.s", Remove: []bson.ObjectID{chunkID(3), chunkID(4)},
		Put: []catalog.Chunk{chunk(5, 0, 5, "s1"), chunk(6, 20, 255, "s1")},
	}}})
	want.Version = v
	want.Chunks = []catalog.Chunk{chunk(5, 0, 5, "s1"), chunk(1, 5, 20, "s1"), chunk(6, 20, 255, "s1")}
	all(want)
	changed(want, want.Chunks[0], want.Chunks[2])
}

// testDeltaAfterEdit: what is put anew comes as a whole, whatever was edited before, and
// what is edited after that is a part again.
func testDeltaAfterEdit(f *fixture) {
	f.cluster()
	v := f.apply(catalog.Change{Put: []catalog.CollectionChunks{sharded("db.s")}})
	move := catalog.Change{Chunks: []catalog.ChunkEdit{{
		NS: "db.s", Remove: []bson.ObjectID{chunkID(2)}, Put: []catalog.Chunk{chunk(2, 10, 20, "s0")},
	}}}
	f.apply(move)
	again := sharded("db.s")
	again.Version = f.apply(catalog.Change{Put: []catalog.CollectionChunks{again}})
	f.Equal([]catalog.CollectionChunks{again}, f.whole(f.load(v)))
	f.Equal([]catalog.CollectionChunks{again}, f.whole(f.load(again.Version-1)))

	moved := sharded("db.s")
	moved.Version = f.apply(move)
	moved.Chunks = []catalog.Chunk{chunk(2, 10, 20, "s0")}
	f.Equal(moved, f.part(f.load(again.Version)))
	f.Len(f.whole(f.load(again.Version - 1))[0].Chunks, 3)

	f.apply(catalog.Change{Drop: []string{"db.s"}})
	anew := sharded("db.s") // of the same chunk ids
	anew.Version = f.apply(catalog.Change{Put: []catalog.CollectionChunks{anew}})
	f.Equal([]catalog.CollectionChunks{anew}, f.whole(f.load(moved.Version)))
	last := f.apply(catalog.Change{Drop: []string{"db.s"}, Put: []catalog.CollectionChunks{anew}})
	anew.Version = last
	f.Equal([]catalog.CollectionChunks{anew}, f.whole(f.load(last-1)))
}

func testChunkEditRefused(f *fixture) {
	f.cluster()
	f.apply(catalog.Change{Put: []catalog.CollectionChunks{sharded("db.s")}})
	refuse := func(want error, e ...catalog.ChunkEdit) {
		f.t.Helper()
		f.refused(want, catalog.Change{Chunks: e})
	}
	one := []bson.ObjectID{chunkID(1)}
	list := func(c ...catalog.Chunk) []catalog.Chunk { return c }
	refuse(catalog.ErrConflict, catalog.ChunkEdit{NS: "db.none", Remove: one, Put: list(chunk(1, 0, 10, "s1"))})
	refuse(catalog.ErrConflict, catalog.ChunkEdit{NS: "db.s", Remove: []bson.ObjectID{chunkID(9)}, Put: list(chunk(9, 0, 10, "s1"))})
	refuse(catalog.ErrConflict, catalog.ChunkEdit{NS: "db.s", Remove: one, Put: list(chunk(2, 0, 10, "s1"))}) // id in use
	refuse(catalog.ErrConflict, catalog.ChunkEdit{NS: "db.s", Remove: one, Put: list(chunk(1, 0, 10, "s9"))})
	refuse(catalog.ErrInvalid, catalog.ChunkEdit{NS: "db.s", Remove: one})
	refuse(catalog.ErrInvalid, catalog.ChunkEdit{NS: "db.s", Put: list(chunk(9, 0, 10, "s1"))})
	refuse(catalog.ErrInvalid, catalog.ChunkEdit{NS: "db.s", Remove: one, Put: list(chunk(1, 0, 9, "s1"))})
	refuse(catalog.ErrInvalid, catalog.ChunkEdit{NS: "db.s", Remove: one, Put: list(chunk(1, 0, 11, "s1"))})
	refuse(catalog.ErrInvalid, catalog.ChunkEdit{NS: "db.s", Remove: one, Put: list(chunk(1, 0, 4, "s1"), chunk(8, 5, 10, "s1"))})
	e := catalog.ChunkEdit{NS: "db.s", Remove: one, Put: list(chunk(1, 0, 10, "s1"))}
	refuse(catalog.ErrInvalid, e, e)
}
