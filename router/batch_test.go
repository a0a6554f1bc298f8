package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// stmts reads statements from words: "A" for shard A, "A+B" for two, "!" for one that
// cannot be targeted, "A*9" for one of 9 MiB.
func stmts(words string) []statement {
	var out []statement
	for _, w := range strings.Fields(words) {
		w, big, _ := strings.Cut(w, "*")
		st := statement{doc: make([]byte, 10)}
		if big != "" {
			var mib int
			_, _ = fmt.Sscan(big, &mib)
			st.doc = make([]byte, mib<<20)
		}
		if w == "!" {
			st.err = mongoerr.New(61, "no key")
		} else {
			st.shards = strings.Split(w, "+")
		}
		out = append(out, st)
	}
	return out
}

// rounds prints all rounds of a batch.
func rounds(t *testing.T, list []statement, ordered bool) string {
	t.Helper()
	var out []string
	for from := 0; from < len(list); {
		round, to := nextRound(list, from, ordered)
		require.Greater(t, to, from, "every round takes a statement")
		var parts []string
		for _, c := range round {
			parts = append(parts, strings.ReplaceAll(fmt.Sprintf("%s%v", c.shard, c.index), " ", ","))
		}
		out = append(out, strings.Join(parts, " "))
		from = to
	}
	return strings.Join(out, " | ")
}

func TestRounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stmts, ordered, unordered string }{
		{"A", "A[0]", "A[0]"},
		{"A A A", "A[0,1,2]", "A[0,1,2]"},
		{"A B A B", "A[0] | B[1] | A[2] | B[3]", "A[0,2] B[1,3]"},
		{"A A B B A", "A[0,1] | B[2,3] | A[4]", "A[0,1,4] B[2,3]"},
		{"A A+B A", "A[0] | A[1] B[1] | A[2]", "A[0,1,2] B[1]"},
		{"A+B A+B", "A[0] B[0] | A[1] B[1]", "A[0,1] B[0,1]"},
		{"A ! A", "A[0] |  | A[2]", "A[0,2]"},
		{"! !", " | ", ""},
		{"! A A", " | A[1,2]", "A[1,2]"},
		{"A*9 A*9 A", "A[0] | A[1,2]", "A[0] | A[1,2]"},
		{"A*9 B*9 A*9", "A[0] | B[1] | A[2]", "A[0] B[1] | A[2]"},
		{"A*16 A", "A[0] | A[1]", "A[0] | A[1]"},
	} {
		require.Equal(t, c.ordered, rounds(t, stmts(c.stmts), true), "ordered %s", c.stmts)
		require.Equal(t, c.unordered, rounds(t, stmts(c.stmts), false), "unordered %s", c.stmts)
	}
}

func TestStmtIDsOfAPart(t *testing.T) {
	t.Parallel()
	ids := func(op *Op, index ...int) any {
		b := stmtIDs(op, index)
		if b == nil {
			return nil
		}
		at, d := wire.AppendDocStart(nil)
		var out struct {
			IDs []int32 `bson:"stmtIds"`
		}
		require.NoError(t, bson.Unmarshal(wire.AppendDocEnd(append(d, b...), at), &out))
		return out.IDs
	}
	none := writeOp(t)
	require.Nil(t, ids(none, 0, 1), "no transaction number: nothing to recognise")

	plain := writeOp(t)
	plain.Txn.Present = true
	require.Equal(t, []int32{1, 3}, ids(plain, 1, 3), "the places in the client's batch")

	first := writeOp(t, e("stmtId", int32(10)))
	first.Txn.Present = true
	require.NoError(t, readStmtIDs(first, 4))
	require.Equal(t, []int32{11, 13}, ids(first, 1, 3))

	list := writeOp(t, e("stmtIds", bson.A{int32(7), int32(5), int32(9), int32(2)}))
	list.Txn.Present = true
	require.NoError(t, readStmtIDs(list, 4))
	require.Equal(t, []int32{5, 2}, ids(list, 1, 3))
}

