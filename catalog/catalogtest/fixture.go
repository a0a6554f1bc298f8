package catalogtest

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// patience bounds every wait of the suite.
const patience = 20 * time.Second

// fixture is a fresh Store with the calls that may not fail.
type fixture struct {
	*require.Assertions
	catalog.Store

	t *testing.T
}

func newFixture(t *testing.T, newStore func(t *testing.T) catalog.Store) *fixture {
	t.Helper()
	s := newStore(t)
	t.Cleanup(s.Close)
	return &fixture{Assertions: require.New(t), Store: s, t: t}
}

func (f *fixture) apply(c catalog.Change) catalog.Version {
	f.t.Helper()
	v, err := f.Apply(f.t.Context(), c)
	f.NoError(err)
	return v
}

func (f *fixture) load(after catalog.Version) *catalog.Delta {
	f.t.Helper()
	d, err := f.Load(f.t.Context(), after)
	f.NoError(err)
	return d
}

// version is the present one.
func (f *fixture) version() catalog.Version {
	f.t.Helper()
	return f.load(0).Version
}

// refused checks that a change is refused and leaves no trace.
func (f *fixture) refused(want error, c catalog.Change) {
	f.t.Helper()
	before := f.load(0)
	_, err := f.Apply(f.t.Context(), c)
	f.ErrorIs(err, want)
	f.Equal(before, f.load(0))
}

func (f *fixture) register(name, incarnation string) *catalog.Router {
	f.t.Helper()
	self, _, err := f.Register(f.t.Context(), catalog.Router{Name: name, Incarnation: incarnation})
	f.NoError(err)
	return self
}

// cluster puts two shards and the database "db" in place.
func (f *fixture) cluster() catalog.Version {
	f.t.Helper()
	return f.apply(catalog.Change{
		Shards:    []catalog.Shard{shard("s0"), shard("s1")},
		Databases: []catalog.Database{database("db", "s0")},
	})
}

func shard(id string) catalog.Shard {
	return catalog.Shard{
		ID: id, Host: id + "/localhost:1,localhost:2", Weight: 1.5, Tags: []string{"a", "b"},
		TopologyTime: 0xfedc_0000_0000_0001, Version: "6.0.5", Capabilities: []string{"auth"},
	}
}

func database(name, primary string) catalog.Database {
	return catalog.Database{
		Name: name, Primary: primary, ClaimsShard: "s9", Placement: catalog.PlacementSpread,
		UUID: uuid.NewSHA1(uuid.Nil, []byte(name)), Timestamp: 7<<32 | 1, LastMod: 1,
	}
}

func doc(name string, value any) bson.Raw {
	raw, err := bson.Marshal(bson.D{{Key: name, Value: value}})
	if err != nil {
		panic(err) // the suite's own values
	}
	return raw
}

// chunkID is a chunk id that tests can name.
func chunkID(n byte) bson.ObjectID {
	return bson.ObjectID{0: 0xc0, 11: n}
}

func chunk(n, from, to byte, shard string) catalog.Chunk {
	return catalog.Chunk{
		ID: chunkID(n), Min: doc("x", int32(from)), Max: doc("x", int32(to)),
		MinKey: []byte{from}, MaxKey: []byte{to}, Shard: shard,
		LastMod: 1<<32 | catalog.Timestamp(n), OnShardSince: 0x8000_0001_0000_0002,
		History: []catalog.Owner{{Shard: shard, ValidAfter: 0x8000_0001_0000_0002}, {Shard: "old", ValidAfter: 3}},
	}
}

// sharded is a collection of three chunks: [0,10) and [20,255) on s0, [10,20) on s1.
func sharded(ns string) catalog.CollectionChunks {
	return catalog.CollectionChunks{
		Collection: catalog.Collection{
			NS: ns, UUID: uuid.NewSHA1(uuid.Nil, []byte(ns)), Kind: catalog.KindSharded, State: catalog.StateOpen,
			Key: doc("x", int32(1)), Unique: true, Options: doc("validator", "v"), Collation: doc("locale", "fr"),
			Pinned: true, Group: "g", Epoch: bson.ObjectID{0: 9}, Timestamp: 5,
			LastMod:   time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC),
			NoBalance: true, Migrations: true, RenamedTo: "d.renamed",
		},
		Chunks: []catalog.Chunk{chunk(1, 0, 10, "s0"), chunk(2, 10, 20, "s1"), chunk(3, 20, 255, "s0")},
	}
}

func unsharded(ns, shard string) catalog.CollectionChunks {
	k := chunk(1, 0, 255, shard)
	k.Min, k.Max = doc("_id", bson.MinKey{}), doc("_id", bson.MaxKey{})
	k.History = nil
	return catalog.CollectionChunks{
		Collection: catalog.Collection{
			NS: ns, UUID: uuid.NewSHA1(uuid.Nil, []byte(ns)), Kind: catalog.KindUnsharded,
			State: catalog.StateOpen, LastMod: time.UnixMilli(1).UTC(),
		},
		Chunks: []catalog.Chunk{k},
	}
}

func view(ns string) catalog.CollectionChunks {
	return catalog.CollectionChunks{Collection: catalog.Collection{
		NS: ns, Kind: catalog.KindView, State: catalog.StateOpen, Options: doc("viewOn", "c"),
		LastMod: time.UnixMilli(2).UTC(),
	}}
}

// whole are a delta's collections, which must have all their chunks.
func (f *fixture) whole(d *catalog.Delta) []catalog.CollectionChunks {
	f.t.Helper()
	var out []catalog.CollectionChunks
	for i := range d.Collections {
		f.False(d.Collections[i].Part, d.Collections[i].NS)
		out = append(out, d.Collections[i].CollectionChunks)
	}
	return out
}

// part is a delta's only collection, which must have no more than what changed.
func (f *fixture) part(d *catalog.Delta) catalog.CollectionChunks {
	f.t.Helper()
	f.Len(d.Collections, 1)
	f.True(d.Collections[0].Part)
	return d.Collections[0].CollectionChunks
}

func names(colls []catalog.CollectionDelta) []string {
	var out []string
	for i := range colls {
		out = append(out, colls[i].NS)
	}
	return out
}
