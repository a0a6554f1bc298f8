package router

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

func TestSortOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, []bool{false, true, false, true}, sortOrder(doc(t, e("a", int32(1)), e("b", -1.0), e("c", int64(1)), e("d", int64(-1)))))
	require.Equal(t, []bool{true}, sortOrder(doc(t, e("score", bson.D{e("$meta", "textScore")}))))
	require.Empty(t, sortOrder(doc(t)))
	require.Empty(t, sortOrder(nil))
	require.Nil(t, sortOrder(doc(t, e("$natural", int32(-1)))))
}

// TestLessGolden compares by sort key in the order of a mongod's own sort.
func TestLessGolden(t *testing.T) {
	f, err := os.Open("../catalog/shardkey/testdata/bson_order.jsonl")
	require.NoError(t, err)
	defer f.Close()
	type value struct {
		rank int
		doc  wire.Doc
		json string
	}
	var all []value
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var l struct {
			Rank int    `json:"rank"`
			BSON string `json:"bson"`
			JSON string `json:"json"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &l))
		b, err := hex.DecodeString(l.BSON)
		require.NoError(t, err)
		v := bson.Raw(b).Lookup("v")
		all = append(all, value{l.Rank, doc(t, e("x", int32(len(all))), e("$sortKey", bson.A{int32(7), v})), l.JSON})
	}
	require.NotEmpty(t, all)
	for i := range all {
		for j := range all {
			a, b := &all[i], &all[j]
			require.Equal(t, a.rank < b.rank, less(a.doc, b.doc, []bool{false, false}), "%s, %s", a.json, b.json)
			require.Equal(t, a.rank > b.rank, less(a.doc, b.doc, []bool{true, true}), "%s, %s", a.json, b.json)
		}
	}
}

func TestLessByFields(t *testing.T) {
	t.Parallel()
	key := func(values ...any) wire.Doc { return doc(t, e("$sortKey", bson.A(values))) }
	for _, c := range []struct {
		a, b  wire.Doc
		order []bool
		want  bool
	}{
		{key(int32(1), "b"), key(int32(1), "c"), []bool{false, false}, true},
		{key(int32(1), "b"), key(int32(1), "c"), []bool{false, true}, false},
		{key(int32(1), "c"), key(int32(1), "b"), []bool{false, true}, true},
		{key(int32(2), "a"), key(int32(1), "z"), []bool{false, false}, false},
		{key(int32(2), "a"), key(int32(1), "z"), []bool{true, false}, true},
		{key(int32(1)), key(1.0), []bool{false}, false},
		{key(nil), key(int32(0)), []bool{false}, true},
	} {
		require.Equal(t, c.want, less(c.a, c.b, c.order), "%v %v %v", c.a, c.b, c.order)
	}
}

func TestAppendArrayDocTakesTheSortKeyOut(t *testing.T) {
	t.Parallel()
	key := e("$sortKey", bson.A{int32(1), "x"})
	a, b, in := e("a", int32(1)), e("b", "two"), e("in", bson.D{e("$sortKey", "the user's own")})
	for _, c := range []struct{ doc, want []bson.E }{
		{[]bson.E{a, b, key}, []bson.E{a, b}},
		{[]bson.E{key, a, b}, []bson.E{a, b}},
		{[]bson.E{a, key, in}, []bson.E{a, in}},
		{[]bson.E{key}, nil},
		{[]bson.E{a, in}, []bson.E{a, in}},
	} {
		// As it lies in a batch: between others, in a larger buffer.
		batch := append(make([]byte, 0, 4096), doc(t, e("0", bson.D{}), e("1", append(bson.D{}, c.doc...)), e("2", bson.D{e("$sortKey", 1)}))...)
		el, ok := wire.Doc(batch).Lookup("1")
		require.True(t, ok)
		for i, name := range map[int]string{0: "0", 9: "9", 10: "10", 12345: "12345"} {
			at, out := wire.AppendDocStart([]byte("before"))
			out = appendArrayDoc(out, i, wire.Doc(el.Value), true)
			out = wire.AppendDocEnd(out, at)
			require.Equal(t, doc(t, e(name, append(bson.D{}, c.want...))), wire.Doc(out[6:]))
		}
		// Not sorted: as it is.
		at, out := wire.AppendDocStart(nil)
		out = wire.AppendDocEnd(appendArrayDoc(out, 3, wire.Doc(el.Value), false), at)
		require.Equal(t, doc(t, e("3", append(bson.D{}, c.doc...))), wire.Doc(out))
	}
}

// merged runs nextBatch over parts that are already fetched.
func merged(t *testing.T, c *Cursor, name string, n int64) (docs []int32, id int64, done bool) {
	t.Helper()
	var reply wire.Reply
	reply.Begin(nil)
	op := &Op{Reply: &reply, Buffers: new(wire.Buffers)}
	done, err := (&Router{}).nextBatch(t.Context(), op, c, name, n)
	require.NoError(t, err)
	reply.OK()
	body, err := wire.ReplyBody(reply.Finish(1, 1, 0, nil))
	require.NoError(t, err)
	var d struct {
		Cursor struct {
			FirstBatch, NextBatch []bson.Raw
			ID                    int64
			NS                    string
		}
	}
	require.NoError(t, bson.Unmarshal(body, &d))
	require.Equal(t, c.NS, d.Cursor.NS)
	for _, doc := range append(d.Cursor.FirstBatch, d.Cursor.NextBatch...) {
		_, err := doc.LookupErr("$sortKey")
		require.Error(t, err)
		docs = append(docs, doc.Lookup("x").Int32())
	}
	return docs, d.Cursor.ID, done
}

// partOf is a shard's part with everything fetched.
func partOf(t *testing.T, xs ...int32) *part {
	t.Helper()
	list := bson.A{}
	for _, x := range xs {
		list = append(list, bson.D{e("x", x), e("$sortKey", bson.A{x})})
	}
	el, _ := doc(t, e("a", list)).First()
	return &part{rest: el.Value[4 : len(el.Value)-1]}
}

func TestNextBatchSorted(t *testing.T) {
	t.Parallel()
	parts := func() []*part { return []*part{partOf(t, 1, 4, 9), partOf(t), partOf(t, 2, 3, 10), partOf(t, 5)} }
	c := &Cursor{ID: 77, NS: "d.c", order: []bool{false}, limit: -1, parts: parts()}
	docs, id, done := merged(t, c, "firstBatch", 3)
	require.Equal(t, []int32{1, 2, 3}, docs)
	require.Equal(t, int64(77), id)
	require.False(t, done)
	docs, id, done = merged(t, c, "nextBatch", -1)
	require.Equal(t, []int32{4, 5, 9, 10}, docs)
	require.Zero(t, id)
	require.True(t, done)

	c = &Cursor{ID: 77, NS: "d.c", order: []bool{false}, skip: 2, limit: 3, parts: parts()}
	docs, id, _ = merged(t, c, "firstBatch", 0)
	require.Empty(t, docs)
	require.Equal(t, int64(77), id, "a batch of none leaves the cursor open")
	docs, _, done = merged(t, c, "nextBatch", 2)
	require.Equal(t, []int32{3, 4}, docs)
	require.False(t, done)
	docs, id, done = merged(t, c, "nextBatch", 2)
	require.Equal(t, []int32{5}, docs, "the limit")
	require.Zero(t, id)
	require.True(t, done)
}

func TestNextBatchIsBounded(t *testing.T) {
	t.Parallel()
	big := make([]byte, 6<<20)
	one := func(x int32) *part {
		el, _ := doc(t, e("a", bson.A{bson.D{e("x", x), e("b", big)}})).First()
		return &part{rest: el.Value[4 : len(el.Value)-1]}
	}
	c := &Cursor{ID: 1, NS: "d.c", limit: -1, parts: []*part{one(1), one(2), one(3)}}
	docs, _, done := merged(t, c, "firstBatch", 100)
	require.Equal(t, []int32{1, 2}, docs)
	require.False(t, done)
	docs, _, done = merged(t, c, "nextBatch", -1)
	require.Equal(t, []int32{3}, docs)
	require.True(t, done)
}

// TestCursorKilledDuringItsFirstBatch: whoever uses it closes it.
func TestCursorKilledDuringItsFirstBatch(t *testing.T) {
	t.Parallel()
	asked, answer, killed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r := overShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "getMore":
			close(asked)
			<-answer
			return bson.D{e("cursor", bson.D{e("nextBatch", bson.A{bson.D{e("x", int32(1))}}), e("id", int64(5)), e("ns", "d.a")}), e("ok", 1.0)}
		case "killCursors":
			close(killed)
		}
		return nil
	})
	var reply wire.Reply
	reply.Begin(nil)
	op := &Op{Reply: &reply, Buffers: new(wire.Buffers), Session: Session{ID: UUID{1}}}
	c := &Cursor{NS: "d.a", Session: op.Session, TxnNumber: -1, limit: -1, buffers: op.Buffers, parts: []*part{{shard: "s", id: 5, coll: "a"}}}
	done := make(chan error)
	go func() { done <- r.firstBatch(t.Context(), op, c, 1) }()
	<-asked
	require.Empty(t, r.cursors.removeSession(UUID{1}), "it is in use")
	close(answer)
	require.NoError(t, <-done)
	<-killed
	require.Zero(t, r.OpenCursors())
}

// TestSnapshotOverShards: one time for all, and not two for one.
func TestSnapshotOverShards(t *testing.T) {
	t.Parallel()
	for _, after := range []uint64{0, 5<<32 | 1, 9<<32 | 1} {
		r := Router{Clock: new(Clock)}
		r.Clock.Advance(7 << 32)
		level := bson.D{e("level", "snapshot")}
		if after != 0 {
			level = append(level, e("afterClusterTime", bson.Timestamp{T: uint32(after >> 32), I: uint32(after)}))
		}
		op := &Op{Cmd: &wire.Command{}, ReadTime: after}
		require.NoError(t, op.Cmd.Parse(doc(t, e("find", "a"), e("readConcern", level), e("$db", "d"))))
		var p patch
		want := max(after, 7<<32)
		require.Equal(t, want, r.oneTime(op, &p))
		require.Equal(t, want, op.ReadTime)
		var got bson.D
		require.NoError(t, bson.Unmarshal(wire.AppendDocEnd(append(make([]byte, 4), p.extra...), 0), &got))
		require.Equal(t, bson.D{e("readConcern", bson.D{e("level", "snapshot"), e("atClusterTime", bson.Timestamp{T: uint32(want >> 32), I: uint32(want)})})}, got)
	}
}
