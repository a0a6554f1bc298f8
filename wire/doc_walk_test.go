package wire

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// everyType has one element of each BSON type.
func everyType(tb testing.TB) Doc {
	tb.Helper()
	dec, err := bson.ParseDecimal128("1.5")
	require.NoError(tb, err)
	return doc(tb,
		e("double", 1.5), e("string", "héllo"), e("doc", bson.D{{Key: "a", Value: bson.A{int32(1), "x"}}}),
		e("array", bson.A{bson.D{}, bson.A{}}), e("binary", bson.Binary{Subtype: 4, Data: make([]byte, 16)}),
		e("binary2", bson.Binary{Subtype: 2, Data: []byte{1, 2}}), e("undefined", bson.Undefined{}),
		e("oid", bson.ObjectID{1}), e("bool", true), e("date", bson.DateTime(5)), e("null", nil),
		e("regex", bson.Regex{Pattern: "^a", Options: "i"}), e("pointer", bson.DBPointer{DB: "d.c", Pointer: bson.ObjectID{2}}),
		e("code", bson.JavaScript("1")), e("symbol", bson.Symbol("s")),
		e("scope", bson.CodeWithScope{Code: "x", Scope: bson.D{{Key: "x", Value: int32(1)}}}),
		e("int32", int32(-7)), e("timestamp", bson.Timestamp{T: 1, I: 2}), e("int64", int64(8)), e("decimal", dec),
		e("min", bson.MinKey{}), e("max", bson.MaxKey{}), e("", "no name"),
	)
}

func TestIterReadsEveryType(t *testing.T) {
	t.Parallel()
	d := everyType(t)
	want, err := bson.Raw(d).Elements()
	require.NoError(t, err)
	it := d.Iter()
	var el Elem
	for _, w := range want {
		require.True(t, it.Next(&el), w.Key())
		require.Equal(t, w.Key(), string(el.Name))
		require.Equal(t, w.Value().Type, el.Type)
		require.Equal(t, w.Value().Value, append([]byte{}, el.Value...), w.Key())
		require.Equal(t, []byte(w), el.Raw)
		require.True(t, el.RawValue().Equal(w.Value()))
		require.Equal(t, el, elemAt(el.Raw), w.Key())
	}
	require.False(t, it.Next(&el))
	require.NoError(t, it.Err())
	require.NoError(t, d.Validate(2))
}

// TestIterFailsWhereverItIsCut: no prefix of a document, with its length set right, is
// taken for one, except where an element ends.
func TestIterFailsWhereverItIsCut(t *testing.T) {
	t.Parallel()
	whole := everyType(t)
	ends := map[int]bool{4: true}
	at := 4
	it := whole.Iter()
	var el Elem
	for it.Next(&el) {
		at += len(el.Raw)
		ends[at] = true
	}
	for n := 4; n < len(whole)-1; n++ {
		d := append(slices.Clone(whole[:n:n]), 0)
		SetLength(d)
		it := d.Iter()
		for it.Next(&el) {
			require.LessOrEqual(t, len(el.Raw), n)
		}
		if ends[n] {
			require.NoError(t, it.Err(), "%d bytes", n)
			continue
		}
		// A cut may leave another element whole (the 0 that ends the document ends a
		// name, too): then it must be the last one that differs.
		if it.Err() == nil {
			require.NoError(t, bson.Raw(d).Validate(), "%d bytes", n)
		}
	}
}

func TestIterRefusesFrames(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Doc{
		"nothing": nil, "short": {4, 0, 0, 0}, "too long": {6, 0, 0, 0, 0}, "too short": {5, 0, 0, 0, 0, 0},
		"negative": {0xff, 0xff, 0xff, 0xff, 0}, "no end": {5, 0, 0, 0, 1},
		"no name": {7, 0, 0, 0, 0x10, 'a', 0}, "no value": {8, 0, 0, 0, 0x10, 'a', 0, 0},
		"unknown type": {8, 0, 0, 0, 0x20, 'a', 0, 0}, "end inside": {8, 0, 0, 0, 0, 'a', 0, 0},
	} {
		it := d.Iter()
		var el Elem
		require.False(t, it.Next(&el), name)
		require.ErrorIs(t, it.Err(), ErrMalformed, name)
		require.ErrorIs(t, d.Validate(10), ErrMalformed, name)
		_, ok := d.First()
		require.False(t, ok, name)
	}
}

