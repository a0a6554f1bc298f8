package router

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// chunked is the collection d.c with a chunk on each of the shards named, at x = 0, 10, ….
func chunked(t *testing.T, shards ...string) catalog.CollectionChunks {
	t.Helper()
	c := row("d.c", "s")
	c.Kind, c.Key, c.Migrations = catalog.KindSharded, bson.Raw(doc(t, e("x", int32(1)))), true
	p, err := shardkey.ParsePattern(c.Key)
	require.NoError(t, err)
	c.Chunks = nil
	least := p.MinBound()
	for i, shard := range shards {
		greatest := p.MaxBound()
		if i < len(shards)-1 {
			greatest = bson.Raw(doc(t, e("x", int32(10*i))))
		}
		c.Chunks = append(c.Chunks, catalog.Chunk{
			ID: bson.NewObjectID(), Min: least, Max: greatest, Shard: shard, LastMod: 1<<32 | catalog.Timestamp(i), OnShardSince: 7,
			History: []catalog.Owner{{Shard: shard, ValidAfter: 7}},
		})
		least = greatest
	}
	require.NoError(t, shardkey.FillBounds(p, c.Chunks))
	return c
}

// overChunks is a router that never runs, over shards a and b that nobody can reach.
func overChunks(t *testing.T, c catalog.CollectionChunks) *Router {
	t.Helper()
	store := mem.New(mem.Options{})
	t.Cleanup(store.Close)
	_, err := store.Apply(t.Context(), catalog.Change{
		Shards:    []catalog.Shard{{ID: "a", Host: nowhere, Weight: 1}, {ID: "b", Host: nowhere, Weight: 1}},
		Databases: []catalog.Database{{Name: "d", Primary: "a"}},
		Put:       []catalog.CollectionChunks{c},
	})
	require.NoError(t, err)
	return idleRouter(t, store, "r:1", Options{LockTimeout: 50 * time.Millisecond})
}

// shape prints the owners of a collection's chunks and where they begin.
func shape(r *Router) (text string) {
	e := r.Snapshot().Entries["d.c"]
	for i := range e.Table.Len() {
		c := e.Table.Chunk(i)
		text += c.Shard + shardkey.FormatValue(c.Min.Lookup("x")) + " "
	}
	return text
}

func TestMergeable(t *testing.T) {
	t.Parallel()
	const window = 1000
	for _, tt := range []struct {
		chunks string // of shard a, b, jumbo ones of a (J), ones of a that were moved lately (Y) or long ago (O)
		limit  int
		want   [][2]int
	}{
		{"aaaabbaab", 0, [][2]int{{0, 4}, {6, 8}}},
		{"aaaabbaab", 2, [][2]int{{0, 2}}},
		{"aaaabbaab", 3, [][2]int{{0, 3}}},
		{"aaaabbaab", 4, [][2]int{{0, 4}}},
		{"aaaabbaab", 5, [][2]int{{0, 4}}},
		{"aaaabbaab", 6, [][2]int{{0, 4}, {6, 8}}},
		{"aaaabbaab", 100, [][2]int{{0, 4}, {6, 8}}},
		{"a", 0, nil},
		{"b", 0, nil},
		{"abab", 0, nil},
		{"aJaaYaOa", 0, [][2]int{{2, 4}, {5, 8}}},
		{"bbaa", 2, [][2]int{{2, 4}}},
	} {
		var shards []string
		for _, k := range tt.chunks {
			if k == 'b' {
				shards = append(shards, "b")
			} else {
				shards = append(shards, "a")
			}
		}
		c := chunked(t, shards...)
		for i, k := range tt.chunks {
			x := &c.Chunks[i]
			switch k {
			case 'J':
				x.Jumbo = true
			case 'Y':
				x.OnShardSince = window
				x.History = append([]catalog.Owner{{Shard: "a", ValidAfter: window}}, x.History...)
			case 'O':
				x.OnShardSince = window - 1
				x.History = append([]catalog.Owner{{Shard: "a", ValidAfter: window - 1}}, x.History...)
			}
		}
		table, err := shardkey.NewTable(c)
		require.NoError(t, err)
		require.Equal(t, tt.want, mergeable(table, "a", window, tt.limit), "%s, at most %d", tt.chunks, tt.limit)
	}
}

