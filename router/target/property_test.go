package target

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Generators.

var scalars = []any{
	int32(0), int32(1), int32(5), int64(5), 5.0, 5.5, int32(10), int64(1) << 60, -1e300, nan(), inf(), decimal("5"),
	decimal("7"), "", "a", "A", "ab", "Ab", "b", "z",
	bson.Null{},
	true, false, bson.DateTime(5),
	bson.Timestamp{T: 5},
	bson.ObjectID{1},
	bson.MinKey{},
	bson.MaxKey{},
	bson.Binary{Data: []byte{1}},
}

func nan() float64 { z := 0.0; return z / z }
func inf() float64 { z := 0.0; return 1 / z }

func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

func value(t *rapid.T, depth int) any {
	if depth > 0 && rapid.IntRange(0, 3).Draw(t, "nest") == 0 {
		return object(t, depth-1)
	}
	return rapid.SampledFrom(scalars).Draw(t, "scalar")
}

func object(t *rapid.T, depth int) bson.D {
	d := bson.D{}
	for _, name := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, "has") {
			d = append(d, bson.E{Key: name, Value: value(t, depth)})
		}
	}
	return d
}

func storedDocument(t *rapid.T) bson.D {
	d := object(t, 2)
	for i := range d {
		if rapid.IntRange(0, 20).Draw(t, "undefined") == 0 {
			d[i].Value = bson.Undefined{}
		}
	}
	return d
}

func filterDocument(t *rapid.T, depth int) bson.D {
	f := bson.D{}
	for range rapid.IntRange(1, 3).Draw(t, "conditions") {
		switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
		case kind < 2 && depth > 0:
			op := rapid.SampledFrom([]string{"$and", "$or", "$or", "$nor"}).Draw(t, "logic")
			list := bson.A{}
			for range rapid.IntRange(1, 3).Draw(t, "branches") {
				list = append(list, filterDocument(t, depth-1))
			}
			f = append(f, bson.E{Key: op, Value: list})
		case kind < 5:
			f = append(f, bson.E{Key: path(t), Value: equalTo(t)})
		default:
			f = append(f, bson.E{Key: path(t), Value: operators(t)})
		}
	}
	return f
}

func path(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "a.b", "c", "a.c"}).Draw(t, "path")
}

func equalTo(t *rapid.T) any {
	if rapid.IntRange(0, 9).Draw(t, "regex") == 0 {
		return bson.Regex{Pattern: rapid.SampledFrom([]string{"^a", "^ab*", "^z?", "^a|b", "b", "^ab+"}).Draw(t, "re")}
	}
	return value(t, 2)
}

func operators(t *rapid.T) bson.D {
	ops := bson.D{}
	for range rapid.IntRange(1, 2).Draw(t, "ops") {
		op := rapid.SampledFrom([]string{
			"$eq", "$in", "$in", "$gt", "$gte", "$lt", "$lte", "$exists", "$ne", "$nin", "$not",
		}).Draw(t, "op")
		var v any
		switch op {
		case "$in", "$nin":
			list := bson.A{}
			for range rapid.IntRange(0, 3).Draw(t, "n") {
				list = append(list, equalTo(t))
			}
			v = list
		case "$exists":
			v = rapid.Bool().Draw(t, "exists")
		case "$not":
			v = bson.D{{Key: "$gt", Value: value(t, 0)}}
		default:
			v = value(t, 2)
		}
		ops = append(ops, bson.E{Key: op, Value: v})
	}
	return ops
}