func TestAppendStatements(t *testing.T) {
	t.Parallel()
	list := []statement{{doc: doc(t, e("_id", int32(0)))}, {doc: doc(t, e("_id", int32(1)))}, {doc: doc(t, e("_id", int32(2)))}}
	msg := wire.AppendMsgStart([]byte("before"), 1, 0, 0)
	msg = append(msg, doc(t, e("insert", "c"))...)
	b := &batch{kind: kindOf([]byte("insert")), stmts: list}
	msg = b.appendStatements(msg, len("before"), &child{index: []int{0, 2}})
	var m wire.Msg
	require.NoError(t, wire.ParseMsg(msg[len("before"):], &m))
	require.Equal(t, len(msg)-len("before"), int(m.Length))
	docs, ok := m.Sequence("documents")
	require.True(t, ok)
	require.Equal(t, append(append([]byte{}, list[0].doc...), list[2].doc...), docs)
}

// shardReplied is a reply to one part of a batch.
func shardReplied(t *testing.T, shard string, elems ...bson.E) *sent {
	t.Helper()
	return &sent{shard: shard, body: doc(t, elems...)}
}

// replied is the client's reply to a batch.
func replied(t *testing.T, kind writeKind, ordered bool, w *writeResult) bson.D {
	t.Helper()
	var reply wire.Reply
	reply.Begin(nil)
	(&Router{}).replyWrite(&Op{Reply: &reply}, kind, ordered, w)
	body, err := wire.ReplyBody(reply.Finish(1, 1, 0, nil))
	require.NoError(t, err)
	var d bson.D
	require.NoError(t, bson.Unmarshal(body, &d))
	return d
}

func TestMergeReplies(t *testing.T) {
	t.Parallel()
	var w writeResult
	dup := bson.D{e("index", int32(1)), e("code", int32(11000)), e("errmsg", "dup"), e("keyValue", bson.D{e("x", int32(1))})}
	require.NoError(t, w.add(shardReplied(t, "B", e("n", int32(1)), e("nModified", int32(1)),
		e("writeErrors", bson.A{dup}), e("retriedStmtIds", bson.A{int32(4)}), e("ok", 1.0)), []int{4, 5}))
	require.NoError(t, w.add(shardReplied(t, "A", e("n", int32(3)), e("nModified", int32(2)),
		e("upserted", bson.A{bson.D{e("index", int32(2)), e("_id", "new")}}), e("ok", 1.0)), []int{0, 1, 3}))
	w.addError(2, mongoerr.New(61, "no key"))
	require.Equal(t, bson.D{
		e("n", int32(4)), e("nModified", int32(3)),
		e("upserted", bson.A{bson.D{e("index", int32(3)), e("_id", "new")}}),
		e("writeErrors", bson.A{
			bson.D{e("index", int32(2)), e("code", int32(61)), e("errmsg", "no key")},
			bson.D{e("index", int32(5)), e("code", int32(11000)), e("errmsg", "dup"), e("keyValue", bson.D{e("x", int32(1))})},
		}),
		e("retriedStmtIds", bson.A{int32(4)}),
		e("ok", 1.0),
	}, replied(t, writeKind{update: true}, false, &w))
}

func TestMergeOneErrorPerStatement(t *testing.T) {
	t.Parallel()
	list := mergeSame([]indexed{{0, []byte("a")}, {0, []byte("b")}, {2, []byte("c")}, {3, []byte("d")}, {3, []byte("e")}, {3, []byte("f")}})
	require.Equal(t, []indexed{{0, []byte("a")}, {2, []byte("c")}, {3, []byte("d")}}, list)
	require.Empty(t, mergeSame(nil))
}

func TestMergeWriteConcernErrors(t *testing.T) {
	t.Parallel()
	wc := func(shard string, code int32, text string) wcError {
		return wcError{shard: shard, doc: doc(t, e("code", code), e("errmsg", text))}
	}
	read := func(list ...wcError) (d bson.D) {
		require.NoError(t, bson.Unmarshal(mergeWCErrors(list), &d))
		return d
	}
	require.Equal(t, bson.D{e("code", int32(100)), e("codeName", mongoerr.Code(100).String()), e("errmsg", "too few at A")}, read(wc("A", 100, "too few")))
	require.Equal(t, bson.D{
		e("code", int32(64)), e("codeName", "WriteConcernFailed"),
		e("errmsg", "multiple errors reported : timeout at A; too few at B"),
	}, read(wc("A", 64, "timeout"), wc("B", 100, "too few")))

	info := bson.D{e("writeConcern", bson.D{e("w", int32(9))})}
	require.Equal(t, e("errInfo", info), read(wcError{shard: "A", doc: doc(t, e("code", int32(64)), e("errInfo", info))})[3])

	var w writeResult
	w.wcErrors = []wcError{wc("A", 64, "timeout")}
	d := replied(t, writeKind{}, true, &w)
	require.Equal(t, "writeConcernError", d[1].Key)
	w.addError(0, mongoerr.New(2, "x"))
	for _, el := range replied(t, writeKind{}, true, &w) {
		require.NotEqual(t, "writeConcernError", el.Key, "an ordered batch that failed shows none")
	}
}

