package catalogtest

import (
	"fmt"
	"time"

	"github.com/shardgate/shardgate/catalog"
)

func testDeltaOnlyChanges(f *fixture) {
	v := f.cluster()
	d := f.load(v)
	f.Equal(&catalog.Delta{Version: v, Timeline: d.Timeline, Cluster: d.Cluster}, d)

	v1 := f.apply(catalog.Change{Put: []catalog.CollectionChunks{unsharded("db.a", "s0"), unsharded("db.b", "s0")}})
	v2 := f.apply(catalog.Change{Rows: []catalog.Collection{unsharded("db.b", "s0").Collection}})
	v3 := f.apply(catalog.Change{
		Shards: []catalog.Shard{shard("s1")}, Databases: []catalog.Database{database("dc", "s1")},
		Settings: []catalog.Setting{{ID: "x", Doc: doc("_id", "x")}},
	})
	d = f.load(v)
	f.False(d.Full)
	f.Equal(v3, d.Version)
	f.Equal([]string{"db.a", "db.b"}, names(d.Collections))
	f.Equal(v1, d.Collections[0].Version)
	f.Equal(v2, d.Collections[1].Version)

	d = f.load(v1)
	f.Equal([]string{"db.b"}, names(d.Collections))
	f.Empty(f.part(d).Chunks)

	d = f.load(v2)
	f.Empty(d.Collections)
	f.Len(d.Shards, 1)
	f.Equal("s1", d.Shards[0].ID)
	f.Equal([]catalog.Database{database("dc", "s1")}, d.Databases)
	f.Equal([]catalog.Setting{{ID: "x", Doc: doc("_id", "x")}}, d.Settings)
}

func testDeltaDrops(f *fixture) {
	f.cluster()
	v := f.apply(catalog.Change{
		Shards:    []catalog.Shard{shard("s2"), shard("s3")},
		Databases: []catalog.Database{database("dc", "s2")},
		Put:       []catalog.CollectionChunks{sharded("db.a"), view("db.v")},
		Settings:  []catalog.Setting{{ID: "x", Doc: doc("_id", "x")}},
	})
	v1 := f.apply(catalog.Change{Drop: []string{"db.v", "db.unknown"}})
	f.apply(catalog.Change{
		Drop: []string{"db.a"}, DropDatabases: []string{"dc", "unknown"},
		DropShards: []string{"s3", "s2", "unknown"}, DropSettings: []string{"x", "unknown"},
	})
	d := f.load(v)
	f.Equal([]string{"db.a", "db.v"}, d.CollectionsGone)
	f.Equal([]string{"dc"}, d.DatabasesGone)
	f.Equal([]string{"s2", "s3"}, d.ShardsGone)
	f.Equal([]string{"x"}, d.SettingsGone)
	f.Empty(d.Collections)
	f.Empty(d.Shards)
	f.Equal([]string{"db.a"}, f.load(v1).CollectionsGone)

	d = f.load(0)
	f.Empty(d.CollectionsGone)
	f.Empty(d.Collections)
	f.Len(d.Shards, 2)
	f.Len(d.Databases, 1)
}

// testDeltaDropRecreate: what was dropped and made again between two loads has
// only changed.
func testDeltaDropRecreate(f *fixture) {
	f.cluster()
	old := sharded("db.c")
	v := f.apply(catalog.Change{
		Shards: []catalog.Shard{shard("s2")}, Databases: []catalog.Database{database("dc", "s0")},
		Put:      []catalog.CollectionChunks{old},
		Settings: []catalog.Setting{{ID: "x", Doc: doc("_id", "x")}},
	})
	dropped := f.apply(catalog.Change{
		Drop: []string{"db.c"}, DropShards: []string{"s2"}, DropDatabases: []string{"dc"}, DropSettings: []string{"x"},
	})
	again := unsharded("db.c", "s1")
	again.UUID[0]++
	again.Version = f.apply(catalog.Change{
		Shards: []catalog.Shard{shard("s2")}, Databases: []catalog.Database{database("dc", "s1")},
		Put:      []catalog.CollectionChunks{again},
		Settings: []catalog.Setting{{ID: "x", Doc: doc("_id", "y")}},
	})
	for _, after := range []catalog.Version{v, dropped} {
		d := f.load(after)
		f.Equal([]catalog.CollectionChunks{again}, f.whole(d))
		f.Empty(d.CollectionsGone)
		f.Empty(d.ShardsGone)
		f.Empty(d.DatabasesGone)
		f.Empty(d.SettingsGone)
		f.Equal([]catalog.Database{database("dc", "s1")}, d.Databases)
		f.Len(d.Shards, 1)
		f.Equal(again.Version, d.Shards[0].Added)
		f.Equal([]catalog.Setting{{ID: "x", Doc: doc("_id", "y")}}, d.Settings)
	}
}

func testDeltaDropDatabase(f *fixture) {
	f.cluster()
	v := f.apply(catalog.Change{
		Databases: []catalog.Database{database("db2", "s0"), database("d", "s0")},
		Put: []catalog.CollectionChunks{
			sharded("db.a"), view("db.a.b"), unsharded("db2.a", "s0"), unsharded("d.a", "s1"),
		},
	})
	f.apply(catalog.Change{DropDatabases: []string{"db"}})
	d := f.load(v)
	f.Equal([]string{"db"}, d.DatabasesGone)
	f.Equal([]string{"db.a", "db.a.b"}, d.CollectionsGone)
	f.Equal([]string{"d.a", "db2.a"}, names(f.load(0).Collections))

	f.apply(catalog.Change{ // dropped and made again in one
		DropDatabases: []string{"db2"}, Databases: []catalog.Database{database("db2", "s1")},
		Put: []catalog.CollectionChunks{unsharded("db2.b", "s1")},
	})
	d = f.load(v)
	f.Equal([]string{"db"}, d.DatabasesGone)
	f.Equal([]string{"db.a", "db.a.b", "db2.a"}, d.CollectionsGone)
	f.Equal([]string{"db2.b"}, names(d.Collections))
}

// testDeltaAhead: a router that has seen more than the catalog holds can tell.
func testDeltaAhead(f *fixture) {
	v := f.cluster()
	d := f.load(v + 10)
	f.Equal(v, d.Version)
	f.Empty(d.Collections)
	f.Empty(d.Shards)
}

func testLog(f *fixture) {
	at := time.UnixMilli(1700000000123).UTC()
	var all []catalog.LogEntry
	for i := range 6 {
		e := catalog.LogEntry{
			ID: fmt.Sprint("id", i), Action: i%3 == 0, Server: "r", Shard: "s0", Client: "c:1",
			Time: at.Add(-time.Duration(i) * time.Second), What: "split", NS: "db.c", Details: doc("n", int32(i)),
		}
		all = append(all, e)
		e.Time = e.Time.Add(999 * time.Microsecond) // does not fit BSON
		f.apply(catalog.Change{Log: []catalog.LogEntry{e}})
	}
	get := func(action bool, limit int) []catalog.LogEntry {
		f.t.Helper()
		got, err := f.Log(f.t.Context(), action, limit)
		f.NoError(err)
		return got
	}
	f.Equal([]catalog.LogEntry{all[1], all[2], all[4], all[5]}, get(false, 10))
	f.Equal([]catalog.LogEntry{all[4], all[5]}, get(false, 2))
	f.Equal([]catalog.LogEntry{all[0], all[3]}, get(true, 10))
	f.Empty(get(true, 0))
}
