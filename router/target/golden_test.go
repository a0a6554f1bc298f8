package target

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

var update = flag.Bool("update", false, "write the goldens anew")

// doc reads extended JSON.
func doc(t testing.TB, s string) bson.Raw {
	t.Helper()
	var raw bson.Raw
	require.NoError(t, bson.UnmarshalExtJSON([]byte(s), false, &raw), s)
	return raw
}

func pattern(t testing.TB, s string) *shardkey.Pattern {
	t.Helper()
	p, err := shardkey.ParsePattern(doc(t, s))
	require.NoError(t, err)
	return p
}

// tableOf cuts the key space at bounds; the chunks belong to s0, s1, … in turn.
func tableOf(t testing.TB, p *shardkey.Pattern, shards int, bounds ...bson.Raw) *shardkey.Table {
	t.Helper()
	all := append(append([]bson.Raw{p.MinBound()}, bounds...), p.MaxBound())
	c := catalog.CollectionChunks{Collection: catalog.Collection{NS: "t.c", Key: p.Raw()}}
	for i := range all[1:] {
		c.Chunks = append(c.Chunks, catalog.Chunk{Min: all[i], Max: all[i+1], Shard: fmt.Sprintf("s%02d", i%shards)})
	}
	require.NoError(t, shardkey.FillBounds(p, c.Chunks))
	tab, err := shardkey.NewTable(c)
	require.NoError(t, err)
	return tab
}

// golden runs a script line by line. Lines that begin with "  " are answers and are
// made anew; answer returns "" for lines that have none.
func golden(t *testing.T, name string, answer func(line string) string) {
	t.Helper()
	file := "testdata/" + name
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	var out strings.Builder
	for line := range strings.Lines(string(old)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		if a := answer(line); a != "" {
			fmt.Fprintln(&out, "  "+a)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o600))
		return
	}
	require.Equal(t, string(old), out.String())
}

func TestQueryGolden(t *testing.T) {
	var p *shardkey.Pattern
	var tab *shardkey.Table
	golden(t, "query.txt", func(line string) string {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "key":
			p = pattern(t, rest)
			tab = tableOf(t, p, 100)
			return ""
		case "cut":
			var bounds []bson.Raw
			for _, b := range strings.Split(rest, " | ") {
				bounds = append(bounds, doc(t, b))
			}
			tab = tableOf(t, p, 100, bounds...)
			return ""
		case "collated", "simple":
			filter := doc(t, rest)
			got, err := Query(p, tab, filter, word == "collated")
			require.NoError(t, err)
			b, err := json.Marshal(got)
			require.NoError(t, err)
			if key, ok := ExactKey(p, nil, filter, word == "collated"); ok {
				require.True(t, got.Exact, line)
				require.Equal(t, got.Key, key, line)
				return string(b) + " fast"
			}
			return string(b)
		}
		t.Fatal(line)
		return ""
	})
}

func TestUpdateGolden(t *testing.T) {
	var p *shardkey.Pattern
	filter := bson.Raw(nil)
	golden(t, "update.txt", func(line string) string {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "key":
			p = pattern(t, rest)
			return ""
		case "filter":
			filter = doc(t, rest)
			return ""
		case "update", "upsert", "collated":
			v, err := doc(t, `{"u":`+rest+`}`).LookupErr("u")
			require.NoError(t, err)
			u := Update{Filter: filter, Mods: v, Upsert: word == "upsert", Collated: word == "collated"}
			if MayChangeKey(p, u) {
				return "may change"
			}
			return "keeps"
		}
		t.Fatal(line)
		return ""
	})
}
