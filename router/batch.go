package router

import (
	"context"
	"sort"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// batch is a client's write command with its statements targeted.
type batch struct {
	kind  writeKind
	entry *Entry
	stmts []statement
}

// child is what one shard gets of a client's batch: the client's statements by
// index.
type child struct {
	shard string
	index []int
	bytes int
}

// childLimit bounds a child's statements in bytes.
const childLimit = 16 << 20

// writeResult gathers the answers to the children of one batch.
type writeResult struct {
	n, modified int64
	upserted    []indexed
	errors      []indexed
	wcErrors    []wcError
	retried     []int64
}

type indexed struct {
	index int
	elems []byte // the document's elements without "index"
}

type wcError struct {
	shard string
	doc   wire.Doc
}

// writeBatches splits a batch over shards. Ordered batches go run by run, each run
// being what follows one another to the same shard, and stop at the first error;
// unordered ones go to all shards at once (MONGOS.md §2.8).
func (r *Router) writeBatches(ctx context.Context, op *Op, b *batch) error {
	stmts := b.stmts
	ordered := true
	if e, ok := op.Lookup("ordered"); ok {
		ordered, _ = e.Bool()
	}
	if err := r.joinAll(op, stmts); err != nil {
		return err
	}
	var res writeResult
	for from := 0; from < len(stmts); {
		round, to := nextRound(stmts, from, ordered)
		for i := from; i < to; i++ {
			if stmts[i].err != nil {
				res.addError(i, stmts[i].err)
			}
		}
		if err := r.writeRound(ctx, op, b, round, &res); err != nil {
			if mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch && (from > 0 || res.n > 0) {
				return mongoerr.Wrap(mongoerr.ConflictingOperationInProgress, err, "the collection changed during the batch")
			}
			return err
		}
		from = to
		if ordered && len(res.errors) > 0 {
			break
		}
	}
	r.replyWrite(op, b.kind, ordered, &res)
	return nil
}

// nextRound groups statements from index from on: for an ordered batch the run to
// one shard, or one statement for several; else all that fit.
func nextRound(stmts []statement, from int, ordered bool) (round []child, to int) {
	byShard := map[string]int{}
	for to = from; to < len(stmts); to++ {
		st := &stmts[to]
		if ordered && to > from {
			prev := &stmts[to-1]
			if st.err != nil || prev.err != nil || len(st.shards) != 1 || len(prev.shards) != 1 || st.shards[0] != prev.shards[0] {
				return round, to
			}
		}
		for _, shard := range st.shards {
			if i, ok := byShard[shard]; ok && round[i].bytes+len(st.doc) > childLimit {
				return round, to
			}
		}
		for _, shard := range st.shards {
			i, ok := byShard[shard]
			if !ok {
				i = len(round)
				byShard[shard] = i
				round = append(round, child{shard: shard})
			}
			round[i].index = append(round[i].index, to)
			round[i].bytes += len(st.doc)
		}
	}
	return round, to
}

func (r *Router) writeRound(ctx context.Context, op *Op, b *batch, round []child, res *writeResult) error {
	if len(round) == 0 {
		return nil
	}
	shards := make([]string, len(round))
	for i := range round {
		shards[i] = round[i].shard
	}
	base := patch{skip: []string{b.kind.field}, drop: wire.ArgStmtID | wire.ArgStmtIDs}
	id := UUID(b.entry.Coll.UUID)
	base.uuid = &id
	if err := r.join(op, shards, &base); err != nil {
		return err
	}
	answers := r.scatter(ctx, op, shards, func(dst []byte, i int) []byte {
		p := base
		p.extra = stmtIDs(op, round[i].index)
		start := len(dst)
		dst = r.appendMessage(dst, op, &p)
		return appendStatements(dst, start, b.kind.field, b.stmts, round[i].index)
	})
	defer r.releaseAll(op, answers)
	return res.addRound(op, round, answers)
}

// addRound takes in the answers to a round. It returns the whole command's error: in a
// transaction any, else one by which every child that was asked refused to run.
func (w *writeResult) addRound(op *Op, round []child, answers []answer) error {
	var other, refused error // of a child that found another collection, or would not run
	var failed []int         // children whose error is their statements'
	ran := !w.nothing()      // some child ran, or may have
	for i := range answers {
		a := &answers[i]
		if a.err == nil {
			a.err = w.add(&a.sent, round[i].index)
		}
		switch {
		case a.err == nil:
			ran = true
		case op.Txn.InTxn:
			return a.err
		case mongoerr.CodeOf(a.err) == mongoerr.CollectionUUIDMismatch:
			other = a.err
		default:
			failed = append(failed, i)
			if !refusesCommand(a.err) {
				ran = true
			} else if refused == nil {
				refused = a.err
			}
		}
	}
	switch {
	case other != nil && ran:
		// To run all again would write twice.
		return mongoerr.Wrap(mongoerr.ConflictingOperationInProgress, other, "the collection changed during the batch")
	case other != nil:
		return other
	case refused != nil && !ran:
		return refused
	}
	for _, i := range failed {
		w.addChildError(op, round[i].index, ClientError(op, answers[i].err))
	}
	return nil
}

// nothing reports whether no child has done anything yet.
func (w *writeResult) nothing() bool { return w.n == 0 && len(w.errors) == 0 && len(w.upserted) == 0 }

// refusesCommand reports whether a shard refused the command for its form: that is the
// whole command's error and not one statement's.
func refusesCommand(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.FailedToParse, mongoerr.TypeMismatch, mongoerr.InvalidOptions, 40414, 40415:
		return true
	default:
		return false
	}
}

