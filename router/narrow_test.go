package router

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
)

// movingEntry is d.a, sharded by k over s and t, of which t has a copy of what s owns.
func movingEntry(t *testing.T) *Entry {
	t.Helper()
	pattern, err := shardkey.ParsePattern(bson.Raw(doc(t, e("k", "hashed"))))
	require.NoError(t, err)
	c := row("d.a", "s")
	c.Kind, c.Key = catalog.KindSharded, pattern.Raw()
	c.Chunks = shardkey.InitialChunks(pattern, 2, []string{"s", "t"}, "s", 1)
	entry, err := newEntry(&catalog.CollectionDelta{CollectionChunks: c}, nil)
	require.NoError(t, err)
	k := &c.Chunks[slices.IndexFunc(c.Chunks, func(k catalog.Chunk) bool { return k.Shard == "s" })]
	entry.unowned = []catalog.Movement{{
		ID: uuid.New(), NS: c.NS, From: "s", To: "t", State: catalog.MovementCopying,
		Range: &catalog.Range{Min: k.Min, Max: k.Max, MinKey: k.MinKey, MaxKey: k.MaxKey},
	}}
	return entry
}

// TestNarrowStages: the condition stands first, but in the stages that must be first; reports
// and change streams have none.
func TestNarrowStages(t *testing.T) {
	t.Parallel()
	cond, err := movingEntry(t).leaveOut("t")
	require.NoError(t, err)
	match := bson.D{}
	require.NoError(t, bson.Unmarshal(cond.Match(), &match))
	stage := func(name string, spec any) bson.D { return bson.D{e(name, spec)} }
	with := func(d ...bson.E) bson.D { return append(d, match...) }
	for _, tt := range []struct {
		pipeline string
		want     bson.A
	}{
		{`[]`, bson.A{stage("$match", match)}},
		{`[{"$count": "n"}]`, bson.A{stage("$match", match), stage("$count", "n")}},
		{`[{"$sample": {"size": 3}}]`, bson.A{stage("$match", match), stage("$sample", bson.D{e("size", int32(3))})}},
		{`[{"$match": {"a": 1}}, {"$match": {"b": 1}}]`, bson.A{stage("$match", with(e("a", int32(1)))), stage("$match", bson.D{e("b", int32(1))})}},
		{`[{"$match": 1}]`, bson.A{stage("$match", match), stage("$match", int32(1))}},
		{`[{"$geoNear": {"key": "p"}}]`, bson.A{stage("$geoNear", bson.D{e("key", "p"), e("query", match)})}},
		{`[{"$geoNear": {"query": {"a": 1}, "key": "p"}}]`, bson.A{stage("$geoNear", bson.D{e("key", "p"), e("query", with(e("a", int32(1))))})}},
		{`[{"$geoNear": {"query": 1}}]`, bson.A{stage("$geoNear", bson.D{e("query", int32(1))})}},
		{`[{"$changeStream": {}}]`, bson.A{stage("$changeStream", bson.D{})}},
		{`[{"$collStats": {"count": {}}}]`, bson.A{stage("$collStats", bson.D{e("count", bson.D{})})}},
		{`[{"$indexStats": {}}]`, bson.A{stage("$indexStats", bson.D{})}},
	} {
		given := pipelineOf(t, tt.pipeline)
		var got bson.D
		require.NoError(t, bson.Unmarshal(bsoncore.BuildDocument(nil, appendStages(nil, narrowStages(given, cond))), &got))
		require.Equal(t, bson.D{e("pipeline", tt.want)}, got, tt.pipeline)
		require.Equal(t, given, narrowStages(given, nil))
	}
}

