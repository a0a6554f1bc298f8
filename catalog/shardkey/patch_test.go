package shardkey

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// at is the bound {x: i}.
func at(tb testing.TB, i int64) bson.Raw {
	tb.Helper()
	raw, err := bson.Marshal(bson.D{{Key: "x", Value: i}})
	require.NoError(tb, err)
	return raw
}

// piece is the chunk [from, to) of {x: 1}; nil bounds are MinKey and MaxKey.
func piece(tb testing.TB, p *Pattern, from, to bson.Raw, shard string) catalog.Chunk {
	tb.Helper()
	if from == nil {
		from = p.MinBound()
	}
	if to == nil {
		to = p.MaxBound()
	}
	list := []catalog.Chunk{{Min: from, Max: to, Shard: shard}}
	require.NoError(tb, FillBounds(p, list))
	return list[0]
}

// TestNext makes random changes, some at once, and compares with a table made of all chunks.
func TestNext(t *testing.T) {
	p := pattern(t, `{"x":1}`)
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 40 {
		bounds := []bson.Raw{nil}
		for i := range int64(rng.IntN(60)) {
			bounds = append(bounds, at(t, 1000*i))
		}
		var chunks []catalog.Chunk
		for i := range bounds {
			var to bson.Raw
			if i+1 < len(bounds) {
				to = bounds[i+1]
			}
			chunks = append(chunks, piece(t, p, bounds[i], to, fmt.Sprint("s", rng.IntN(1+round%4))))
		}
		tab := table(t, p, chunks)
		for range 60 {
			var changed, whole []catalog.Chunk
			for i := 0; i < tab.Len(); {
				if rng.IntN(1+tab.Len()/3) != 0 {
					whole = append(whole, *tab.Chunk(i))
					i++
					continue
				}
				n := min(1+rng.IntN(3), tab.Len()-i) // so many chunks become one or two
				c := *tab.Chunk(i)
				c.Max, c.MaxKey = tab.Chunk(i+n-1).Max, tab.Chunk(i+n-1).MaxKey
				c.Shard = fmt.Sprint("s", rng.IntN(5))
				parts := []catalog.Chunk{c}
				if lo, ok := c.Min.Lookup("x").AsInt64OK(); ok && rng.IntN(2) == 0 {
					mid := at(t, lo+1+rng.Int64N(7))
					l, r := piece(t, p, c.Min, mid, c.Shard), piece(t, p, mid, c.Max, fmt.Sprint("s", rng.IntN(5)))
					if string(r.MinKey) < string(r.MaxKey) {
						parts = []catalog.Chunk{l, r}
					}
				}
				changed, whole = append(changed, parts...), append(whole, parts...)
				i += n
			}
			before := listed(tab)
			next, err := tab.Next(catalog.CollectionChunks{Collection: *tab.Collection(), Chunks: changed})
			require.NoError(t, err)
			want := table(t, p, whole)
			require.Equal(t, listed(want), listed(next))
			require.Equal(t, want.counts, next.counts)
			for range 50 {
				key, err := p.AppendBound(nil, at(t, rng.Int64N(70_000)-3000))
				require.NoError(t, err)
				require.Equal(t, findSlowly(next, key), next.Find(key))
			}
			require.Equal(t, before, listed(tab), "the old one stays")
			tab = next
		}
	}
}

// listed prints a table's chunks and their owners.
func listed(tab *Table) string {
	s := fmt.Sprintln(tab.Len(), tab.Shards())
	for i := range tab.Len() {
		c := tab.Chunk(i)
		s += fmt.Sprintln(Format(c.Min), Format(c.Max), c.Shard, tab.Shards()[tab.ShardOf(i)])
	}
	return s
}

