package shardkey

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// doc reads extended JSON.
func doc(t testing.TB, s string) bson.Raw {
	t.Helper()
	var raw bson.Raw
	require.NoError(t, bson.UnmarshalExtJSON([]byte(s), false, &raw), s)
	return raw
}

func pattern(t testing.TB, s string) *Pattern {
	t.Helper()
	p, err := ParsePattern(doc(t, s))
	require.NoError(t, err)
	return p
}

func TestParsePattern(t *testing.T) {
	const rest = " can contain at most one 'hashed' field, and/or multiple numerical fields set to a value of 1. Failed to parse field "
	for _, tt := range []struct{ key, err string }{
		{`{"_id":1}`, ""},
		{`{"a":1.0,"b":{"$numberLong":"1"},"c.d":{"$numberDecimal":"1.00"}}`, ""},
		{`{"a":1,"b":"hashed"}`, ""},
		{`{"a.$id":1}`, ""},
		{`{}`, "Shard key is empty"},
		{`{"a":"text"}`, `Shard key { a: "text" }` + rest + "a"},
		{`{"a":-1}`, `Shard key { a: -1 }` + rest + "a"},
		{`{"a":1.5}`, `Shard key { a: 1.5 }` + rest + "a"},
		{`{"a":true}`, `Shard key { a: true }` + rest + "a"},
		{`{"a":"hashed","b":"hashed"}`, `Shard key { a: "hashed", b: "hashed" }` + rest + "b"},
		{`{"":1}`, "Field  contains empty parts"},
		{`{"a.":1}`, "Field a. contains empty parts"},
		{`{".a":1}`, "Field .a contains empty parts"},
		{`{"a..b":1}`, "Field a..b contains empty parts"},
		{`{"$a":1}`, "Field $a contains parts that start with '$'"},
		{`{"a.$b":1}`, "Field a.$b contains parts that start with '$'"},
		{`{"a":1,"a":1}`, "Shard key { a: 1, a: 1 } has fields of which one contains the other: a and a"},
		{`{"a":1,"a.b":1}`, "Shard key { a: 1, a.b: 1 } has fields of which one contains the other: a and a.b"},
	} {
		p, err := ParsePattern(doc(t, tt.key))
		if tt.err == "" {
			require.NoError(t, err, tt.key)
			require.Equal(t, doc(t, tt.key), p.Raw())
			continue
		}
		require.EqualError(t, err, tt.err, tt.key)
	}
	_, err := ParsePattern(bson.Raw{1})
	require.ErrorIs(t, err, ErrMalformed)

	p := pattern(t, `{"a":1,"b.c":"hashed"}`)
	require.Equal(t, 2, p.Len())
	require.Equal(t, 1, p.HashedField())
	require.Equal(t, []string{"b", "c"}, p.Field(1).Path())
	require.Equal(t, 1, p.Index([]byte("b.c")))
	require.Equal(t, -1, p.Index([]byte("b")))
	require.Equal(t, `{ a: 1, b.c: "hashed" }`, p.String())
}

func TestAppendKey(t *testing.T) {
	null := []byte{classNull}
	for _, tt := range []struct {
		key, doc string
		err      error
		want     []byte // nil: not checked
	}{
		{`{"a":1}`, `{"a":null}`, nil, null},
		{`{"a":1}`, `{}`, nil, null},
		{`{"a":1}`, `{"b":1}`, nil, null},
		{`{"a":1}`, `{"a":[1]}`, ErrArray, nil},
		{`{"a":1}`, `{"a":{"b":[1]}}`, nil, nil},
		{`{"loc.id":1}`, `{"_id":2,"loc":{}}`, nil, null},
		{`{"loc.id":1}`, `{"_id":3}`, nil, null},
		{`{"loc.id":1}`, `{"_id":4,"loc":null}`, nil, null},
		{`{"loc.id":1}`, `{"loc":5}`, nil, null},
		{`{"loc.id":1}`, `{"loc.id":5}`, nil, null},
		{`{"loc.id":1}`, `{"loc":[{"id":7}]}`, ErrArray, nil},
		{`{"loc.id":1}`, `{"loc":{"id":[1]}}`, ErrArray, nil},
		{`{"loc.id":1}`, `{"loc":[]}`, ErrArray, nil},
		{`{"a":1,"b":1}`, `{"b":null}`, nil, []byte{classNull, classNull}},
		{`{"a":1,"b":1}`, `{"b":[]}`, ErrArray, nil},
		{`{"a":"hashed"}`, `{}`, nil, AppendHash(nil, 2338878944348059895)},
		{`{"a":"hashed"}`, `{"a":2.9}`, nil, AppendHash(nil, 848411777775835583)},
	} {
		got, err := pattern(t, tt.key).AppendKey(nil, doc(t, tt.doc))
		require.Equal(t, tt.err, err, "%s %s", tt.key, tt.doc)
		if tt.want != nil {
			require.Equal(t, tt.want, got, "%s %s", tt.key, tt.doc)
		}
	}
	p := pattern(t, `{"a":1,"b":1}`)
	one, err := p.AppendKey(nil, doc(t, `{"b":"x","a":2}`))
	require.NoError(t, err)
	two, err := p.AppendBound(nil, doc(t, `{"a":2.0,"b":"x"}`))
	require.NoError(t, err)
	require.Equal(t, two, one)
}

