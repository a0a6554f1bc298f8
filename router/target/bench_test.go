package target

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// bigTable has 10,000 chunks by the hash of _id, on 16 shards.
func bigTable(t testing.TB) *shardkey.Table {
	p := pattern(t, `{"_id":"hashed"}`)
	var shards []string
	for i := range 16 {
		shards = append(shards, fmt.Sprintf("shard_%02d", i))
	}
	tab, err := shardkey.NewTable(catalog.CollectionChunks{
		Collection: catalog.Collection{NS: "t.c", Key: p.Raw()},
		Chunks:     shardkey.InitialChunks(p, 10_000, shards, shards[0], 1),
	})
	require.NoError(t, err)
	return tab
}

// commands are find commands of about 300 bytes. They are few enough to stay in
// the nearest cache, as a message does that was just read from a socket.
func commands(t testing.TB) [][]byte {
	out := make([][]byte, 64)
	for i := range out {
		var id bson.ObjectID
		_, _ = rand.Read(id[:])
		b, err := bson.Marshal(bson.D{
			{Key: "find", Value: "users"},
			{Key: "filter", Value: bson.D{{Key: "_id", Value: id}}},
			{Key: "projection", Value: bson.D{{Key: "name", Value: 1}, {Key: "address", Value: 1}}},
			{Key: "limit", Value: int64(1)},
			{Key: "singleBatch", Value: true},
			{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
			{Key: "comment", Value: strings.Repeat("x", 64)},
			{Key: "$db", Value: "production"},
		})
		require.NoError(t, err)
		out[i] = b
	}
	return out
}

// BenchmarkRoute is the whole decision: find filter, $db and lsid in a command of
// 300 bytes, take the key out, hash it, search 10,000 chunks (PERF.md, goal 11).
func BenchmarkRoute(b *testing.B) {
	tab, cmds := bigTable(b), commands(b)
	b.ReportMetric(float64(len(cmds[0])), "B/cmd")
	b.ReportAllocs()
	var buf [64]byte
	sum := 0
	for i := 0; b.Loop(); i++ {
		var filter, db, lsid []byte
		r := shardkey.NewReader(cmds[i%len(cmds)])
		for r.Next() {
			switch string(r.Name) {
			case "filter":
				filter = r.Value
			case "$db":
				db = r.Value
			case "lsid":
				lsid = r.Value
			}
		}
		key, ok := ExactKey(tab.Pattern(), buf[:0], filter, false)
		if !ok || db == nil || lsid == nil {
			b.Fatal("no key")
		}
		sum += tab.ShardOf(tab.Find(key))
	}
	require.NotEqual(b, -1, sum)
}

func BenchmarkExactKey(b *testing.B) {
	tab := bigTable(b)
	pad := strings.Repeat("x", 240)
	filter, err := bson.Marshal(bson.D{{Key: "pad", Value: pad}, {Key: "_id", Value: bson.NewObjectID()}})
	require.NoError(b, err)
	b.ReportAllocs()
	var buf [64]byte
	for b.Loop() {
		if _, ok := ExactKey(tab.Pattern(), buf[:0], filter, false); !ok {
			b.Fatal("no key")
		}
	}
}

func BenchmarkQuery(b *testing.B) {
	tab := bigTable(b)
	in := bson.A{}
	for i := range 100 {
		in = append(in, i)
	}
	for name, f := range map[string]bson.D{
		"eq":     {{Key: "_id", Value: bson.D{{Key: "$eq", Value: 5}}}},
		"in3":    {{Key: "_id", Value: bson.D{{Key: "$in", Value: in[:3]}}}},
		"in100":  {{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}},
		"nothin": {{Key: "name", Value: "x"}},
	} {
		filter, err := bson.Marshal(f)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Query(tab.Pattern(), tab, filter, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMayChangeKey(b *testing.B) {
	p := pattern(b, `{"_id":"hashed"}`)
	u := Update{Filter: doc(b, `{"_id":5}`), Mods: doc(b, `{"u":{"$set":{"a":1,"b.c":2},"$inc":{"n":1}}}`).Lookup("u")}
	b.ReportAllocs()
	for b.Loop() {
		if MayChangeKey(p, u) {
			b.Fatal("may change")
		}
	}
}

func TestFastPathAllocatesNothing(t *testing.T) {
	tab, cmds := bigTable(t), commands(t)
	filter := bson.Raw(cmds[0]).Lookup("filter").Value
	require.Zero(t, testing.AllocsPerRun(20, func() {
		var buf [64]byte
		key, ok := ExactKey(tab.Pattern(), buf[:0], filter, false)
		if !ok || tab.Find(key) < 0 {
			t.Error("no key")
		}
	}))
	u := Update{Mods: doc(t, `{"u":{"$set":{"a":1},"$inc":{"n":1}}}`).Lookup("u")}
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if MayChangeKey(tab.Pattern(), u) {
			t.Error("may change")
		}
	}))
}
