package target

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// A small matcher with mongod's meaning of the operators that Query narrows by,
// and of some that it does not. It is written from the documentation, apart from
// the code under test.

type matcher struct {
	collated bool // letters' case does not matter
	hashed   bool // numbers are what a hashed index takes them for
}

// at is the value at a path; found is false if it is missing.
func at(d bson.D, path string) (v any, found bool) {
	first, rest, more := strings.Cut(path, ".")
	for _, e := range d {
		if e.Key != first {
			continue
		}
		if !more {
			return e.Value, true
		}
		sub, ok := e.Value.(bson.D)
		if !ok {
			return nil, false
		}
		return at(sub, rest)
	}
	return nil, false
}

func fold(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ToLower(v)
	case bson.D:
		out := bson.D{}
		for _, e := range v {
			out = append(out, bson.E{Key: e.Key, Value: fold(e.Value)})
		}
		return out
	default:
		return v
	}
}

func (m matcher) compare(a, b any) (c int, comparable bool) {
	if m.collated {
		a, b = fold(a), fold(b)
	}
	ta, va, _ := bson.MarshalValue(a)
	tb, vb, _ := bson.MarshalValue(b)
	return shardkey.Compare(ta, va, tb, vb), shardkey.Class(ta) == shardkey.Class(tb)
}

func (m matcher) filter(d, filter bson.D) bool {
	for _, e := range filter {
		ok := false
		switch e.Key {
		case "$and":
			ok = !slices.ContainsFunc(e.Value.(bson.A), func(f any) bool { return !m.filter(d, f.(bson.D)) })
		case "$or":
			ok = slices.ContainsFunc(e.Value.(bson.A), func(f any) bool { return m.filter(d, f.(bson.D)) })
		case "$nor":
			ok = !slices.ContainsFunc(e.Value.(bson.A), func(f any) bool { return m.filter(d, f.(bson.D)) })
		default:
			v, found := at(d, e.Key)
			ok = m.condition(v, found, e.Value)
		}
		if !ok {
			return false
		}
	}
	return true
}

func (m matcher) condition(v any, found bool, cond any) bool {
	ops, ok := cond.(bson.D)
	if !ok || len(ops) == 0 || ops[0].Key[0] != '$' {
		return m.equal(v, found, cond)
	}
	for _, op := range ops {
		if !m.operator(v, found, op) {
			return false
		}
	}
	return true
}

func (m matcher) equal(v any, found bool, want any) bool {
	if re, ok := want.(bson.Regex); ok {
		s, ok := v.(string)
		return ok && regexp.MustCompile(re.Pattern).MatchString(s)
	}
	if _, null := want.(bson.Null); null {
		_, isNull := v.(bson.Null)
		_, isUndefined := v.(bson.Undefined)
		return !found || isNull || isUndefined
	}
	if !found {
		return false
	}
	c, _ := m.compare(v, want)
	return c == 0
}

func (m matcher) operator(v any, found bool, op bson.E) bool {
	switch op.Key {
	case "$eq":
		return m.equal(v, found, op.Value)
	case "$ne":
		return !m.equal(v, found, op.Value)
	case "$in":
		return slices.ContainsFunc(op.Value.(bson.A), func(w any) bool { return m.equal(v, found, w) })
	case "$nin":
		return !slices.ContainsFunc(op.Value.(bson.A), func(w any) bool { return m.equal(v, found, w) })
	case "$exists":
		return found == op.Value.(bool)
	case "$not":
		return !m.condition(v, found, op.Value)
	}
	return m.inequality(v, found, op)
}

func (m matcher) inequality(v any, found bool, op bson.E) bool {
	switch op.Value.(type) {
	case bson.Null:
		return strings.HasSuffix(op.Key, "e") && m.equal(v, found, op.Value)
	case bson.MinKey:
		c, _ := m.compare(v, op.Value)
		return found && (op.Key == "$gte" || op.Key == "$gt" && c != 0 || op.Key == "$lte" && c == 0)
	case bson.MaxKey:
		c, _ := m.compare(v, op.Value)
		return found && (op.Key == "$lte" || op.Key == "$lt" && c != 0 || op.Key == "$gte" && c == 0)
	}
	c, comparable := m.compare(v, op.Value)
	if !found || !comparable {
		return false
	}
	if isNaNValue(v) != isNaNValue(op.Value) {
		return false
	}
	switch op.Key {
	case "$gt":
		return c > 0
	case "$gte":
		return c >= 0
	case "$lt":
		return c < 0
	default:
		return c <= 0
	}
}

func isNaNValue(v any) bool {
	f, ok := v.(float64)
	return ok && f != f
}

// Generators.

var scalars = []any{
	int32(0), int32(1), int32(5), int64(5), 5.0, 5.5, int32(10), int64(1) << 60, -1e300, nan(), inf(), decimal("5"),
	decimal("7"), "", "a", "A", "ab", "Ab", "b", "z", bson.Null{}, true, false, bson.DateTime(5), bson.Timestamp{T: 5},
	bson.ObjectID{1}, bson.MinKey{}, bson.MaxKey{}, bson.Binary{Data: []byte{1}},
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
