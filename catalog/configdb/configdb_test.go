package configdb_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/configdb"
	"github.com/shardgate/shardgate/catalog/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden files anew")

// TestDocumentsGolden compares each collection, as canonical extended JSON, one
// document a line, with testdata/<collection>.jsonl.
func TestDocumentsGolden(t *testing.T) {
	s := snapshot()
	for _, name := range configdb.Names() {
		t.Run(name, func(t *testing.T) {
			docs, ok := configdb.Documents(name, s)
			require.True(t, ok)
			var got bytes.Buffer
			for _, d := range docs {
				require.NoError(t, d.Validate())
				line, err := bson.MarshalExtJSON(d, true, false)
				require.NoError(t, err)
				got.Write(line)
				got.WriteByte('\n')
			}
			file := filepath.Join("testdata", name+".jsonl")
			if *update {
				require.NoError(t, os.WriteFile(file, got.Bytes(), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String())
		})
	}
}

func TestDocumentsUnknown(t *testing.T) {
	for _, name := range []string{"", "system.sessions", "Version"} {
		docs, ok := configdb.Documents(name, snapshot())
		require.False(t, ok)
		require.Empty(t, docs)
	}
}

// TestDocumentsEmpty: an empty cluster has a version, and nothing else.
func TestDocumentsEmpty(t *testing.T) {
	for _, name := range configdb.Names() {
		docs, ok := configdb.Documents(name, configdb.Snapshot{})
		require.True(t, ok)
		if name != "version" {
			require.Empty(t, docs, name)
		}
	}
}

func TestDocumentsLeaveSnapshot(t *testing.T) {
	s := snapshot()
	for _, name := range configdb.Names() {
		configdb.Documents(name, s)
	}
	require.Equal(t, snapshot(), s)
}

func TestClusterID(t *testing.T) {
	require.True(t, configdb.ClusterID(nil).IsZero())
	store := mem.New(mem.Options{})
	defer store.Close()
	d, err := store.Load(t.Context(), 0)
	require.NoError(t, err)
	require.False(t, configdb.ClusterID(d.Settings).IsZero())
}

func BenchmarkChunks(b *testing.B) {
	c := snapshot().Collections[0]
	for range 10_000 {
		c.Chunks = append(c.Chunks, c.Chunks[0])
	}
	s := configdb.Snapshot{Collections: []catalog.CollectionChunks{c}}
	b.ReportAllocs()
	for b.Loop() {
		configdb.Documents("chunks", s)
	}
}

func raw(d bson.D) bson.Raw {
	out, err := bson.Marshal(d)
	if err != nil {
		panic(err) // the test's own values
	}
	return out
}

func field(name string, value any) bson.Raw { return raw(bson.D{{Key: name, Value: value}}) }

func id(n byte) bson.ObjectID { return bson.ObjectID{0: 0x65, 11: n} }

func ts(seconds, ordinal uint32) catalog.Timestamp {
	return catalog.Timestamp(seconds)<<32 | catalog.Timestamp(ordinal)
}

// snapshot is out of order where order is configdb's concern.
func snapshot() configdb.Snapshot {
	at := time.UnixMilli(1700000000123).UTC()
	return configdb.Snapshot{
		ClusterID: id(1),
		Shards: []catalog.Shard{
			{ID: "s1", Host: "s1/h:3", Weight: 2, Draining: true, Tags: []string{"EU", "US"}, TopologyTime: ts(4_000_000_000, 2)},
			{ID: "s0", Host: "s0/h:1,h:2", Version: "6.0.5", Capabilities: []string{"auth"}, TopologyTime: ts(1, 2)},
		},
		Databases: []catalog.Database{
			{Name: "shop", Primary: "s0", UUID: uuid.UUID{1, 2, 3}, Timestamp: ts(5, 1), LastMod: 3},
			{Name: "config", Primary: "s0"},
			{Name: "blog", Primary: "s1", UUID: uuid.UUID{4, 5, 6}, Timestamp: ts(6, 1), LastMod: 1},
			{Name: "admin", Primary: "s0"},
		},
		Collections: snapshotCollections(at),
		Routers: []catalog.Router{
			{Incarnation: "b1", Name: "b:1", Number: 1, Version: "0.2.0", Started: at, Ping: at.Add(90*time.Second + 999*time.Millisecond)},
			{Incarnation: "a1", Name: "a:1", Number: 2, Version: "0.1.0", Started: at, Ping: at.Add(-time.Second), Silent: true},
		},
		Settings: []catalog.Setting{
			{ID: catalog.ClusterIDSetting, Doc: field("_id", catalog.ClusterIDSetting)},
			{ID: "chunksize", Doc: raw(bson.D{{Key: "_id", Value: "chunksize"}, {Key: "value", Value: int64(64)}})},
			{ID: "balancer", Doc: raw(bson.D{{Key: "_id", Value: "balancer"}, {Key: "stopped", Value: true}, {Key: "mode", Value: "off"}})},
		},
		Changes: []catalog.LogEntry{
			{ID: "2", Server: "a:1", Shard: "s0", Client: "10.0.0.1:5", Time: at, What: "moveChunk.from", NS: "shop.orders", Details: field("note", "success")},
			{ID: "1", Time: at.Add(time.Second), What: "addShard"},
		},
		Movements: []catalog.Movement{
			{ID: uuid.UUID{1}, NS: "shop.orders", Collection: uuid.UUID{7, 8, 9}, From: "s0", To: "s1", State: catalog.MovementCopying, Since: at, Layout: &catalog.Layout{
				UUID: uuid.UUID{12}, Key: field("name", int32(1)), Chunks: []catalog.Chunk{{Shard: "s1"}, {Shard: "s0"}, {Shard: "s1"}},
			}},
			{ID: uuid.UUID{2}, NS: "shop.orders", Collection: uuid.UUID{7, 8, 9}, From: "s0", To: "s1", State: catalog.MovementGone, Layout: &catalog.Layout{UUID: uuid.UUID{7, 8, 9}}},
			{ID: uuid.UUID{3}, NS: "blog.posts", Collection: uuid.UUID{10, 11}, From: "s1", To: "s0", State: catalog.MovementCopying},
		},
		Actions: []catalog.LogEntry{
			{ID: "3", Action: true, Server: "a:1", Time: at, What: "balancer.round", Details: field("errorOccured", false)},
		},
	}
}

func snapshotCollections(at time.Time) []catalog.CollectionChunks {
	return []catalog.CollectionChunks{
		{
			Collection: catalog.Collection{
				NS: "shop.orders", UUID: uuid.UUID{7, 8, 9}, Kind: catalog.KindSharded, State: catalog.StateOpen,
				Key: raw(bson.D{{Key: "user", Value: "hashed"}, {Key: "at", Value: int32(1)}}), Unique: true,
				Options: field("validator", bson.D{}), Collation: field("locale", "fr"), Epoch: id(2), Timestamp: ts(7, 1),
				LastMod: at, NoBalance: true,
			},
			Chunks: []catalog.Chunk{
				{
					ID: id(4), Min: raw(bson.D{{Key: "user", Value: bson.MinKey{}}, {Key: "at", Value: bson.MinKey{}}}),
					Max:   raw(bson.D{{Key: "user", Value: int64(0)}, {Key: "at", Value: bson.MinKey{}}}),
					Shard: "s1", LastMod: ts(2, 1), OnShardSince: ts(9, 1), Jumbo: true,
					History: []catalog.Owner{{Shard: "s1", ValidAfter: ts(9, 1)}, {Shard: "s0", ValidAfter: ts(7, 1)}},
				},
				{
					ID: id(3), Min: raw(bson.D{{Key: "user", Value: int64(0)}, {Key: "at", Value: bson.MinKey{}}}),
					Max:   raw(bson.D{{Key: "user", Value: bson.MaxKey{}}, {Key: "at", Value: bson.MaxKey{}}}),
					Shard: "s0", LastMod: ts(1, 0), OnShardSince: ts(7, 1),
				},
			},
		},
		{Collection: catalog.Collection{NS: "shop.big_orders", Kind: catalog.KindView, Options: field("viewOn", "orders")}},
		{
			Collection: catalog.Collection{
				NS: "blog.posts", UUID: uuid.UUID{10, 11}, Kind: catalog.KindUnsharded, State: catalog.StateOpen,
				Epoch: id(5), Timestamp: ts(8, 1), LastMod: at, Migrations: true,
			},
			Chunks: []catalog.Chunk{{
				ID: id(6), Shard: "s1", LastMod: ts(1, 0), OnShardSince: ts(8, 1),
				History: []catalog.Owner{{Shard: "s1", ValidAfter: ts(8, 1)}},
			}},
		},
	}
}