func TestAppendKeyMalformed(t *testing.T) {
	p := pattern(t, `{"a.b":1}`)
	good := doc(t, `{"x":"yz","a":{"b":"hello"}}`)
	_, err := p.AppendKey(nil, good)
	require.NoError(t, err)
	for i := range good {
		_, err := p.AppendKey(nil, good[:i])
		require.ErrorIs(t, err, ErrMalformed)
	}
	bad := bytes.Clone(good)
	bad[7] = 0xFF // length of the string x
	_, err = p.AppendKey(nil, bad)
	require.ErrorIs(t, err, ErrMalformed)
}

func TestAppendKeyAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 64)
	for _, key := range []string{`{"k":1}`, `{"k":"hashed"}`} {
		p := pattern(t, key)
		for _, d := range []string{
			`{"x":1,"k":5}`, `{"k":{"$numberLong":"9007199254740993"}}`, `{"k":2.5}`, `{"k":"a string"}`,
			`{"k":{"$oid":"65f0a1b2c3d4e5f60718293a"}}`, `{"k":{"$date":"2024-01-01T00:00:00Z"}}`, `{}`,
			`{"k":{"$numberDecimal":"9.99"}}`,
		} {
			raw := doc(t, d)
			require.Zero(t, testing.AllocsPerRun(20, func() {
				if _, err := p.AppendKey(buf, raw); err != nil {
					t.Error(err)
				}
			}), "%s %s", key, d)
		}
	}
	t1, v1 := marshal(t, dec("9.99"))
	t2, v2 := marshal(t, 9.99)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if Compare(t1, v1, t2, v2) == 0 {
			t.Error("equal")
		}
	}))
}