// stmtIDs gives a child's statements the numbers that they have in the client's
// batch, so that a retry is recognised however it is grouped (MONGOD.md, "What a
// plain mongod does not refuse").
func stmtIDs(op *Op, index []int) []byte {
	if !op.Txn.Present {
		return nil
	}
	at, b := bsoncore.AppendArrayElementStart(nil, "stmtIds")
	for i, n := range index {
		b = bsoncore.AppendInt32Element(b, strconv.Itoa(i), clientStmtID(op, n))
	}
	b, _ = bsoncore.AppendArrayEnd(b, at)
	return b
}

// clientStmtID returns the id of the n-th statement: what the client says, or n.
func clientStmtID(op *Op, n int) int32 {
	if op.stmtIDs != nil {
		return op.stmtIDs[n]
	}
	return op.stmtID + int32(n)
}

// appendStatements appends the sequence of a child's statements to its message.
func appendStatements(dst []byte, start int, field string, stmts []statement, index []int) []byte {
	at := len(dst) + 1
	dst = append(dst, 1, 0, 0, 0, 0)
	dst = append(dst, field...)
	dst = append(dst, 0)
	for _, i := range index {
		dst = append(dst, stmts[i].doc...)
	}
	wire.SetLength(dst[start:])
	putInt32(dst[at:], len(dst)-at)
	return dst
}

