package shardkey

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

func table(t testing.TB, p *Pattern, chunks []catalog.Chunk) *Table {
	t.Helper()
	c := catalog.CollectionChunks{Collection: catalog.Collection{NS: "t.c"}, Chunks: chunks}
	if p != nil {
		c.Key = p.Raw()
	}
	tab, err := NewTable(c)
	require.NoError(t, err)
	return tab
}

// cut makes chunks at the bounds given, owned by s0, s1, … in turn.
func cut(t testing.TB, p *Pattern, shards int, bounds ...bson.Raw) []catalog.Chunk {
	t.Helper()
	all := append(append([]bson.Raw{p.MinBound()}, bounds...), p.MaxBound())
	var chunks []catalog.Chunk
	for i := range all[1:] {
		chunks = append(chunks, catalog.Chunk{Min: all[i], Max: all[i+1], Shard: fmt.Sprint("s", i%shards)})
	}
	require.NoError(t, FillBounds(p, chunks))
	return chunks
}

// findSlowly is Find by definition.
func findSlowly(tab *Table, key []byte) int {
	return max(0, sort.Search(tab.Len(), func(i int) bool { return bytes.Compare(tab.Chunk(i).MinKey, key) > 0 })-1)
}

// ascending sorts bounds by their ordered bytes, without doubles.
func ascending(t testing.TB, p *Pattern, bounds []bson.Raw) []bson.Raw {
	keys := map[string]bson.Raw{}
	for _, raw := range bounds {
		k, err := p.AppendBound(nil, raw)
		require.NoError(t, err)
		keys[string(k)] = raw
	}
	var out []bson.Raw
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		out = append(out, keys[k])
	}
	return out
}

func TestFind(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, rng.IntN(14))
		for i := range b {
			b[i] = "ab\x00"[rng.IntN(3)]
		}
		return string(b)
	}
	value := func() any {
		switch rng.IntN(5) {
		case 0:
			return word()
		case 1:
			return bson.ObjectID{0x65, 0xf0, 0, 0, 0, 0, 0, 0, 0, 0, byte(rng.IntN(3)), byte(rng.IntN(256))}
		case 2:
			return rng.IntN(100)
		case 3:
			return "a long common beginning of all strings " + word()
		default:
			return bson.Null{}
		}
	}
	for round := range 60 {
		key := []string{`{"x":1}`, `{"x":1,"y":1}`}[round%2]
		p := pattern(t, key)
		kind := rng.IntN(3)
		draw := func() bson.Raw {
			d := bson.D{{Key: "x", Value: value()}, {Key: "y", Value: rng.IntN(10)}}
			if kind == 0 {
				d[0].Value = "same"
			}
			raw, err := bson.Marshal(d[:p.Len()])
			require.NoError(t, err)
			return raw
		}
		var drawn []bson.Raw
		for range rng.IntN(300) {
			drawn = append(drawn, draw())
		}
		bounds := ascending(t, p, drawn)
		tab := table(t, p, cut(t, p, 3, bounds...))
		for range 300 {
			k, err := p.AppendBound(nil, draw())
			require.NoError(t, err)
			for _, k := range [][]byte{k, k[:len(k)-1], append(k, After), append(k, 0)} {
				require.Equal(t, findSlowly(tab, k), tab.Find(k), "%x", k)
			}
		}
		for i := range tab.Len() {
			require.Equal(t, i, tab.Find(tab.Chunk(i).MinKey))
		}
		require.Equal(t, tab.Len()-1, tab.Find(tab.Chunk(tab.Len()-1).MaxKey))
	}
}

func TestOverlap(t *testing.T) {
	p := pattern(t, `{"x":1}`)
	var bounds []bson.Raw
	for i := 10; i <= 50; i += 10 {
		bounds = append(bounds, doc(t, fmt.Sprintf(`{"x":%d}`, i)))
	}
	chunks := cut(t, p, 100, bounds...)
	tab := table(t, p, chunks)
	at := func(x string) []byte {
		k, err := p.AppendBound(nil, doc(t, `{"x":`+x+`}`))
		require.NoError(t, err)
		return k
	}
	for _, tt := range []struct {
		lo, hi string
		incl   bool
		want   []int
	}{
		{"10", "20", false, []int{1}},
		{"10", "20", true, []int{1, 2}},
		{"9.9", "20.1", false, []int{0, 1, 2}},
		{"20", "20", true, []int{2}},
		{"20", "20", false, nil},
		{"21", "20", true, nil},
		{`{"$minKey":1}`, `{"$maxKey":1}`, true, []int{0, 1, 2, 3, 4, 5}},
		{`"a"`, `"b"`, true, []int{5}},
		{`{"$maxKey":1}`, `{"$maxKey":1}`, true, []int{5}},
	} {
		var set ShardSet
		tab.Overlap(at(tt.lo), at(tt.hi), tt.incl, &set)
		require.Equal(t, tt.want, slices.Collect(set.All()), "%+v", tt)
	}
}

