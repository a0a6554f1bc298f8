package shardkey

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// goldenLine is a line of testdata/*.jsonl, recorded from a mongod.
type goldenLine struct {
	Rank int    `json:"rank"`
	BSON string `json:"bson"`
	JSON string `json:"json"`
	Hash string `json:"hash"`

	typ   bson.Type
	value []byte
}

func readGolden(t testing.TB, name string) []goldenLine {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	require.NoError(t, err)
	defer f.Close()
	var lines []goldenLine
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var l goldenLine
		require.NoError(t, json.Unmarshal(s.Bytes(), &l))
		doc, err := hex.DecodeString(l.BSON)
		require.NoError(t, err)
		r := NewReader(doc)
		l.typ = bson.TypeNull // the missing field
		if r.Next() {
			l.typ, l.value = r.Type, r.Value
		}
		require.NoError(t, r.Err())
		lines = append(lines, l)
	}
	require.NoError(t, s.Err())
	return lines
}

func TestOrderGolden(t *testing.T) {
	lines := readGolden(t, "bson_order.jsonl")
	require.Len(t, lines, 395)
	keys := make([][]byte, len(lines))
	for i, l := range lines {
		keys[i] = AppendOrdered(nil, l.typ, l.value)
	}
	for i, a := range lines {
		for j, b := range lines {
			want := cmp.Compare(a.Rank, b.Rank)
			if got := bytes.Compare(keys[i], keys[j]); got != want {
				t.Errorf("bytes: %s with %s: %d, want %d", a.JSON, b.JSON, got, want)
			}
			if got := Compare(a.typ, a.value, b.typ, b.value); got != want {
				t.Errorf("Compare: %s with %s: %d, want %d", a.JSON, b.JSON, got, want)
			}
			if want != 0 && bytes.HasPrefix(keys[i], keys[j]) {
				t.Errorf("%s begins with %s", a.JSON, b.JSON)
			}
		}
	}
}

func TestHashGolden(t *testing.T) {
	lines := readGolden(t, "hashed_keys.jsonl")
	require.Len(t, lines, 488)
	for _, l := range lines {
		require.Equal(t, l.Hash, strconv.FormatInt(Hash(l.typ, l.value), 10), l.JSON)
	}
}

func TestHashVectors(t *testing.T) {
	for _, tt := range []struct {
		v    any
		want int64
	}{
		{bson.Undefined{}, 40158834000849533},
		{bson.MinKey{}, 7961148599568647290},
		{bson.MaxKey{}, 5504842513779440750},
		{bson.A{}, 8849948234993459283},
		{bson.A{"bar", "baz", "qux"}, -2938911267422831539},
		{bson.D{{Key: "a", Value: "abc"}, {Key: "b", Value: int64(123)}}, 4771603801758380216},
		{math.Inf(1), 921523596458303250},
		{math.NaN(), 4854801880128277513},
		{dec("2.5"), 848411777775835583},
		{dec("2.50000000000000000000001"), hashInt(3)},
		{dec("3.5"), hashInt(4)},
		{dec("-2.5"), hashInt(-2)},
		{dec("-3.5"), hashInt(-4)},
		{dec("0.5"), hashInt(0)},
		{dec("0.5000000000000000000000000000000001"), hashInt(1)},
		{dec("9999999999999999999999999999999999E-34"), hashInt(1)},
		{dec("5000000000000000000000000000000000E-34"), hashInt(0)},
		{dec("1E-400"), hashInt(0)},
		{dec("9223372036854775807.5"), hashInt(math.MaxInt64)},
		{dec("9223372036854775806.5"), hashInt(math.MaxInt64 - 1)},
		{dec("-9223372036854775808.5"), hashInt(math.MinInt64)},
		{dec("12345678901234567890E-1"), hashInt(1234567890123456789)},
		{dec("1E+18"), hashInt(1e18)},
		{dec("1E+30"), hashInt(math.MaxInt64)},
	} {
		typ, value := marshal(t, tt.v)
		require.Equal(t, tt.want, Hash(typ, value), "%v", tt.v)
	}
}

func dec(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

func hashInt(i int64) int64 {
	typ, value, _ := bson.MarshalValue(i)
	return Hash(typ, value)
}

func marshal(t testing.TB, v any) (bson.Type, []byte) {
	t.Helper()
	typ, value, err := bson.MarshalValue(v)
	require.NoError(t, err)
	return typ, value
}

// number is a number of any BSON type and its exact value.
func number() *rapid.Generator[any] {
	ints := rapid.Custom(func(t *rapid.T) int64 {
		shift := rapid.IntRange(0, 63).Draw(t, "shift")
		return rapid.Int64().Draw(t, "int") >> shift
	})
	return rapid.Custom(func(t *rapid.T) any {
		i := ints.Draw(t, "i")
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return int32(i)
		case 1:
			return i
		case 2:
			return float64(i)
		case 3:
			return rapid.Float64().Draw(t, "f")
		case 4:
			c := new(big.Int).SetInt64(i)
			if rapid.Bool().Draw(t, "wide") {
				c.Mul(c, big.NewInt(rapid.Int64Range(1, 100_000_000_000_000).Draw(t, "by")))
			}
			exp := rapid.OneOf(rapid.IntRange(-40, 40), rapid.IntRange(-400, 400)).Draw(t, "exp")
			d, ok := bson.ParseDecimal128FromBigInt(c, exp)
			if !ok {
				return int32(0)
			}
			return d
		default: // a decimal near a double
			f := float64(i) * math.Pow(2, float64(rapid.IntRange(-30, 30).Draw(t, "pow")))
			d, err := bson.ParseDecimal128(strconv.FormatFloat(f, 'e', 33, 64))
			if err != nil {
				return f
			}
			return d
		}
	})
}

