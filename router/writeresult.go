package router

import (
	"sort"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

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

// take adds another result.
func (w *writeResult) take(o *writeResult) {
	w.n += o.n
	w.modified += o.modified
	w.upserted = append(w.upserted, o.upserted...)
	w.errors = append(w.errors, o.errors...)
	w.wcErrors = append(w.wcErrors, o.wcErrors...)
	w.retried = append(w.retried, o.retried...)
}

// nothing reports whether no child has done anything yet.
func (w *writeResult) nothing() bool { return w.n == 0 && len(w.errors) == 0 && len(w.upserted) == 0 }

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
	w.errors = append(w.errors, errorOf(index, err))
}

// errorOf is a statement's error.
func errorOf(index int, err *mongoerr.Error) indexed {
	b := bsoncore.AppendInt32Element(nil, "code", int32(err.Code))
	b = bsoncore.AppendStringElement(b, "errmsg", err.Message)
	b = append(b, err.Extra...)
	return indexed{index: index, elems: b}
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
	if len(list) == 1 {
		b = appendField(b, list[0].doc, "errInfo")
	}
	return bsoncore.BuildDocument(nil, b)
}