func TestNewTableRefuses(t *testing.T) {
	p := pattern(t, `{"x":1}`)
	good := func() []catalog.Chunk { return cut(t, p, 2, doc(t, `{"x":1}`), doc(t, `{"x":5}`)) }
	table(t, p, good())
	for name, spoil := range map[string]func([]catalog.Chunk) []catalog.Chunk{
		"none":     func([]catalog.Chunk) []catalog.Chunk { return nil },
		"gap":      func(c []catalog.Chunk) []catalog.Chunk { return append(c[:1:1], c[2:]...) },
		"no first": func(c []catalog.Chunk) []catalog.Chunk { return c[1:] },
		"no last":  func(c []catalog.Chunk) []catalog.Chunk { return c[:2] },
		"order":    func(c []catalog.Chunk) []catalog.Chunk { c[0], c[1] = c[1], c[0]; return c },
		"no owner": func(c []catalog.Chunk) []catalog.Chunk { c[1].Shard = ""; return c },
		"bytes":    func(c []catalog.Chunk) []catalog.Chunk { c[1].Min = doc(t, `{"x":2}`); return c },
		"field":    func(c []catalog.Chunk) []catalog.Chunk { c[1].Min = doc(t, `{"y":1}`); return c },
		"empty": func(c []catalog.Chunk) []catalog.Chunk {
			e := c[1]
			e.Max, e.MaxKey = e.Min, e.MinKey
			return slices.Insert(c, 1, e)
		},
	} {
		_, err := NewTable(catalog.CollectionChunks{Collection: catalog.Collection{Key: p.Raw()}, Chunks: spoil(good())})
		require.ErrorIs(t, err, ErrTable, name)
	}
	_, err := NewTable(catalog.CollectionChunks{Collection: catalog.Collection{Key: doc(t, `{"x":2}`)}, Chunks: good()})
	require.ErrorIs(t, err, ErrTable)
}

func TestShardSet(t *testing.T) {
	var s ShardSet
	require.Equal(t, -1, s.First())
	for _, i := range []int{200, 3, 63, 64, 3, 65, 200} {
		s.Add(i)
	}
	require.Equal(t, []int{3, 63, 64, 65, 200}, slices.Collect(s.All()))
	require.Equal(t, 5, s.Len())
	require.Equal(t, 3, s.First())
	require.True(t, s.Has(64))
	require.False(t, s.Has(66))
	require.False(t, s.Has(1000))
}

// hashedTable has n chunks by the hash of _id, on 16 shards.
func hashedTable(t testing.TB, n int) *Table {
	p := pattern(t, `{"_id":"hashed"}`)
	shards := make([]string, 16)
	for i := range shards {
		shards[i] = fmt.Sprintf("shard_%02d", i)
	}
	return table(t, p, InitialChunks(p, n, shards, shards[0], 1))
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprint("hashed/", n), func(b *testing.B) {
			tab := hashedTable(b, n)
			keys := make([][]byte, 4096)
			for i := range keys {
				keys[i] = AppendHash(nil, int64(rand.Uint64()))
			}
			benchFind(b, tab, keys)
		})
	}
	b.Run("strings/10000", func(b *testing.B) {
		p := pattern(b, `{"k":1}`)
		var bounds []bson.Raw
		var keys [][]byte
		for i := range 9_999 {
			bounds = append(bounds, doc(b, fmt.Sprintf(`{"k":"user%07d"}`, i*10)))
			k, _ := p.AppendBound(nil, doc(b, fmt.Sprintf(`{"k":"user%07d"}`, rand.IntN(100_000))))
			keys = append(keys, k)
		}
		benchFind(b, table(b, p, cut(b, p, 16, bounds...)), keys)
	})
}

func benchFind(b *testing.B, tab *Table, keys [][]byte) {
	b.ReportAllocs()
	sum := 0
	for i := 0; b.Loop(); i++ {
		sum += tab.Find(keys[i%len(keys)])
	}
	require.NotEqual(b, -1, sum)
}

func BenchmarkNewTable(b *testing.B) {
	tab := hashedTable(b, 10_000)
	c := catalog.CollectionChunks{Collection: tab.coll}
	for i := range tab.Len() {
		c.Chunks = append(c.Chunks, *tab.Chunk(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewTable(c); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKey: the key of a 300-byte document and the chunk it is in.
func BenchmarkKey(b *testing.B) {
	tab := hashedTable(b, 10_000)
	docs := make([][]byte, 1024)
	for i := range docs {
		id := bson.NewObjectID()
		binary.BigEndian.PutUint64(id[4:], rand.Uint64())
		docs[i], _ = bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: string(make([]byte, 260))}})
	}
	var buf [64]byte
	b.ReportAllocs()
	sum := 0
	for i := 0; b.Loop(); i++ {
		key, err := tab.pattern.AppendKey(buf[:0], docs[i%len(docs)])
		if err != nil {
			b.Fatal(err)
		}
		sum += tab.ShardOf(tab.Find(key))
	}
	require.NotEqual(b, -1, sum)
}

func BenchmarkHash(b *testing.B) {
	for _, v := range []any{bson.NewObjectID(), int64(42), string(make([]byte, 40)), dec("9.99")} {
		b.Run(fmt.Sprintf("%T", v), func(b *testing.B) {
			typ, value := marshal(b, v)
			b.ReportAllocs()
			for b.Loop() {
				Hash(typ, value)
			}
		})
	}
}

func BenchmarkAppendOrdered(b *testing.B) {
	for _, v := range []any{bson.NewObjectID(), int32(42), int64(1<<62 + 1), "a string of a few words", dec("9.99"), 1.5} {
		b.Run(fmt.Sprintf("%T", v), func(b *testing.B) {
			typ, value := marshal(b, v)
			var buf [64]byte
			b.ReportAllocs()
			for b.Loop() {
				AppendOrdered(buf[:0], typ, value)
			}
		})
	}
}
