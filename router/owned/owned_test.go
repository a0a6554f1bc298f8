package owned

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// values lists what documents have at a key's fields: the goldens, strings that collations
// bend, and types that drivers cannot name. The zero value is a missing field.
func values(t *testing.T) []bson.RawValue {
	t.Helper()
	list := []bson.RawValue{{}}
	for _, name := range []string{"bson_order.jsonl", "hashed_keys.jsonl"} {
		f, err := os.Open("../../catalog/shardkey/testdata/" + name)
		require.NoError(t, err)
		defer f.Close()
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			var l struct{ BSON string }
			require.NoError(t, json.Unmarshal(s.Bytes(), &l))
			doc, err := hex.DecodeString(l.BSON)
			require.NoError(t, err)
			if r := shardkey.NewReader(doc); r.Next() && r.Type != bson.TypeArray {
				list = append(list, bson.RawValue{Type: r.Type, Value: bytes.Clone(r.Value)})
			}
		}
	}
	for _, s := range []string{
		"", "a", "A", "b", "B", "z", "Z", "ä", "Ä", "e", "é", "É", "ß", "ss", "10", "9", "-", "!a", " a", "\x00", "\x01", "\x02", "a\x00", "a\x00b",
		"a\x01", "a\x01\x01", "a\x02", "\U0001F600", "\uffff", "\xff\xfe", "a\xff", "$a", "$$a", "a.b",
	} {
		for _, kind := range []bson.Type{bson.TypeString, bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript} {
			list = append(list, bson.RawValue{Type: kind, Value: bsoncore.AppendString(nil, s)})
		}
		if !bytes.Contains([]byte(s), []byte{0}) {
			named := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, s, 1))
			held := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "s", s))
			list = append(list, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: named}, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: held})
		}
	}
	return append(list, bson.RawValue{Type: bson.TypeUndefined}, bson.RawValue{Type: bson.TypeMinKey}, bson.RawValue{Type: bson.TypeMaxKey},
		bson.RawValue{Type: bson.TypeDBPointer, Value: append(bsoncore.AppendString(nil, "d.c"), "123456789012"...)})
}

// set is a collection and what it holds.
type set struct {
	p    *shardkey.Pattern
	coll *mongo.Collection
	keys [][]byte // ordered, by _id
}

// newSet makes a collection of documents with random values at the key's fields, all of them
// at one that has only one.
func newSet(t *testing.T, rnd *rand.Rand, db *mongo.Database, pattern bson.D, collation *options.Collation, all []bson.RawValue) *set {
	t.Helper()
	raw, err := bson.Marshal(pattern)
	require.NoError(t, err)
	s := &set{coll: db.Collection("c")}
	s.p, err = shardkey.ParsePattern(raw)
	require.NoError(t, err)
	require.NoError(t, s.coll.Drop(t.Context()))
	opts := options.CreateCollection()
	if collation != nil {
		opts.SetCollation(collation)
	}
	require.NoError(t, db.CreateCollection(t.Context(), "c", opts))
	var docs []any
	for i := range all {
		doc := bsoncore.AppendInt32Element(nil, "_id", int32(i))
		for f := range s.p.Len() {
			v := all[i]
			if f > 0 || s.p.Len() > 1 && rnd.IntN(2) == 0 {
				v = all[rnd.IntN(min(len(all), 40))]
			}
			doc = appendAt(doc, s.p.Field(f).Path(), v)
		}
		docs = append(docs, bson.Raw(bsoncore.BuildDocument(nil, doc)))
		key, err := s.p.AppendKey(nil, docs[i].(bson.Raw))
		require.NoError(t, err)
		s.keys = append(s.keys, key)
	}
	_, err = s.coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	return s
}

// appendAt appends a value at a path; fields of one document are not joined.
func appendAt(dst []byte, path []string, v bson.RawValue) []byte {
	if v.Type == 0 {
		return dst
	}
	if len(path) > 1 {
		return bsoncore.AppendDocumentElement(dst, path[0], bsoncore.BuildDocument(nil, appendAt(nil, path[1:], v)))
	}
	return append(bsoncore.AppendHeader(dst, bsoncore.Type(v.Type), path[0]), v.Value...)
}