// Whatever matches must lie on a shard that Query names.
func TestQueryFindsEveryMatch(t *testing.T) {
	keys := []string{
		`{"a":1}`, `{"a":"hashed"}`, `{"a.b":1}`, `{"a":1,"b":1}`, `{"b":"hashed","a":1}`, `{"a":1,"b":"hashed"}`,
		`{"a.b":"hashed"}`, `{"a.b":1,"a.c":1,"b":1}`,
	}
	tables := map[string]*shardkey.Table{}
	for _, k := range keys {
		tables[k] = scatteredTable(t, pattern(t, k))
	}
	matches, narrow := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		key := rapid.SampledFrom(keys).Draw(rt, "key")
		tab := tables[key]
		filter := filterDocument(rt, 2)
		m := matcher{collated: rapid.Bool().Draw(rt, "collated")}
		raw, err := bson.Marshal(filter)
		require.NoError(rt, err)
		targets, err := Query(tab.Pattern(), tab, raw, m.collated)
		require.NoError(rt, err)
		if fast, ok := ExactKey(tab.Pattern(), nil, raw, m.collated); ok && targets.Why != WhyContradiction {
			require.True(rt, targets.Exact, "%v", filter)
			require.Equal(rt, targets.Key, fast, "%v", filter)
		}
		if targets.Exact {
			require.Equal(rt, 1, targets.Shards.Len(), "%v", filter)
		}
		if targets.Shards.Len() < len(tab.Shards()) {
			narrow++
		}
		for range 20 {
			d := storedDocument(rt)
			// A document that tends to match: the filter's own equalities.
			if rapid.Bool().Draw(rt, "like") {
				d = merge(d, filter)
			}
			rawDoc, err := bson.Marshal(d)
			require.NoError(rt, err)
			k, err := tab.Pattern().AppendKey(nil, rawDoc)
			require.NoError(rt, err)
			if !m.filter(d, filter) {
				continue
			}
			matches++
			chunk := tab.Find(k)
			require.True(rt, targets.Shards.Has(tab.ShardOf(chunk)), "key %s\nfilter %v\ndocument %v\ncollated %v",
				key, filter, d, m.collated)
			if targets.Exact {
				require.Equal(rt, tab.Find(targets.Key), chunk, "%v %v", filter, d)
			}
		}
	})
	t.Logf("%d matches, %d narrowed filters", matches, narrow)
}

// merge puts the plain equalities of a filter into a document.
func merge(d, filter bson.D) bson.D {
	for _, e := range filter {
		switch v := e.Value.(type) {
		case bson.A:
			if f, ok := v[len(v)-1].(bson.D); ok {
				d = merge(d, f)
			}
		case bson.D:
			if len(v) > 0 && v[0].Key[0] == '$' {
				if in, ok := v[0].Value.(bson.A); ok && len(in) > 0 {
					d = put(d, e.Key, in[0])
				} else if !ok {
					d = put(d, e.Key, v[0].Value)
				}
				continue
			}
			d = put(d, e.Key, v)
		default:
			d = put(d, e.Key, v)
		}
	}
	return d
}

func put(d bson.D, path string, v any) bson.D {
	if _, re := v.(bson.Regex); re {
		v = "ab"
	}
	first, rest, more := strings.Cut(path, ".")
	if more {
		sub, _ := at(d, first)
		s, _ := sub.(bson.D)
		v = put(slices.Clone(s), rest, v)
	}
	for i := range d {
		if d[i].Key == first {
			d[i].Value = v
			return d
		}
	}
	return append(d, bson.E{Key: first, Value: v})
}

// scatteredTable has many chunks, each on a shard of its own.
func scatteredTable(t testing.TB, p *shardkey.Pattern) *shardkey.Table {
	bounds := map[string]bson.Raw{}
	for i, v := range scalars {
		typ, val, err := bson.MarshalValue(v)
		require.NoError(t, err)
		d := bson.D{}
		for f := range p.Len() {
			if f == p.HashedField() {
				d = append(d, bson.E{Key: p.Field(f).Name, Value: shardkey.Hash(typ, val)})
				continue
			}
			d = append(d, bson.E{Key: p.Field(f).Name, Value: scalars[(i+f*7)%len(scalars)]})
		}
		raw, err := bson.Marshal(d)
		require.NoError(t, err)
		k, err := p.AppendBound(nil, raw)
		require.NoError(t, err)
		bounds[string(k)] = raw
	}
	lowest, _ := p.AppendBound(nil, p.MinBound())
	highest, _ := p.AppendBound(nil, p.MaxBound())
	delete(bounds, string(lowest))
	delete(bounds, string(highest))
	var sorted []string
	for k := range bounds {
		sorted = append(sorted, k)
	}
	slices.Sort(sorted)
	var raws []bson.Raw
	for _, k := range sorted {
		raws = append(raws, bounds[k])
	}
	return tableOf(t, p, 1000, raws...)
}
