package router

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// A document that a shard does not own may stand in the way of one that belongs there, as
// _id and other unique values are the shard's own affair: the document has moved away and
// comes back, or its _id was used again (PROTOCOL.md F21). Such a blocker is deleted, and
// the write is done again; a shard that refused it has not recorded it.

// maxBlockers bounds how many blockers one statement may meet.
const maxBlockers = 8

// errBlocked is for a write that meets ever new copies.
var errBlocked = mongoerr.New(mongoerr.WriteConflict, "copies of documents that are moving are in the way")

// duplicate is what a shard says of a write that met another document.
type duplicate struct {
	pattern, values wire.Doc // of the index
	collation       wire.Doc // of the index; if there is one, the values cannot be read
}

// asDuplicate reads the elements of an error, if it is 11000.
func asDuplicate(elems []byte) (d duplicate, is bool) {
	doc := wire.Doc(bsoncore.BuildDocument(nil, elems))
	code, _ := doc.Lookup("code")
	n, _ := code.Int64()
	for name, to := range map[string]*wire.Doc{"keyPattern": &d.pattern, "keyValue": &d.values, "collation": &d.collation} {
		if e, ok := doc.Lookup(name); ok {
			*to, _ = e.Doc()
		}
	}
	return d, mongoerr.Code(n) == mongoerr.DuplicateKey && d.pattern != nil
}

// newcomer is what is known of a document that met a blocker.
type newcomer struct {
	doc   []byte // the document, or the filter of the upsert
	whole bool   // it is the document
}

// filter finds what has the duplicate's values, nil if that cannot be said.
func (d *duplicate) filter(w *newcomer) []byte {
	if d.collation == nil {
		return equal(d.values, func(e *wire.Elem) (bson.Type, []byte, bool) { return e.Type, e.Value, true })
	}
	return equal(d.pattern, func(e *wire.Elem) (bson.Type, []byte, bool) {
		t, value, found, err := shardkey.Lookup(w.doc, strings.Split(string(e.Name), "."))
		if !found {
			t = bson.TypeNull
		}
		return t, value, err == nil && (found || w.whole)
	})
}

// equal makes {name: {$eq: value}, …}.
func equal(names wire.Doc, value func(e *wire.Elem) (bson.Type, []byte, bool)) []byte {
	at, b := wire.AppendDocStart(nil)
	it := names.Iter()
	var e wire.Elem
	for it.Next(&e) {
		t, v, ok := value(&e)
		if !ok || t == bson.TypeUndefined { // which nothing can be compared to
			return nil
		}
		var is int32
		is, b = bsoncore.AppendDocumentElementStart(b, string(e.Name))
		b = append(bsoncore.AppendHeader(b, bsoncore.Type(t), "$eq"), v...)
		b, _ = bsoncore.AppendDocumentEnd(b, is)
	}
	return wire.AppendDocEnd(b, at)
}

// unblock deletes on a shard what a newcomer met there, if the shard does not own it.
func (r *Router) unblock(ctx context.Context, op *Op, e *Entry, shard string, d duplicate, w newcomer) (cleared bool, err error) {
	ranges := e.Unowned(shard)
	filter := d.filter(&w)
	if len(ranges) == 0 || filter == nil {
		return false, nil
	}
	in, err := owned.In(e.Table.Pattern(), ranges)
	if err != nil {
		return false, err
	}
	collation := []byte(d.collation)
	if collation == nil {
		collation = bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "locale", "simple"))
	}
	if err := r.disturb(ctx, op, e, shard); err != nil {
		return false, err
	}
	stmt := bsoncore.AppendDocumentElement(nil, "q", narrowed(filter, &in))
	stmt = bsoncore.AppendInt32Element(stmt, "limit", 0)
	stmt = bsoncore.AppendDocumentElement(stmt, "collation", collation)
	b := bsoncore.AppendStringElement(nil, "delete", collOf(e.Coll.NS))
	b = bsoncore.AppendArrayElement(b, "deletes", bsoncore.NewArrayBuilder().AppendDocument(bsoncore.BuildDocument(nil, stmt)).Build())
	id := UUID(e.Coll.UUID)
	own := *op
	own.Txn, own.lost = Txn{}, nil // beside a transaction, which ended with the error
	answers := r.scatter(ctx, &own, []string{shard}, func(dst []byte, _ int) []byte {
		return r.appendElems(dst, &own, bsoncore.AppendBinaryElement(slices.Clip(b), "collectionUUID", 4, id[:]))
	})
	defer r.releaseAll(op, answers)
	op.lost, op.Trace = append(op.lost, own.lost...), own.Trace
	if err := answers[0].err; err != nil {
		return false, err
	}
	if err := firstWriteError(answers[0].info.WriteErrors); err != nil {
		return false, err
	}
	return countOf(answers[0].body) > 0, nil
}