func TestValueLenRefusesLengths(t *testing.T) {
	t.Parallel()
	huge := []byte{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	negative := []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, typ := range []bson.Type{
		bson.TypeString, bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeBinary, bson.TypeJavaScript,
		bson.TypeSymbol, bson.TypeCodeWithScope, bson.TypeDBPointer,
	} {
		for _, b := range [][]byte{nil, {1}, huge, negative, {0, 0, 0, 0}} {
			if typ == bson.TypeBinary && len(b) == 4 {
				b = b[:3]
			}
			require.Equal(t, -1, ValueLen(typ, b), "%s %x", typ, b)
		}
	}
	require.Equal(t, -1, ValueLen(bson.TypeString, []byte{2, 0, 0, 0, 'a', 'b'}), "no end")
	require.Equal(t, 5, ValueLen(bson.TypeBinary, []byte{0, 0, 0, 0, 0}))
	require.Equal(t, -1, ValueLen(bson.TypeRegex, []byte{'a', 0, 'i'}))
	require.Equal(t, 2, ValueLen(bson.TypeRegex, []byte{0, 0, 9}))
	require.Equal(t, -1, ValueLen(0, []byte{1, 2, 3}))
}

func TestValidateDepth(t *testing.T) {
	t.Parallel()
	d := bson.D{{Key: "x", Value: int32(1)}}
	for range 5 {
		d = bson.D{{Key: "d", Value: d}}
	}
	require.NoError(t, doc(t, d...).Validate(5))
	require.ErrorIs(t, doc(t, d...).Validate(4), ErrTooDeep)
	bad := doc(t, e("d", bson.D{{Key: "s", Value: "text"}}))
	bad[len(bad)-3] = 'x' // the text's end, two levels down
	require.ErrorIs(t, bad.Validate(5), ErrMalformed)
}

func TestLookup(t *testing.T) {
	t.Parallel()
	d := doc(t, e("a", int32(1)), e("b", int32(2)), e("a", int32(3)), e("n", nil), e("u", bson.Undefined{}))
	el, ok := d.Lookup("a")
	require.True(t, ok)
	n, _ := el.Int64()
	require.Equal(t, int64(1), n, "the first")
	_, ok = d.Lookup("c")
	require.False(t, ok)
	for name, null := range map[string]bool{"a": false, "n": true, "u": true} {
		el, _ := d.Lookup(name)
		require.Equal(t, null, el.IsNull(), name)
	}
}

func TestElemNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value any
		want  int64
		ok    bool
	}{
		{int32(-5), -5, true},
		{int64(math.MinInt64), math.MinInt64, true},
		{2.9, 2, true},
		{-2.9, -2, true},
		{1e300, math.MaxInt64, true},
		{math.Inf(-1), math.MinInt64, true},
		{math.NaN(), 0, true},
		{float64(1 << 63), math.MaxInt64, true},
		{"5", 0, false},
		{true, 0, false},
		{nil, 0, false},
		{bson.Decimal128{}, 0, false},
		{bson.Timestamp{T: 1}, 0, false},
	} {
		el, _ := doc(t, e("x", c.value)).First()
		n, ok := el.Int64()
		require.Equal(t, c.ok, ok, "%v", c.value)
		require.Equal(t, c.want, n, "%v", c.value)
	}
}

func TestElemBool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value    any
		want, ok bool
	}{
		{true, true, true},
		{false, false, true},
		{int32(0), false, true},
		{int64(-1), true, true},
		{0.0, false, true},
		{0.5, true, true},
		{math.NaN(), true, true},
		{"true", false, false},
		{nil, false, false},
	} {
		el, _ := doc(t, e("x", c.value)).First()
		v, ok := el.Bool()
		require.Equal(t, c.ok, ok, "%v", c.value)
		require.Equal(t, c.want, v, "%v", c.value)
	}
}

func TestElemOtherTypes(t *testing.T) {
	t.Parallel()
	el, _ := doc(t, e("x", int32(1))).First()
	_, ok := el.Str()
	require.False(t, ok)
	_, ok = el.StrBytes()
	require.False(t, ok)
	_, ok = el.Timestamp()
	require.False(t, ok)
	_, ok = el.Doc()
	require.False(t, ok)
	el, _ = doc(t, e("x", bson.A{})).First()
	_, ok = el.Doc()
	require.False(t, ok, "an array is no document")
	var none Elem
	_, ok = none.Int64()
	require.False(t, ok)
	_, ok = none.Str()
	require.False(t, ok)
	_, ok = none.Doc()
	require.False(t, ok)
}