func putInt32(b []byte, n int) {
	b[0], b[1], b[2], b[3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
}

// add takes in a shard's reply; its indexes become the client's.
func (w *writeResult) add(s *sent, index []int) error {
	it := s.body.Iter()
	var e wire.Elem
	for it.Next(&e) {
		switch string(e.Name) {
		case "n":
			n, _ := e.Int64()
			w.n += n
		case "nModified":
			n, _ := e.Int64()
			w.modified += n
		case "upserted":
			w.upserted = appendIndexed(w.upserted, e, index)
		case "writeErrors":
			if err := mismatch(e); err != nil {
				return err
			}
			w.errors = appendIndexed(w.errors, e, index)
		case "writeConcernError":
			w.wcErrors = append(w.wcErrors, wcError{shard: s.shard, doc: append(wire.Doc(nil), e.Value...)})
		case "retriedStmtIds":
			for in := wire.Doc(e.Value).Iter(); in.Next(&e); {
				n, _ := e.Int64()
				w.retried = append(w.retried, n)
			}
		}
	}
	return it.Err()
}

func appendIndexed(list []indexed, array wire.Elem, index []int) []indexed {
	it := wire.Doc(array.Value).Iter()
	var e wire.Elem
	for it.Next(&e) {
		d, _ := e.Doc()
		x := indexed{}
		in := d.Iter()
		var f wire.Elem
		for in.Next(&f) {
			if string(f.Name) != "index" {
				x.elems = append(x.elems, f.Raw...)
				continue
			}
			if n, _ := f.Int64(); n >= 0 && n < int64(len(index)) {
				x.index = index[n]
			}
		}
		list = append(list, x)
	}
	return list
}

func (w *writeResult) addError(index int, err *mongoerr.Error) {
	b := bsoncore.AppendInt32Element(nil, "code", int32(err.Code))
	b = bsoncore.AppendStringElement(b, "errmsg", err.Message)
	b = append(b, err.Extra...)
	w.errors = append(w.errors, indexed{index: index, elems: b})
}

// addChildError notes that a child's outcome is unknown or an error as a whole: for
// its first statement if ordered, for every one otherwise.
func (w *writeResult) addChildError(op *Op, index []int, err *mongoerr.Error) {
	if e, ok := op.Lookup("ordered"); ok {
		if ordered, _ := e.Bool(); !ordered {
			for _, i := range index {
				w.addError(i, err)
			}
			return
		}
	}
	w.addError(index[0], err)
}

func (r *Router) replyWrite(op *Op, kind writeKind, ordered bool, w *writeResult) {
	byIndex := func(l []indexed) {
		sort.SliceStable(l, func(i, j int) bool { return l[i].index < l[j].index })
	}
	byIndex(w.errors)
	byIndex(w.upserted)
	w.errors = mergeSame(w.errors)
	op.Reply.Int32("n", int32(w.n))
	if kind.update {
		op.Reply.Int32("nModified", int32(w.modified))
	}
	appendIndexedArray(op, "upserted", w.upserted)
	appendIndexedArray(op, "writeErrors", w.errors)
	if len(w.retried) > 0 {
		b := bsoncore.NewArrayBuilder()
		for _, n := range w.retried {
			b.AppendInt32(int32(n))
		}
		op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "retriedStmtIds", b.Build())
	}
	if len(w.wcErrors) > 0 && !(ordered && len(w.errors) > 0) {
		op.Reply.Doc("writeConcernError", mergeWCErrors(w.wcErrors))
	}
	op.Reply.OK()
}

// mergeSame makes one error of several shards' for one statement: the first stands
// (MONGOS.md §2.8).
func mergeSame(l []indexed) []indexed {
	out := l[:0]
	for i := range l {
		if i > 0 && l[i].index == l[i-1].index {
			continue
		}
		out = append(out, l[i])
	}
	return out
}

func appendIndexedArray(op *Op, name string, l []indexed) {
	if len(l) == 0 {
		return
	}
	at, b := bsoncore.AppendArrayElementStart(op.Reply.Elems, name)
	for i := range l {
		var d int32
		d, b = bsoncore.AppendDocumentElementStart(b, strconv.Itoa(i))
		b = bsoncore.AppendInt32Element(b, "index", int32(l[i].index))
		b = append(b, l[i].elems...)
		b, _ = bsoncore.AppendDocumentEnd(b, d)
	}
	op.Reply.Elems, _ = bsoncore.AppendArrayEnd(b, at)
}

// mergeWCErrors makes one writeConcernError: one shard's with its name added, or 64
// for several.
func mergeWCErrors(list []wcError) []byte {
	text := ""
	code := int32(mongoerr.WriteConcernFailed)
	for i := range list {
		msg, _ := list[i].doc.Lookup("errmsg")
		t, _ := msg.Str()
		if i > 0 {
			text += "; "
		}
		text += t + " at " + list[i].shard
	}
	if len(list) == 1 {
		c, _ := list[0].doc.Lookup("code")
		n, _ := c.Int64()
		code = int32(n)
	} else {
		text = "multiple errors reported : " + text
	}
	b := bsoncore.AppendInt32Element(nil, "code", code)
	b = bsoncore.AppendStringElement(b, "codeName", mongoerr.Code(code).String())
	b = bsoncore.AppendStringElement(b, "errmsg", text)
	return bsoncore.BuildDocument(nil, b)
}