func TestBounds(t *testing.T) {
	p := pattern(t, `{"a":1,"h":"hashed"}`)
	key := func(s string) []byte {
		b, err := p.AppendBound(nil, doc(t, s))
		require.NoError(t, err, s)
		return b
	}
	ascending := [][]byte{
		key(`{"a":{"$minKey":1},"h":{"$minKey":1}}`),
		key(`{"a":5,"h":{"$minKey":1}}`),
		key(`{"a":5,"h":{"$numberLong":"-9223372036854775808"}}`),
		key(`{"a":5,"h":{"$numberLong":"-1"}}`),
		key(`{"a":5,"h":{"$numberLong":"0"}}`),
		key(`{"a":5,"h":{"$numberLong":"9223372036854775807"}}`),
		key(`{"a":5,"h":{"$maxKey":1}}`),
		key(`{"a":{"$maxKey":1},"h":{"$maxKey":1}}`),
	}
	for i := range ascending[1:] {
		require.Negative(t, bytes.Compare(ascending[i], ascending[i+1]), i)
	}
	for _, bad := range []string{
		`{"a":5}`, `{"h":{"$numberLong":"0"},"a":5}`, `{"a":5,"h":0}`, `{"a":5,"h":"x"}`, `{}`,
		`{"a":5,"h":{"$numberLong":"0"},"c":1}`, `{"b":5,"h":{"$numberLong":"0"}}`,
	} {
		_, err := p.AppendBound(nil, doc(t, bad))
		require.ErrorIs(t, err, ErrBound, bad)
	}
	require.Equal(t, doc(t, `{"a":{"$minKey":1},"h":{"$minKey":1}}`), p.MinBound())
	require.Equal(t, doc(t, `{"a":{"$maxKey":1},"h":{"$maxKey":1}}`), p.MaxBound())
	whole, err := p.ExtendBound(doc(t, `{"a":5}`))
	require.NoError(t, err)
	require.Equal(t, doc(t, `{"a":5,"h":{"$minKey":1}}`), whole)
	_, err = p.ExtendBound(doc(t, `{"h":{"$numberLong":"0"}}`))
	require.ErrorIs(t, err, ErrBound)
	n, _, err := p.AppendPrefix(nil, doc(t, `{"a":5}`))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestBoundInAnyForm: fields in any order, and whole numbers for hashes, make the same bound.
func TestBoundInAnyForm(t *testing.T) {
	p := pattern(t, `{"a.b":1,"h":"hashed"}`)
	want := doc(t, `{"a.b":"x","h":{"$numberLong":"-7"}}`)
	for _, in := range []string{
		`{"a.b":"x","h":{"$numberLong":"-7"}}`, `{"h":{"$numberLong":"-7"},"a.b":"x"}`, `{"h":-7,"a.b":"x"}`,
	} {
		bound, key, err := p.Bound(doc(t, in))
		require.NoError(t, err, in)
		require.Equal(t, want, bound, in)
		ordered, err := p.AppendBound(nil, want)
		require.NoError(t, err)
		require.Equal(t, ordered, key)
	}
	for _, in := range []string{
		`{}`, `{"a.b":1}`, `{"h":1}`, `{"a":{"b":1},"h":1}`, `{"a.b":[1],"h":1}`, `{"a.b":1,"h":"x"}`, `{"a.b":1,"h":1.5}`, `{"a.b":1,"h":1,"c":1}`, `{"a.b":1,"a.b":1}`,
	} {
		_, _, err := p.Bound(doc(t, in))
		require.ErrorIs(t, err, ErrBound, in)
	}
}

func TestKeyDocument(t *testing.T) {
	p := pattern(t, `{"a.b":1,"h":"hashed"}`)
	d := doc(t, `{"h":2.5,"a":{"b":"x","c":1}}`)
	raw, err := p.KeyDocument(d, false)
	require.NoError(t, err)
	require.Equal(t, doc(t, `{"a.b":"x","h":2.5}`), raw)
	hashed, err := p.KeyDocument(d, true)
	require.NoError(t, err)
	require.Equal(t, doc(t, `{"a.b":"x","h":{"$numberLong":"848411777775835583"}}`), hashed)
	a, err := p.AppendKey(nil, d)
	require.NoError(t, err)
	b, err := p.AppendBound(nil, hashed)
	require.NoError(t, err)
	require.Equal(t, a, b)
	raw, err = p.KeyDocument(doc(t, `{}`), false)
	require.NoError(t, err)
	require.Equal(t, doc(t, `{"a.b":null,"h":null}`), raw)
	_, err = p.KeyDocument(doc(t, `{"h":[]}`), false)
	require.Equal(t, ErrArray, err)
}

func TestFormat(t *testing.T) {
	for _, tt := range []struct{ doc, want string }{
		{`{"x":50}`, `{ x: 50 }`},
		{`{}`, `{}`},
		{`{"x":{"$minKey":1},"y":{"$maxKey":1}}`, `{ x: MinKey, y: MaxKey }`},
		{`{"a":{"$oid":"6b0cf0c82776e3bc878a6ec6"}}`, `{ a: ObjectId('6b0cf0c82776e3bc878a6ec6') }`},
		{`{"a":{"$date":{"$numberLong":"4294967299"}}}`, `{ a: new Date(4294967299) }`},
		{`{"a":{"$timestamp":{"t":1796010185,"i":1282}}}`, `{ a: Timestamp(1796010185, 1282) }`},
		{`{"a":{"$binary":{"base64":"BBdwvrepQpmLdWu6l1e2mQ==","subType":"04"}}}`, `{ a: UUID("041770be-b7a9-4299-8b75-6bba9757b699") }`},
		{`{"a":{"$binary":{"base64":"AAD/","subType":"00"}}}`, `{ a: BinData(0, 0000FF) }`},
		{`{"a":[1,"b",[]],"c":{"d":null}}`, `{ a: [ 1, "b", [] ], c: { d: null } }`},
		{`{"a":1.0,"b":1.5,"c":1e300,"d":{"$numberLong":"-7"},"e":true}`, `{ a: 1.0, b: 1.5, c: 1e+300.0, d: -7, e: true }`},
		{`{"a":{"$numberDecimal":"1.50"}}`, `{ a: 1.50 }`},
		{`{"a":{"$regularExpression":{"pattern":"^a","options":"i"}}}`, `{ a: /^a/i }`},
		{`{"a":{"$undefined":true},"s":{"$symbol":"q"},"j":{"$code":"f()"}}`, `{ a: undefined, s: "q", j: f() }`},
	} {
		require.Equal(t, tt.want, Format(doc(t, tt.doc)))
	}
	require.Equal(t, "{}", Format(nil))
	long, err := bson.Marshal(bson.D{{Key: "a", Value: string(bytes.Repeat([]byte("x"), 200))}})
	require.NoError(t, err)
	require.Equal(t, `{ a: "`+string(bytes.Repeat([]byte("x"), 150))+`..." }`, Format(long))
}

func TestHashedSplitPoints(t *testing.T) {
	const i6 = int64(3074457345618258602)
	require.Empty(t, HashedSplitPoints(0))
	require.Empty(t, HashedSplitPoints(1))
	require.Equal(t, []int64{0}, HashedSplitPoints(2))
	require.Equal(t, []int64{-3074457345618258602, 3074457345618258602}, HashedSplitPoints(3))
	require.Equal(t, []int64{-4611686018427387902, 0, 4611686018427387902}, HashedSplitPoints(4))
	require.Equal(t, []int64{-2 * i6, -i6, 0, i6, 2 * i6}, HashedSplitPoints(6))
	for n := 2; n < 200; n++ {
		points := HashedSplitPoints(n)
		require.Len(t, points, n-1)
		require.IsIncreasing(t, append([]int64{-1 << 63}, points...))
	}
	require.IsIncreasing(t, HashedSplitPoints(1_000_000))
}

func TestInitialChunks(t *testing.T) {
	at := catalog.Timestamp(7<<32 | 1)
	owners := func(chunks []catalog.Chunk) (ids []string) {
		for _, c := range chunks {
			ids = append(ids, c.Shard)
		}
		return ids
	}
	p := pattern(t, `{"_id":"hashed"}`)
	chunks := InitialChunks(p, 4, []string{"s1", "s0"}, "s1", at)
	require.Equal(t, []string{"s0", "s0", "s1", "s1"}, owners(chunks))
	require.Equal(t, doc(t, `{"_id":{"$numberLong":"-4611686018427387902"}}`), chunks[1].Min)
	require.Equal(t, catalog.Timestamp(1<<32|3), chunks[3].LastMod)
	require.Equal(t, []catalog.Owner{{Shard: "s0", ValidAfter: at}}, chunks[0].History)
	table(t, p, chunks)

	require.Equal(t, []string{"c", "b"}, owners(InitialChunks(p, 2, []string{"a", "b", "c"}, "c", at)))
	require.Equal(t, []string{"a", "b", "a"}, owners(InitialChunks(p, 3, []string{"a", "b"}, "b", at)))
	require.Equal(t, []string{"c"}, owners(InitialChunks(p, 1, []string{"a", "b", "c"}, "c", at)))

	p = pattern(t, `{"h":"hashed","x":1}`)
	chunks = InitialChunks(p, 2, []string{"a", "b"}, "a", at)
	require.Equal(t, doc(t, `{"h":{"$numberLong":"0"},"x":{"$minKey":1}}`), chunks[1].Min)
	table(t, p, chunks)

	for _, key := range []string{`{"x":1}`, `{"x":1,"h":"hashed"}`} {
		p = pattern(t, key)
		chunks = InitialChunks(p, 4, []string{"a", "b"}, "b", at)
		require.Equal(t, []string{"b"}, owners(chunks))
		table(t, p, chunks)
	}
	single := SingleChunk("z", at)
	require.Equal(t, doc(t, `{"_id":{"$minKey":1}}`), single[0].Min)
	require.Equal(t, []string{"z"}, table(t, nil, single).Shards())
}