// TestNextInBlocks makes changes of a table of many blocks: at their borders, over several
// of them, so many that blocks grow and split, and so many that little is left.
func TestNextInBlocks(t *testing.T) {
	p := pattern(t, `{"x":1}`)
	const n = 5 * blockLen
	chunks := make([]catalog.Chunk, n)
	for i := range chunks {
		from, to := at(t, int64(i)*10), at(t, int64(i+1)*10)
		if i == 0 {
			from = nil
		}
		if i == n-1 {
			to = nil
		}
		chunks[i] = piece(t, p, from, to, fmt.Sprint("s", i%3))
	}
	tab := table(t, p, chunks)
	require.Equal(t, 5, len(tab.blocks)) //nolint:testifylint // a failure need not print them
	next := func(changed ...catalog.Chunk) {
		t.Helper()
		var err error
		tab, err = tab.Next(catalog.CollectionChunks{Collection: *tab.Collection(), Chunks: changed})
		require.NoError(t, err)
		want := make([]catalog.Chunk, tab.Len())
		for i := range want {
			want[i] = *tab.Chunk(i)
			require.Equal(t, i, tab.Find(want[i].MinKey))
			require.Equal(t, want[i].Shard, tab.Shards()[tab.ShardOf(i)])
		}
		table(t, p, want) // refuses gaps and overlaps
		for _, span := range [][2]int{{0, tab.Len() - 1}, {tab.Len() / 3, tab.Len() / 2}, {1000, 1100}} {
			if span[1] >= tab.Len() {
				continue
			}
			var all, want ShardSet
			tab.addOwners(span[0], span[1], &all)
			for i := span[0]; i <= span[1]; i++ {
				want.Add(tab.ShardOf(i))
			}
			require.Equal(t, want, all)
		}
	}
	wide := func(from, to int64, shard string) catalog.Chunk {
		return piece(t, p, at(t, from*10), at(t, to*10), shard)
	}
	next(wide(blockLen-1, blockLen, "s0"), wide(2*blockLen, 2*blockLen+1, "s1")) // the last and the first of blocks
	require.Equal(t, n, tab.Len())
	next(wide(blockLen-2, blockLen+2, "s2")) // over a border
	require.Equal(t, n-3, tab.Len())
	next(wide(2*blockLen+5, 2*blockLen+6, "s9")) // a new shard
	require.Equal(t, []string{"s0", "s1", "s2", "s9"}, tab.Shards())
	next(wide(2*blockLen+5, 2*blockLen+6, "s0")) // and gone again
	require.Equal(t, []string{"s0", "s1", "s2"}, tab.Shards())
	var many []catalog.Chunk
	for i := int64(3 * blockLen); i < 4*blockLen; i++ { // each in three
		many = append(many,
			piece(t, p, at(t, i*10), at(t, i*10+3), "s0"), piece(t, p, at(t, i*10+3), at(t, i*10+6), "s1"), piece(t, p, at(t, i*10+6), at(t, i*10+10), "s1"))
	}
	next(many...)
	require.Greater(t, len(tab.blocks), 5)
	require.Equal(t, n-3+2*blockLen, tab.Len())
	next(wide(3*blockLen, 4*blockLen, "s0"))
	next(wide(2*blockLen, 3*blockLen-2, "s0"))
	for i := range tab.blocks[1:] {
		require.GreaterOrEqual(t, len(tab.blocks[i].chunks), blockLen/4)
	}
	next(everything(t, p)...)
	require.Equal(t, 1, tab.Len())
	require.Equal(t, []string{"c"}, tab.Shards())
}

