package pg_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/pg"
)

// BenchmarkStore has the costs that routers feel, with a collection of 10,000
// chunks.
func BenchmarkStore(b *testing.B) {
	srv := startServer(b)
	_, dsn := srv.database(b)
	s := open(b, pg.Options{DSN: dsn})
	ctx := b.Context()
	big := catalog.CollectionChunks{Collection: catalog.Collection{
		NS: "db.big", Kind: catalog.KindSharded, State: catalog.StateOpen, Key: bson.Raw{5, 0, 0, 0, 0},
	}}
	for i := range uint32(10_000) {
		big.Chunks = append(big.Chunks, catalog.Chunk{
			ID: bson.NewObjectID(), Shard: "s0",
			MinKey: binary.BigEndian.AppendUint32(nil, i), MaxKey: binary.BigEndian.AppendUint32(nil, i+1),
		})
	}
	v, err := s.Apply(ctx, catalog.Change{
		Shards:    []catalog.Shard{{ID: "s0", Host: "h"}},
		Databases: []catalog.Database{{Name: "db", Primary: "s0"}},
	})
	require.NoError(b, err)
	_, _, err = s.Register(ctx, catalog.Router{Name: "a:1", Incarnation: "a1"})
	require.NoError(b, err)
	apply := func(b *testing.B, c catalog.Change) {
		for b.Loop() {
			_, err := s.Apply(ctx, c)
			require.NoError(b, err)
		}
	}
	b.Run("PutBig", func(b *testing.B) { apply(b, catalog.Change{Put: []catalog.CollectionChunks{big}}) })
	b.Run("MoveOneOfBig", func(b *testing.B) {
		apply(b, catalog.Change{Chunks: []catalog.ChunkEdit{{
			NS: "db.big", Remove: []bson.ObjectID{big.Chunks[5].ID}, Put: big.Chunks[5:6],
		}}})
	})
	b.Run("LoadBig", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Load(ctx, v)
			require.NoError(b, err)
		}
	})
	b.Run("CreateSmall", func(b *testing.B) {
		small := catalog.CollectionChunks{
			Collection: catalog.Collection{NS: "db.small", Kind: catalog.KindUnsharded, State: catalog.StateOpen},
			Chunks:     big.Chunks[:1],
		}
		apply(b, catalog.Change{Put: []catalog.CollectionChunks{small}})
	})
	b.Run("LoadNothing", func(b *testing.B) {
		d, err := s.Load(ctx, 0)
		require.NoError(b, err)
		for b.Loop() {
			_, err := s.Load(ctx, d.Version)
			require.NoError(b, err)
		}
	})
	b.Run("Heartbeat", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, s.Heartbeat(ctx, "a1", catalog.Ack{Version: 1}, nil))
		}
	})
}

// BenchmarkMillion has the costs of a collection of 1,000,000 chunks: to put it, to load all
// of it, to change one chunk, and to learn of one that changed.
func BenchmarkMillion(b *testing.B) {
	srv := startServer(b)
	_, dsn := srv.database(b)
	s := open(b, pg.Options{DSN: dsn, Timeout: 10 * time.Minute})
	ctx := b.Context()
	big := catalog.CollectionChunks{Collection: catalog.Collection{
		NS: "db.big", Kind: catalog.KindSharded, State: catalog.StateOpen, Key: bson.Raw{5, 0, 0, 0, 0},
	}}
	bound := func(i uint32) bson.Raw {
		raw, err := bson.Marshal(bson.D{{Key: "x", Value: int64(i)}})
		require.NoError(b, err)
		return raw
	}
	for i := range uint32(1_000_000) {
		big.Chunks = append(big.Chunks, catalog.Chunk{
			ID: bson.NewObjectID(), Shard: "s0", Min: bound(i), Max: bound(i + 1),
			MinKey: binary.BigEndian.AppendUint32(nil, i), MaxKey: binary.BigEndian.AppendUint32(nil, i+1),
			History: []catalog.Owner{{Shard: "s0", ValidAfter: 1}},
		})
	}
	_, err := s.Apply(ctx, catalog.Change{
		Shards:    []catalog.Shard{{ID: "s0", Host: "h"}},
		Databases: []catalog.Database{{Name: "db", Primary: "s0"}},
	})
	require.NoError(b, err)
	b.Run("Put", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Apply(ctx, catalog.Change{Put: []catalog.CollectionChunks{big}})
			require.NoError(b, err)
		}
	})
	b.Run("LoadAll", func(b *testing.B) {
		for b.Loop() {
			d, err := s.Load(ctx, 0)
			require.NoError(b, err)
			require.Len(b, d.Collections[0].Chunks, len(big.Chunks))
		}
	})
	b.Run("ChangeOne", func(b *testing.B) {
		for i := 0; b.Loop(); i = (i + 7919) % len(big.Chunks) {
			_, err := s.Apply(ctx, catalog.Change{Chunks: []catalog.ChunkEdit{{
				NS: "db.big", Remove: []bson.ObjectID{big.Chunks[i].ID}, Put: big.Chunks[i : i+1],
			}}})
			require.NoError(b, err)
		}
	})
	b.Run("LoadOne", func(b *testing.B) {
		d, err := s.Load(ctx, math.MaxInt64)
		require.NoError(b, err)
		for b.Loop() {
			d, err := s.Load(ctx, d.Version-1)
			require.NoError(b, err)
			require.Len(b, d.Collections[0].Chunks, 1)
		}
	})
}
