package target

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Too many points become ranges or everything, never an error.
func TestManyPoints(t *testing.T) {
	p := pattern(t, `{"a":1,"b":1}`)
	tab := tableOf(t, p, 3, doc(t, `{"a":100,"b":0}`), doc(t, `{"a":5000,"b":0}`))
	list := func(n int) bson.A {
		l := bson.A{}
		for i := range n {
			l = append(l, int32(i))
		}
		return l
	}
	for _, tt := range []struct{ a, b, shards int }{{99, 10, 1}, {99, 1000, 1}, {5000, 3, 2}, {5001, 3, 3}, {20_000, 1, 3}} {
		raw, err := bson.Marshal(bson.D{
			{Key: "a", Value: bson.D{{Key: "$in", Value: list(tt.a)}}},
			{Key: "b", Value: bson.D{{Key: "$in", Value: list(tt.b)}}},
		})
		require.NoError(t, err)
		got, err := Query(p, tab, raw, false)
		require.NoError(t, err)
		require.Equal(t, tt.shards, got.Shards.Len(), "%+v", tt)
		require.False(t, got.Exact)
	}
	// Many boxes are joined.
	or := bson.A{}
	for i := range 100 {
		or = append(or, bson.D{{Key: "a", Value: int32(i)}, {Key: "b", Value: int32(1)}})
	}
	raw, err := bson.Marshal(bson.D{{Key: "$or", Value: or}, {Key: "$and", Value: bson.A{bson.D{{Key: "$or", Value: or[:70]}}}}})
	require.NoError(t, err)
	got, err := Query(p, tab, raw, false)
	require.NoError(t, err)
	require.Equal(t, []int{0}, slices.Collect(got.Shards.All()))
}

// OnlyKey says what Query would, or nothing.
func TestOnlyKey(t *testing.T) {
	filters := map[string]bool{
		`{"_id":5}`: true, `{"_id":5.0}`: true, `{"_id":"x"}`: true, `{"_id":{"a":1}}`: true, `{"_id":{"$oid":"0102030405060708090a0b0c"}}`: true,
		`{}`: false, `{"_id":null}`: false, `{"_id":[1]}`: false, `{"_id":{"$gt":5}}`: false, `{"_id":{"$eq":5}}`: false,
		`{"_id":5,"z":1}`: false, `{"_id":5,"$and":[{"_id":6}]}`: false, `{"z":5}`: false, `{"_id.a":5}`: false, `{"$expr":true}`: false,
	}
	for _, key := range []string{`{"_id":1}`, `{"_id":"hashed"}`} {
		p := pattern(t, key)
		tab := tableOf(t, p, 3)
		for s, want := range filters {
			filter := doc(t, s)
			got, ok := OnlyKey(p, nil, filter, false)
			require.Equal(t, want, ok, s)
			if !ok {
				continue
			}
			q, err := Query(p, tab, filter, false)
			require.NoError(t, err)
			require.Equal(t, q.Key, got, s)
			require.True(t, q.Exact, s)
			require.Equal(t, WhyKey, q.Why, s)
		}
	}
	two := pattern(t, `{"a":1,"b":1}`)
	_, ok := OnlyKey(two, nil, doc(t, `{"b":1,"a":2}`), false)
	require.True(t, ok)
	_, ok = OnlyKey(two, nil, doc(t, `{"a":1,"a":2}`), false)
	require.False(t, ok)
	_, ok = OnlyKey(pattern(t, `{"_id":1}`), nil, doc(t, `{"_id":"x"}`), true)
	require.False(t, ok, "a collation may call others equal")
	for good, i := doc(t, `{"_id":5}`), 1; i < len(good); i++ {
		_, ok = OnlyKey(pattern(t, `{"_id":1}`), nil, good[:i], false)
		require.False(t, ok)
	}
}

func TestMalformedFilters(t *testing.T) {
	p := pattern(t, `{"a.b":1}`)
	tab := tableOf(t, p, 3, doc(t, `{"a.b":5}`))
	good := doc(t, `{"a":{"b":3},"$and":[{"a.b":{"$in":[1,"x"]}}]}`)
	for i := 1; i < len(good); i++ {
		_, err := Query(p, tab, good[:i], false)
		require.ErrorIs(t, err, shardkey.ErrMalformed)
	}
	bad := bytes.Clone(good)
	bad[11] = 0x7E // a type inside a nested document
	_, err := Query(p, tab, bad, false)
	require.ErrorIs(t, err, shardkey.ErrMalformed)
	got, err := Query(p, tab, nil, false)
	require.NoError(t, err)
	require.Equal(t, WhyAll, got.Why)
}

func TestReplacement(t *testing.T) {
	p := pattern(t, `{"_id":1,"k":1}`)
	key := func(s string) []byte {
		k, err := p.AppendKey(nil, doc(t, s))
		require.NoError(t, err)
		return k
	}
	old := key(`{"_id":5,"k":"x"}`)
	for s, want := range map[string]bool{
		`{"_id":5,"k":"x"}`: true, `{"_id":5.0,"k":"x","z":1}`: true, `{"k":"x"}`: true, `{"k":"y"}`: false,
		`{"_id":6,"k":"x"}`: false, `{}`: false, `{"k":["x"]}`: false,
	} {
		require.Equal(t, want, ReplacementKeepsKey(p, old, doc(t, s)), s)
	}
	require.False(t, ReplacementKeepsKey(p, old[:3], doc(t, `{"k":"x"}`)))
	require.True(t, ReplacementKeepsKey(p, key(`{"_id":5}`), doc(t, `{"z":1}`)))

	replacement := func(s string) bson.RawValue { return doc(t, `{"u":`+s+`}`).Lookup("u") }
	for _, tt := range []struct {
		filter, doc string
		key         string
		err         error
	}{
		{`{"_id":5}`, `{"k":1}`, `{"_id":5,"k":1}`, nil},
		{`{"_id":5}`, `{"_id":6,"k":1}`, `{"_id":6,"k":1}`, nil},
		{`{"_id":{"$eq":5}}`, `{}`, `{"_id":5}`, nil},
		{`{"k":1}`, `{"k":1}`, "", nil},
		{`{"_id":5}`, `{"k":[1]}`, "", shardkey.ErrArray},
	} {
		got, known, err := ReplacementKey(p, nil, Update{Filter: doc(t, tt.filter), Mods: replacement(tt.doc)})
		require.Equal(t, tt.err, err)
		require.Equal(t, tt.key != "", known)
		if known {
			require.Equal(t, key(tt.key), got, fmt.Sprint(tt))
		}
	}
}