// disturb notes, before a copy is deleted, that the movement which is making it can no longer
// be sure of what it has written: the copy's original may yet be there (see copier.finish).
func (r *Router) disturb(ctx context.Context, op *Op, e *Entry, shard string) error {
	for i := range e.unowned {
		m := &e.unowned[i]
		if m.State != catalog.MovementCopying || m.To != shard {
			continue
		}
		s, err := r.keep(ctx, op, shard, InternalDB, bson.D{
			{Key: "update", Value: movesColl},
			{Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: tokenOf(m)}}},
				{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "disturbed", Value: true}}}}},
			}}},
		})
		if err == nil {
			err = firstWriteError(s.info.WriteErrors)
		}
		r.release(op, &s)
		if err != nil {
			return err
		}
	}
	return nil
}

// blockedInTxn asks for the transaction to be run again: the error has ended it.
func blockedInTxn() error {
	return mongoerr.New(errBlocked.Code, errBlocked.Message).WithLabel(mongoerr.LabelTransientTransaction)
}

// unblockFor is unblock for an error of a command that writes one document.
func (r *Router) unblockFor(ctx context.Context, op *Op, e *Entry, shard string, failed error, w newcomer) (again bool, err error) {
	if mongoerr.CodeOf(failed) != mongoerr.DuplicateKey || !e.hasUnowned(shard) {
		return false, failed
	}
	d, is := asDuplicate(append(bsoncore.AppendInt32Element(nil, "code", int32(mongoerr.DuplicateKey)), mongoerr.As(failed).Extra...))
	if !is {
		return false, failed
	}
	cleared, err := r.unblock(ctx, op, e, shard, d, w)
	switch {
	case err != nil:
		return false, err
	case !cleared:
		return false, failed
	case op.Txn.InTxn:
		return false, blockedInTxn()
	}
	return true, nil
}

// unblocked runs a write of one document until no copy is in its way.
func (r *Router) unblocked(ctx context.Context, op *Op, e *Entry, shard string, w newcomer, run func() error) error {
	for range maxBlockers {
		err := run()
		if err == nil {
			return nil
		}
		again, err := r.unblockFor(ctx, op, e, shard, err, w)
		if !again {
			return err
		}
	}
	return errBlocked
}

// unblockRound looks for blockers among the errors of a round. What is to be done again is
// returned, and its errors are taken out of res.
func (r *Router) unblockRound(ctx context.Context, op *Op, b *batch, round []child, res *writeResult) (again []child, err error) {
	for i := range round {
		c := &round[i]
		if c.cond == nil {
			continue
		}
		redo := child{shard: c.shard}
		kept := res.errors[:0:0]
		for _, x := range res.errors {
			at := slices.Index(c.index, x.index)
			cleared := false
			if at >= 0 {
				if cleared, err = r.unblockStatement(ctx, op, b, c.shard, x); err != nil {
					x = errorOf(x.index, ClientError(op, err))
				}
			}
			switch {
			case !cleared:
				kept = append(kept, x)
			case op.Txn.InTxn:
				return nil, blockedInTxn()
			case b.ordered:
				redo.index = c.index[at:] // what is behind has not run either
			default:
				redo.index = append(redo.index, x.index)
			}
		}
		res.errors = kept
		if len(redo.index) > 0 {
			again = append(again, redo)
		}
	}
	return again, nil
}

// unblockStatement is unblock for a statement's error.
func (r *Router) unblockStatement(ctx context.Context, op *Op, b *batch, shard string, x indexed) (cleared bool, err error) {
	st := &b.stmts[x.index]
	d, is := asDuplicate(x.elems)
	if !is || len(st.shards) > 1 {
		return false, nil
	}
	w := newcomer{doc: st.doc, whole: b.kind.insert}
	if !b.kind.insert {
		q, _ := wire.Doc(st.doc).Lookup("q")
		w.doc = q.Value
	}
	return r.unblock(ctx, op, b.entry, shard, d, w)
}