func TestMergeKeepsThePast(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "a", "a", "b")
	c.Chunks[1].OnShardSince = 99
	c.Chunks[1].History = []catalog.Owner{{Shard: "a", ValidAfter: 99}, {Shard: "b", ValidAfter: 7}}
	c.Chunks[2].Jumbo = true
	r := overChunks(t, c)
	require.NoError(t, r.MergeChunks(t.Context(), "d.c", c.Chunks[0].Min, c.Chunks[2].Max))
	require.Equal(t, "aMinKey b20 ", shape(r))
	k := r.Snapshot().Entries["d.c"].Table.Chunk(0)
	require.Equal(t, c.Chunks[0].ID, k.ID)
	require.Equal(t, catalog.Timestamp(1<<32|4), k.LastMod)
	require.Equal(t, []catalog.Owner{{Shard: "a", ValidAfter: 99}}, k.History)
	require.True(t, k.Jumbo)
	requireCode(t, mongoerr.IllegalOperation, r.MergeChunks(t.Context(), "d.c", c.Chunks[0].Min, c.Chunks[3].Max))
}

func TestClearJumbo(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "b")
	c.Chunks[1].Jumbo = true
	r := overChunks(t, c)
	before := r.Snapshot().Version
	require.NoError(t, r.ClearJumbo(t.Context(), ChunkSpec{NS: "d.c", Find: bson.Raw(doc(t, e("x", int32(-4))))}))
	require.Equal(t, before, r.Snapshot().Version, "it was not jumbo")
	require.NoError(t, r.ClearJumbo(t.Context(), ChunkSpec{NS: "d.c", Bounds: []bson.Raw{c.Chunks[1].Min, c.Chunks[1].Max}}))
	k := r.Snapshot().Entries["d.c"].Table.Chunk(1)
	require.False(t, k.Jumbo)
	require.Equal(t, catalog.Timestamp(2<<32), k.LastMod)
}

// TestLayoutHasTheLock: what changes chunks keeps out of other metadata operations' way.
func TestLayoutHasTheLock(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "a")
	r := overChunks(t, c)
	l, err := r.store.Acquire(t.Context(), "d.c", r.Self().Incarnation, "another")
	require.NoError(t, err)
	key, err := shardkey.ParsePattern(bson.Raw(doc(t, e("x", int32(1)), e("y", int32(1)))))
	require.NoError(t, err)
	for name, change := range map[string]func() error{
		"split": func() error {
			return r.Split(t.Context(), ChunkSpec{NS: "d.c", Middle: bson.Raw(doc(t, e("x", int32(3))))})
		},
		"merge":    func() error { return r.MergeChunks(t.Context(), "d.c", c.Chunks[0].Min, c.Chunks[1].Max) },
		"mergeAll": func() error { return r.MergeAllChunks(t.Context(), "d.c", "a", 0) },
		"jumbo": func() error {
			return r.ClearJumbo(t.Context(), ChunkSpec{NS: "d.c", Bounds: []bson.Raw{c.Chunks[1].Min, c.Chunks[1].Max}})
		},
		"migrate": func() error { return r.SetAllowMigrations(t.Context(), "d.c", false) },
		"refine":  func() error { return r.RefineShardKey(t.Context(), "d.c", key, nil, true) },
	} {
		requireCode(t, mongoerr.LockBusy, change())
		require.Equal(t, "aMinKey a0 ", shape(r), name)
	}
	require.NoError(t, r.store.Release(t.Context(), l))
	require.NoError(t, r.Split(t.Context(), ChunkSpec{NS: "d.c", Middle: bson.Raw(doc(t, e("x", int64(3))))}))
	require.Equal(t, "aMinKey a0 a3 ", shape(r))
}

// TestRefineAfterMoves: a range that was moved is told by the old key until it is gone.
func TestRefineAfterMoves(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "b")
	r := overChunks(t, c)
	_, err := r.store.Apply(t.Context(), catalog.Change{Movements: []catalog.Movement{{
		ID: uuid.New(), NS: "d.c", Collection: c.UUID, From: "a", To: "b", State: catalog.MovementLeaving,
		Range: &catalog.Range{Min: c.Chunks[1].Min, Max: c.Chunks[1].Max, MinKey: c.Chunks[1].MinKey, MaxKey: c.Chunks[1].MaxKey},
	}}})
	require.NoError(t, err)
	key, err := shardkey.ParsePattern(bson.Raw(doc(t, e("x", int32(1)), e("y", int32(1)))))
	require.NoError(t, err)
	requireCode(t, mongoerr.ConflictingOperationInProgress, r.RefineShardKey(t.Context(), "d.c", key, nil, true))
}