// bound makes a bound of random values, or of those of a document, so that keys equal it.
func (s *set) bound(t *testing.T, rnd *rand.Rand, all []bson.RawValue) (bson.Raw, []byte) {
	t.Helper()
	for {
		var b []byte
		for f := range s.p.Len() {
			v := all[rnd.IntN(len(all))]
			switch k := rnd.IntN(12); {
			case k == 0:
				v = bson.RawValue{Type: bson.TypeMinKey}
			case k == 1:
				v = bson.RawValue{Type: bson.TypeMaxKey}
			case f == s.p.HashedField():
				v = bson.RawValue{Type: bson.TypeInt64, Value: bsoncore.AppendInt64(nil, shardkey.Hash(v.Type, v.Value))}
			case v.Type == 0:
				v.Type = bson.TypeNull
			}
			b = append(bsoncore.AppendHeader(b, bsoncore.Type(v.Type), s.p.Field(f).Name), v.Value...)
		}
		doc := bson.Raw(bsoncore.BuildDocument(nil, b))
		if Expressible(s.p, doc) != nil {
			continue
		}
		key, err := s.p.AppendBound(nil, doc)
		require.NoError(t, err)
		return doc, key
	}
}

// ranges makes one to three ranges.
func (s *set) ranges(t *testing.T, rnd *rand.Rand, all []bson.RawValue) (list []catalog.Range) {
	t.Helper()
	for len(list) == 0 || rnd.IntN(3) == 0 && len(list) < 3 {
		var r catalog.Range
		r.Min, r.MinKey = s.bound(t, rnd, all)
		r.Max, r.MaxKey = s.bound(t, rnd, all)
		if bytes.Compare(r.MinKey, r.MaxKey) > 0 {
			r.Min, r.MinKey, r.Max, r.MaxKey = r.Max, r.MaxKey, r.Min, r.MinKey
		}
		if !bytes.Equal(r.MinKey, r.MaxKey) {
			list = append(list, r)
		}
	}
	return list
}

// holds reports whether a key lies in one of the ranges, as routing tables see it.
func (s *set) holds(t *testing.T, ranges []catalog.Range, key []byte) bool {
	t.Helper()
	last, err := s.p.AppendBound(nil, s.p.MaxBound())
	require.NoError(t, err)
	for _, r := range ranges {
		if bytes.Compare(r.MinKey, key) <= 0 && (bytes.Compare(key, r.MaxKey) < 0 || bytes.Equal(r.MaxKey, last)) {
			return true
		}
	}
	return false
}

// TestOnMongod: a real mongod finds, counts and updates by the predicate exactly what lies in
// the ranges by shardkey's order, whatever the types, under every collation, on both engines.
func TestOnMongod(t *testing.T) {
	c := clustertest.Start(t, cluster.Options{Shards: 1})
	client, err := mongo.Connect(options.Client().ApplyURI(c.Shard(0).URI()))
	require.NoError(t, err)
	defer func() { _ = client.Disconnect(t.Context()) }()
	all := values(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	collations := []*options.Collation{nil, {Locale: "en", Strength: 1}, {Locale: "sv", Strength: 2}, {Locale: "de", Strength: 3}, {Locale: "en", Strength: 1, Alternate: "shifted", NumericOrdering: true}}
	for i, pattern := range []bson.D{
		{{Key: "k", Value: 1}},
		{{Key: "k", Value: "hashed"}},
		{{Key: "a.b", Value: 1}, {Key: "c", Value: 1}},
		{{Key: "h.i", Value: "hashed"}, {Key: "c", Value: 1}},
		{{Key: "a", Value: 1}, {Key: "h", Value: "hashed"}, {Key: "c.$id", Value: 1}},
	} {
		classic := i%2 == 0
		require.NoError(t, client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "internalQueryForceClassicEngine", Value: classic}}).Err())
		s := newSet(t, rnd, client.Database("d"), pattern, collations[i%4], all)
		for range 15 {
			s.check(t, s.ranges(t, rnd, all), collations[rnd.IntN(len(collations))])
		}
	}
}