// TestNarrowed: only the shard that has more than it owns gets a condition, and only for what
// does not name one whole key.
func TestNarrowed(t *testing.T) {
	t.Parallel()
	entry := movingEntry(t)
	filter := doc(t, e("x", int32(1)), e("$expr", true))
	for shard, expressions := range map[string]int{"s": 1, "t": 2} {
		got, err := entry.narrow(filter, shard)
		require.NoError(t, err)
		n := 0
		it := wire.Doc(got).Iter()
		for el := (wire.Elem{}); it.Next(&el); {
			if string(el.Name) == "$expr" {
				n++
			}
		}
		require.NoError(t, it.Err())
		require.Equal(t, expressions, n, shard)
	}
	p := &patch{skip: []string{"limit"}}
	s := &scope{entry: entry, shards: []string{"s", "t"}}
	own, err := s.narrow(p, "filter", filter)
	require.NoError(t, err)
	require.Same(t, p, own.at(0))
	require.Equal(t, []string{"limit", "filter"}, own.at(1).skip)
	require.Equal(t, []string{"limit"}, p.skip)
	s.exact = true
	own, err = s.narrow(p, "filter", filter)
	require.NoError(t, err)
	require.Same(t, p, own.at(1))

	cond, err := entry.leaveOut("t")
	require.NoError(t, err)
	for _, tt := range []struct {
		kind  string
		stmt  statement
		wants bool
	}{
		{"update", statement{doc: doc(t, e("q", bson.D{}))}, true},
		{"delete", statement{doc: doc(t, e("q", bson.D{}))}, true},
		{"update", statement{doc: doc(t, e("q", bson.D{}), e("upsert", true))}, false},
		{"update", statement{doc: doc(t, e("q", bson.D{})), aim: aim{exact: true}}, false},
		{"insert", statement{doc: doc(t, e("q", bson.D{}))}, false},
	} {
		b := &batch{kind: kindOf([]byte(tt.kind)), entry: entry, stmts: []statement{tt.stmt}}
		whole := b.appendStatements(wire.AppendMsgStart(nil, 1, 0, 0), 0, &child{index: []int{0}})
		less := b.appendStatements(wire.AppendMsgStart(nil, 1, 0, 0), 0, &child{index: []int{0}, cond: cond})
		require.Equal(t, tt.wants, len(less) > len(whole), "%+v", tt)
	}
}

// TestDuplicateFilter: what met a blocker finds it by the values that the shard names, or by
// its own where these are a collation's.
func TestDuplicateFilter(t *testing.T) {
	t.Parallel()
	elems := func(d ...bson.E) []byte { b := doc(t, d...); return b[4 : len(b)-1] }
	_, is := asDuplicate(elems(e("code", int32(121)), e("keyPattern", bson.D{e("_id", int32(1))})))
	require.False(t, is)
	_, is = asDuplicate(elems(e("code", int32(11000))))
	require.False(t, is)
	plain, is := asDuplicate(elems(e("code", int32(11000)), e("keyPattern", bson.D{e("_id", int32(1))}), e("keyValue", bson.D{e("_id", bson.D{e("x", "y")})})))
	require.True(t, is)
	folded, is := asDuplicate(elems(e("code", int32(11000)), e("keyPattern", bson.D{e("a.b", int32(1)), e("c", int32(1))}),
		e("keyValue", bson.D{e("a.b", "2901"), e("c", nil)}), e("collation", bson.D{e("locale", "en")})))
	require.True(t, is)
	for _, tt := range []struct {
		d    duplicate
		w    newcomer
		want bson.D // nil: nothing is known
	}{
		{plain, newcomer{}, bson.D{e("_id", bson.D{e("$eq", bson.D{e("x", "y")})})}},
		{folded, newcomer{doc: doc(t, e("a", bson.D{e("b", "x")})), whole: true}, bson.D{e("a.b", bson.D{e("$eq", "x")}), e("c", bson.D{e("$eq", nil)})}},
		{folded, newcomer{doc: doc(t, e("a", bson.D{e("b", "x")}))}, nil},
		{folded, newcomer{doc: doc(t, e("a", bson.A{})), whole: true}, nil},
	} {
		got := tt.d.filter(&tt.w)
		if tt.want == nil {
			require.Nil(t, got)
			continue
		}
		var d bson.D
		require.NoError(t, bson.Unmarshal(got, &d))
		require.Equal(t, tt.want, d)
	}
}

// TestMarks: documents marked as another's are passed over, before skip, and the mark is not
// shown.
func TestMarks(t *testing.T) {
	t.Parallel()
	require.True(t, positional(doc(t, e("a", int32(1)), e("b.c.$", int32(1)))))
	require.False(t, positional(doc(t, e("a", int32(1)), e("$b", int32(1)))))
	require.False(t, positional(nil))
	c := &Cursor{marks: true}
	require.True(t, c.passOver(doc(t, e("a", int32(1)), e(markField, false))))
	require.False(t, c.passOver(doc(t, e("a", int32(1)), e(markField, true))))
	require.False(t, c.passOver(doc(t, e("a", int32(1)))))
	shown := c.appendUnmarked(nil, 0, doc(t, e("a", int32(1)), e(markField, true), e("b", int32(2))))
	require.Equal(t, appendArrayDoc(nil, 0, doc(t, e("a", int32(1)), e("b", int32(2))), false), shown)
	require.False(t, (&Cursor{}).passOver(doc(t, e(markField, false))), "a client's own field")
}
