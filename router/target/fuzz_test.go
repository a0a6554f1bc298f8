package target

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// seeds are the filters of the golden script.
func seeds(t testing.TB, name string) (out [][]byte) {
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(rest, "{") || strings.HasPrefix(rest, "[") {
			out = append(out, doc(t, `{"u":`+strings.Split(rest, " | ")[0]+`}`).Lookup("u").Value)
		}
	}
	return out
}

func FuzzQuery(f *testing.F) {
	tab := tableOf(f, pattern(f, `{"x":1}`), 3, doc(f, `{"x":10}`), doc(f, `{"x":"m"}`))
	deep := tableOf(f, pattern(f, `{"a.b":1,"k":"hashed"}`), 3, doc(f, `{"a.b":1,"k":{"$numberLong":"0"}}`))
	for _, s := range seeds(f, "query.txt") {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, filter []byte, collated bool) {
		for _, tab := range []*shardkey.Table{tab, deep} {
			got, err := Query(tab.Pattern(), tab, filter, collated)
			if err == nil && (got.Shards.Len() == 0 || got.Exact && (got.Key == nil || got.Shards.Len() != 1)) {
				t.Fatalf("%+v", got)
			}
			ExactKey(tab.Pattern(), nil, filter, collated)
		}
	})
}

func FuzzMayChangeKey(f *testing.F) {
	p := pattern(f, `{"a.b":1,"k":"hashed","_id":1}`)
	for _, s := range seeds(f, "update.txt") {
		f.Add(byte(bson.TypeEmbeddedDocument), s, s)
		f.Add(byte(bson.TypeArray), s, s)
	}
	f.Fuzz(func(t *testing.T, typ byte, mods, filter []byte) {
		u := Update{Filter: filter, Mods: bson.RawValue{Type: bson.Type(typ), Value: mods}, Upsert: true}
		MayChangeKey(p, u)
		if key, known, err := ReplacementKey(p, nil, u); known && err == nil {
			ReplacementKeepsKey(p, key, mods)
		}
		ReplacementKeepsKey(p, filter, mods)
	})
}