// check runs one list of ranges in all commands.
func (s *set) check(t *testing.T, ranges []catalog.Range, collation *options.Collation) {
	t.Helper()
	ctx := t.Context()
	in, err := In(s.p, ranges)
	require.NoError(t, err)
	not, err := NotIn(s.p, ranges)
	require.NoError(t, err)
	var within, without []int32
	for i, k := range s.keys {
		if s.holds(t, ranges, k) {
			within = append(within, int32(i))
		} else {
			without = append(without, int32(i))
		}
	}
	said := func(cur *mongo.Cursor, err error) (ids []int32) {
		require.NoError(t, err)
		var docs []struct {
			ID int32 `bson:"_id"`
		}
		require.NoError(t, cur.All(ctx, &docs))
		for _, d := range docs {
			ids = append(ids, d.ID)
		}
		return ids
	}
	what := []any{"key %s, ranges %s, collation %v", s.p, in.Match(), collation}
	find := options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "_id", Value: 1}}).SetCollation(collation)
	require.Equal(t, within, said(s.coll.Find(ctx, in.Match(), find)), what...)
	require.Equal(t, without, said(s.coll.Find(ctx, not.Match(), find)), what...)

	// It is one more condition behind others, an $expr among them.
	both := not.AppendTo(in.AppendTo(bsoncore.AppendDocumentElement(nil, "_id", bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "$gte", 0)))))
	require.Empty(t, said(s.coll.Find(ctx, bson.Raw(bsoncore.BuildDocument(nil, both)), find)), what...)

	pipeline := bson.A{bson.D{{Key: "$match", Value: not.Match()}}, bson.D{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}}, bson.D{{Key: "$project", Value: bson.D{{Key: "in", Value: in.Expr()}}}}}
	require.Equal(t, without, said(s.coll.Aggregate(ctx, pipeline, options.Aggregate().SetCollation(collation))), what...)

	cmd := bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: in.Match()}}
	if collation != nil {
		cmd = append(cmd, bson.E{Key: "collation", Value: bson.D{
			{Key: "locale", Value: collation.Locale}, {Key: "strength", Value: collation.Strength}, {Key: "numericOrdering", Value: collation.NumericOrdering},
		}})
	}
	var n struct{ N int }
	require.NoError(t, s.coll.Database().RunCommand(ctx, cmd).Decode(&n), what...)
	require.Equal(t, len(within), n.N, what...)

	mark := bson.D{{Key: "$inc", Value: bson.D{{Key: "marks", Value: 1}}}}
	res, err := s.coll.UpdateMany(ctx, in.Match(), mark, options.UpdateMany().SetCollation(collation))
	require.NoError(t, err, what...)
	require.EqualValues(t, len(within), res.ModifiedCount, what...)
	require.Equal(t, within, said(s.coll.Find(ctx, bson.D{{Key: "marks", Value: bson.D{{Key: "$exists", Value: true}}}}, find)), what...)
	_, err = s.coll.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$unset", Value: bson.D{{Key: "marks", Value: 1}}}})
	require.NoError(t, err)
}

// TestExpressible: bounds that a collation would bend are refused, with a code.
func TestExpressible(t *testing.T) {
	raw, err := bson.Marshal(bson.D{{Key: "h", Value: "hashed"}, {Key: "k", Value: 1}})
	require.NoError(t, err)
	p, err := shardkey.ParsePattern(raw)
	require.NoError(t, err)
	for _, tt := range []struct {
		value any
		ok    bool
	}{
		{"a", true},
		{bson.Symbol("a"), true},
		{bson.D{{Key: "a", Value: 1}}, true},
		{bson.D{{Key: "a", Value: bson.JavaScript("f")}}, true},
		{bson.CodeWithScope{Code: "f", Scope: bson.D{{Key: "a", Value: 1}}}, true},
		{bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: "x"}}}}, false},
		{bson.D{{Key: "a", Value: bson.Symbol("x")}}, false},
		{bson.A{bson.A{"x"}}, false},
		{bson.CodeWithScope{Code: "f", Scope: bson.D{{Key: "a", Value: "x"}}}, false},
		{bson.DBPointer{DB: "d.c"}, false},
	} {
		doc, err := bson.Marshal(bson.D{{Key: "h", Value: int64(5)}, {Key: "k", Value: tt.value}})
		require.NoError(t, err)
		err = Expressible(p, doc)
		_, inErr := In(p, []catalog.Range{{Min: p.MinBound(), Max: doc}})
		require.Equal(t, err, inErr)
		if tt.ok {
			require.NoError(t, err, "%v", tt.value)
		} else {
			require.ErrorIs(t, err, ErrBound, "%v", tt.value)
		}
	}
}

// TestJoined: ranges that touch are one.
func TestJoined(t *testing.T) {
	r := func(lo, hi string) catalog.Range { return catalog.Range{MinKey: []byte(lo), MaxKey: []byte(hi)} }
	given := []catalog.Range{r("e", "g"), r("a", "c"), r("c", "d"), r("f", "f"), r("g", "h"), r("b", "c")}
	require.Equal(t, []catalog.Range{r("a", "d"), r("e", "h")}, joined(given))
	require.Equal(t, r("e", "g"), given[0])
}