func exact(v any) *big.Rat {
	switch v := v.(type) {
	case int32:
		return new(big.Rat).SetInt64(int64(v))
	case int64:
		return new(big.Rat).SetInt64(v)
	case float64:
		return new(big.Rat).SetFloat64(v)
	case bson.Decimal128:
		c, exp, err := v.BigInt()
		if err != nil {
			return nil
		}
		r := new(big.Rat).SetInt(c)
		scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil))
		if exp < 0 {
			scale.Inv(scale)
		}
		return r.Mul(r, scale)
	}
	return nil
}

// Any two finite numbers must compare as their exact values do.
func TestNumbersCompareExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := number().Draw(rt, "a"), number().Draw(rt, "b")
		if rapid.IntRange(0, 3).Draw(rt, "near") == 0 {
			if f, _ := exact(a).Float64(); !math.IsInf(f, 0) {
				b = f
			}
		}
		ta, va := marshal(t, a)
		tb, vb := marshal(t, b)
		ea, eb := exact(a), exact(b)
		if ea == nil || eb == nil {
			return
		}
		want := ea.Cmp(eb)
		if got := Compare(ta, va, tb, vb); got != want {
			rt.Fatalf("Compare(%v, %v) = %d, want %d", a, b, got, want)
		}
		ka, kb := AppendOrdered(nil, ta, va), AppendOrdered(nil, tb, vb)
		if got := bytes.Compare(ka, kb); got != want {
			rt.Fatalf("bytes of %v, %v: %d, want %d\n%x\n%x", a, b, got, want, ka, kb)
		}
		if want != 0 && bytes.HasPrefix(ka, kb) {
			rt.Fatalf("%v begins with %v", a, b)
		}
	})
}

func TestOrderSpecials(t *testing.T) {
	ascending := []any{
		bson.MinKey{},
		bson.Undefined{},
		bson.Null{},
		math.NaN(), math.Inf(-1), dec("-1E+400"), -math.MaxFloat64,
		int64(math.MinInt64), int32(-1), -5e-324, dec("-1E-400"), int32(0), dec("1E-400"), 5e-324,
		dec("0.1"), 0.1, int64(math.MaxInt64), math.MaxFloat64, dec("1E+400"), dec("1E+401"), math.Inf(1),
		"", "\x00", "\x00\x00", "\x00a", "a", "a\x00", "a\x00\x00", "a\x00b", "a\x01", "aa",
		bson.D{},
		bson.D{{Key: "", Value: bson.MinKey{}}},
		bson.D{{Key: "a", Value: bson.MinKey{}}},
		bson.D{{Key: "a", Value: "x"}},
		bson.D{{Key: "a", Value: "x"}, {Key: "a", Value: bson.MinKey{}}},
		bson.D{{Key: "a", Value: "x\x00"}},
		bson.D{{Key: "ab", Value: ""}},
		bson.A{},
		bson.A{bson.Null{}},
		bson.A{int32(1)},
		bson.A{int32(1), int32(0)},
		bson.A{int32(2)},
		bson.Binary{},
		bson.Binary{Subtype: 1},
		bson.Binary{Data: []byte{9}},
		bson.Binary{Data: []byte{1, 2}},
		bson.ObjectID{},
		bson.ObjectID{1},
		false, true,
		bson.DateTime(-1), bson.DateTime(0), bson.DateTime(1),
		bson.Timestamp{I: 1},
		bson.Timestamp{T: 1 << 31},
		bson.Regex{},
		bson.Regex{Options: "i"},
		bson.Regex{Pattern: "a"},
		bson.Regex{Pattern: "a", Options: "i"},
		bson.Regex{Pattern: "aa"},
		bson.DBPointer{DB: "b"},
		bson.DBPointer{DB: "b", Pointer: bson.ObjectID{1}},
		bson.DBPointer{DB: "aa"},
		bson.JavaScript("a"), bson.JavaScript("b"),
		bson.CodeWithScope{Code: "a", Scope: bson.D{}},
		bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: int32(1)}}},
		bson.CodeWithScope{Code: "a\x00", Scope: bson.D{}},
		bson.MaxKey{},
	}
	for i, a := range ascending {
		for j, b := range ascending {
			ta, va := marshal(t, a)
			tb, vb := marshal(t, b)
			ka, kb := AppendOrdered(nil, ta, va), AppendOrdered(nil, tb, vb)
			require.Equal(t, cmp.Compare(i, j), bytes.Compare(ka, kb), "%#v with %#v", a, b)
			require.Equal(t, cmp.Compare(i, j), Compare(ta, va, tb, vb), "%#v with %#v", a, b)
			require.False(t, i != j && bytes.HasPrefix(ka, kb), "%#v begins with %#v", a, b)
			require.NotContains(t, []byte{0, After}, ka[0])
		}
	}
	_, s := marshal(t, "x")
	require.Equal(t, AppendOrdered(nil, bson.TypeString, s), AppendOrdered(nil, bson.TypeSymbol, s))
}