// TestSplitOfAnotherChunk: a chunk that changes while its median is looked for stays.
func TestSplitOfAnotherChunk(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "a", "a")
	r := overChunks(t, c)
	en := r.Snapshot().Entries["d.c"]
	of := en.Table.Chunk(1)
	_, err := r.cut(en, of, bson.Raw(doc(t, e("x", int32(5)))))
	require.NoError(t, err)
	require.NoError(t, r.MergeChunks(t.Context(), "d.c", c.Chunks[1].Min, c.Chunks[2].Max))
	_, err = r.cut(r.Snapshot().Entries["d.c"], of, bson.Raw(doc(t, e("x", int32(5)))))
	requireCode(t, mongoerr.ConflictingOperationInProgress, err)
}

// TestMedian: what the shard answers is the border, and none is 87.
func TestMedian(t *testing.T) {
	t.Parallel()
	keys := make(chan bson.A, 2)
	host := fakeShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) == "splitVector" {
			return bson.D{e("splitKeys", <-keys), e("ok", 1.0)}
		}
		return nil
	})
	store := newStore(t, host)
	_, err := store.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{chunked(t, "s", "s")}})
	require.NoError(t, err)
	r, _ := startRouter(t, store, "r:1", Options{})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	find := ChunkSpec{NS: "d.c", Find: bson.Raw(doc(t, e("x", int32(40))))}
	keys <- bson.A{bson.D{e("x", int32(44))}, bson.D{e("x", int32(50))}}
	require.NoError(t, r.Split(t.Context(), find))
	require.Equal(t, "sMinKey s0 s44 ", shape(r))
	keys <- bson.A{}
	requireCode(t, mongoerr.CannotSplit, r.Split(t.Context(), find))
}

// TestDeltasOfChunks: what a router learns piece by piece is what one that loads all has.
func TestDeltasOfChunks(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "a", "b", "b")
	r := overChunks(t, c)
	other := idleRouter(t, r.store, "r:2", Options{})
	x := func(i int32) bson.Raw { return bson.Raw(doc(t, e("x", i))) }
	require.NoError(t, r.Split(t.Context(), ChunkSpec{NS: "d.c", Middle: x(5)}))
	require.NoError(t, r.Split(t.Context(), ChunkSpec{NS: "d.c", Middle: x(7)}))
	require.NoError(t, r.MergeChunks(t.Context(), "d.c", c.Chunks[0].Min, x(5)))
	require.NoError(t, r.Split(t.Context(), ChunkSpec{NS: "d.c", Middle: x(100)}))
	require.NoError(t, r.SetAllowMigrations(t.Context(), "d.c", false))
	require.NoError(t, other.Refresh(t.Context()), "all at once")
	whole := idleRouter(t, r.store, "r:3", Options{})
	for _, one := range []*Router{r, other, whole} {
		require.Equal(t, "aMinKey a5 a7 b10 b20 b100 ", shape(one))
		require.False(t, one.Snapshot().Entries["d.c"].Coll.Migrations)
	}
	before := other.Snapshot().Entries["d.c"]
	_, err := r.store.Apply(t.Context(), catalog.Change{Drop: []string{"d.c"}, Put: []catalog.CollectionChunks{chunked(t, "b", "a")}})
	require.NoError(t, err)
	require.NoError(t, other.Refresh(t.Context()))
	require.Equal(t, "bMinKey a0 ", shape(other))
	require.Equal(t, 6, before.Table.Len(), "what runs by the old table has it to its end")
}

// TestDeltaThatDoesNotFit makes the router load everything anew.
func TestDeltaThatDoesNotFit(t *testing.T) {
	t.Parallel()
	c := chunked(t, "a", "b")
	inner := overChunks(t, c).store
	store := &wrapped{Store: inner}
	r := idleRouter(t, store, "r:2", Options{})
	lie := func(d *catalog.Delta, err error) (*catalog.Delta, error) {
		if err == nil && !d.Full {
			d.Collections[0].Part = true
			d.Collections[0].Chunks = d.Collections[0].Chunks[1:2] // begins where no chunk does
		}
		return d, err
	}
	store.load.Store(&lie)
	_, err := inner.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{chunked(t, "b", "b", "a")}})
	require.NoError(t, err)
	require.NoError(t, r.Refresh(t.Context()))
	require.Equal(t, "bMinKey b0 a10 ", shape(r))
}