func TestNextRefuses(t *testing.T) {
	p := pattern(t, `{"x":1}`)
	tab := table(t, p, []catalog.Chunk{
		piece(t, p, nil, at(t, 0), "a"), piece(t, p, at(t, 0), at(t, 10), "a"), piece(t, p, at(t, 10), nil, "b"),
	})
	for name, changed := range map[string][]catalog.Chunk{
		"begins inside":    {piece(t, p, at(t, 5), at(t, 10), "a")},
		"ends inside":      {piece(t, p, at(t, 0), at(t, 5), "a")},
		"ends in the last": {piece(t, p, at(t, 0), at(t, 50), "a")},
		"descend":          {piece(t, p, at(t, 10), nil, "a"), piece(t, p, nil, at(t, 0), "a")},
		"twice":            {piece(t, p, at(t, 10), nil, "a"), piece(t, p, at(t, 10), nil, "a")},
		"no owner":         {piece(t, p, at(t, 0), at(t, 10), "")},
		"other bytes":      {{Min: at(t, 1), Max: at(t, 10), MinKey: tab.Chunk(1).MinKey, MaxKey: tab.Chunk(1).MaxKey, Shard: "a"}},
		"empty":            {piece(t, p, at(t, 10), at(t, 10), "a")},
	} {
		_, err := tab.Next(catalog.CollectionChunks{Collection: *tab.Collection(), Chunks: changed})
		require.ErrorIs(t, err, ErrTable, name)
	}
	// Another key needs all chunks.
	q := pattern(t, `{"x":1,"y":1}`)
	row := *tab.Collection()
	row.Key = q.Raw()
	_, err := tab.Next(catalog.CollectionChunks{Collection: row})
	require.ErrorIs(t, err, ErrTable)
	next, err := tab.Next(catalog.CollectionChunks{Collection: row, Chunks: everything(t, q)})
	require.NoError(t, err)
	require.Equal(t, 1, next.Len())
	// A row alone keeps the chunks.
	row = *tab.Collection()
	row.State = catalog.StateFenced
	next, err = tab.Next(catalog.CollectionChunks{Collection: row})
	require.NoError(t, err)
	require.Equal(t, catalog.StateFenced, next.Collection().State)
	require.Equal(t, 3, next.Len())
}

// everything is one chunk of everything.
func everything(tb testing.TB, p *Pattern) []catalog.Chunk {
	tb.Helper()
	list := []catalog.Chunk{{Min: p.MinBound(), Max: p.MaxBound(), Shard: "c"}}
	require.NoError(tb, FillBounds(p, list))
	return list
}

// million is a collection of 1,000,000 chunks on four shards, as a store hands it out.
func million(tb testing.TB) catalog.CollectionChunks {
	tb.Helper()
	p := pattern(tb, `{"x":1}`)
	const n = 1_000_000
	c := catalog.CollectionChunks{Collection: catalog.Collection{NS: "t.c", Key: p.Raw()}, Chunks: make([]catalog.Chunk, n)}
	shards := []string{"shard_0", "shard_1", "shard_2", "shard_3"}
	least := p.MinBound()
	key, err := p.AppendBound(nil, least)
	require.NoError(tb, err)
	for i := range c.Chunks {
		greatest := p.MaxBound()
		if i < n-1 {
			greatest = at(tb, int64(i)*37)
		}
		end, err := p.AppendBound(nil, greatest)
		require.NoError(tb, err)
		c.Chunks[i] = catalog.Chunk{
			ID: bson.NewObjectID(), Min: least, Max: greatest, MinKey: key, MaxKey: end, Shard: shards[i%4],
			History: []catalog.Owner{{Shard: shards[i%4], ValidAfter: 7}},
		}
		least, key = greatest, end
	}
	return c
}

// BenchmarkMillion has the costs of a table of 1,000,000 chunks: to find a key, to follow
// the change of one chunk, to make it all, and its memory with the chunks in it.
func BenchmarkMillion(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := million(b)
	tab, err := NewTable(c)
	require.NoError(b, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	p := tab.Pattern()
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([][]byte, 4096)
	for i := range keys {
		keys[i], err = p.AppendBound(nil, at(b, rng.Int64N(37_000_000)))
		require.NoError(b, err)
	}
	b.Run("Find", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			tab.Find(keys[i%len(keys)])
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(tab.Len()), "B/chunk")
	})
	b.Run("NextMoved", func(b *testing.B) {
		for b.Loop() {
			k := *tab.Chunk(500_000)
			k.Shard = "shard_3"
			_, err := tab.Next(catalog.CollectionChunks{Collection: *tab.Collection(), Chunks: []catalog.Chunk{k}})
			require.NoError(b, err)
		}
	})
	b.Run("NextNewShard", func(b *testing.B) {
		for b.Loop() {
			k := *tab.Chunk(500_000)
			k.Shard = "shard_01"
			_, err := tab.Next(catalog.CollectionChunks{Collection: *tab.Collection(), Chunks: []catalog.Chunk{k}})
			require.NoError(b, err)
		}
	})
	b.Run("New", func(b *testing.B) {
		for b.Loop() {
			_, err := NewTable(c)
			require.NoError(b, err)
		}
	})
}