func TestMergeFindsAnotherCollection(t *testing.T) {
	t.Parallel()
	var w writeResult
	err := w.add(shardReplied(t, "A", e("n", int32(0)), e("writeErrors", bson.A{bson.D{e("index", int32(0)), e("code", int32(361)), e("errmsg", "x")}})), []int{0})
	requireCode(t, 361, err)
	require.Error(t, w.add(&sent{body: wire.Doc{1, 2, 3}}, nil))
}

func TestStored(t *testing.T) {
	t.Parallel()
	r := &Router{}
	zero := bson.Timestamp{}
	whole := doc(t, e("_id", int32(1)), e("a", bson.Timestamp{T: 1}), e("b", bson.D{e("t", zero)}))
	stored := func(d wire.Doc) []byte {
		out, err := r.stored(d)
		require.NoError(t, err)
		return out
	}
	require.Equal(t, []byte(whole), stored(whole))
	require.Same(t, &whole[0], &stored(whole)[0], "not copied")
	broken := doc(t, e("a", "xyz"), e("b", int32(1)))
	broken[7] = 99 // the string's length
	_, err := r.stored(broken)
	require.ErrorIs(t, err, wire.ErrMalformed)

	var got bson.D
	require.NoError(t, bson.Unmarshal(stored(doc(t, e("a", int32(1)), e("b", "x"))), &got))
	require.Len(t, got, 3)
	require.Equal(t, "_id", got[0].Key)
	require.IsType(t, bson.ObjectID{}, got[0].Value)
	require.Equal(t, bson.D{e("a", int32(1)), e("b", "x")}, got[1:])

	require.NoError(t, bson.Unmarshal(stored(doc(t, e("t1", zero), e("_id", zero), e("in", bson.D{e("t", zero)}), e("t2", zero), e("list", bson.A{zero}))), &got))
	require.Len(t, got, 5, "it has an _id")
	now := func(i int) bson.Timestamp { return got[i].Value.(bson.Timestamp) }
	require.NotZero(t, now(0).T)
	require.Zero(t, now(1).T, "an _id is kept as it is")
	require.Equal(t, bson.D{e("t", zero)}, got[2].Value, "only the top level is filled")
	require.True(t, now(3).After(now(0)), "each is another")
	require.Equal(t, bson.A{zero}, got[4].Value)
}

func TestStatements(t *testing.T) {
	t.Parallel()
	one, two := doc(t, e("_id", int32(1))), doc(t, e("_id", int32(2)))
	op := writeOp(t, e("documents", bson.A{bson.Raw(one), bson.Raw(two)}))
	docs, n, err := statements(op, "documents")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, append(append([]byte{}, one...), two...), docs)

	for code, docs := range map[mongoerr.Code]any{14: "x", 16: bson.A{}} {
		_, _, err = statements(writeOp(t, e("documents", docs)), "documents")
		requireCode(t, code, err)
	}
	_, _, err = statements(writeOp(t, e("documents", bson.A{bson.D{}, int32(5)})), "documents")
	requireCode(t, 14, err)
	_, _, err = statements(writeOp(t), "documents")
	require.Error(t, err)

	op = writeOp(t, e("documents", bson.A{bson.Raw(one)}))
	op.Msg = &wire.Msg{NSeqs: 1}
	op.Msg.Seqs[0] = wire.Sequence{Name: []byte("documents"), Docs: two}
	_, _, err = statements(op, "documents")
	requireCode(t, 40433, err)
}
