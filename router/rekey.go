package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// record is what a single write that runs in a transaction leaves on its shard, in the
// same transaction, so that a repetition finds that it ran.
type record struct {
	ID    bson.D    `bson:"_id"`
	Until time.Time `bson:"until"`
	Reply bson.Raw  `bson:"reply,omitempty"` // absent, and nothing aside: the attempt was given up
	Aside bulky     `bson:"aside"`           // the reply, where it is too long
}

// recordID names the record of an attempt.
func recordID(op *Op, w *single, c choice) bson.D {
	return append(claimID(op, w), bson.E{Key: "attempt", Value: c.Attempt})
}

// rekeyed is what became of a transaction.
type rekeyed int

const (
	rekeyDone  rekeyed = iota // or it failed
	rekeyNone                 // nothing matched
	rekeyAgain                // others came between
)

// rekey runs an update that may change its document's shard key, in a transaction on the
// document's shard: it is committed if the document still belongs there. done is false if
// nothing matched.
//
// On a shard that does not own the document any more it does not run, but may have.
func (r *Router) rekey(ctx context.Context, op *Op, w *single, c choice, owned bool) (done bool, err error) {
	if !owned && !op.Txn.Present {
		return false, nil
	}
	if err := r.prepareInternal(ctx, c.Shard); err != nil {
		return false, err
	}
	rec := record{ID: recordID(op, w, c), Until: time.Now().Add(claimLifetime)}
	var wait time.Duration
	for {
		if op.Txn.Present {
			if reply, found, err := r.recorded(ctx, op, c.Shard, rec.ID); found || err != nil {
				if err == nil && reply != nil {
					err = w.do.took(op, c.Shard, reply)
				}
				return reply != nil, err
			}
		}
		var what rekeyed
		if owned {
			what, err = r.rekeyOnce(ctx, op, w, c, rec)
		} else {
			what, err = r.giveUp(ctx, op, c.Shard, rec)
		}
		if what != rekeyAgain {
			return what == rekeyDone, err
		}
		if !w.backOff(ctx, op, &wait) {
			return false, errContended
		}
	}
}

// rekeyOnce runs the transaction once.
func (r *Router) rekeyOnce(ctx context.Context, op *Op, w *single, c choice, rec record) (rekeyed, error) {
	try := r.trial(op)
	open := true
	defer func() {
		if open {
			r.undoTrial(ctx, &try, c.Shard)
		}
		op.lost = append(op.lost, try.lost...)
	}()
	db := dbOf(w.entry.Coll.NS)
	first := bsoncore.AppendBooleanElement(w.do.command(op, w, conjunction(w.filter, c.Filter)), "startTransaction", true)
	s, err := r.inTrial(ctx, &try, c.Shard, db, first)
	defer r.release(op, &s)
	switch {
	case isContended(err):
		return rekeyAgain, err
	case err != nil:
		return rekeyDone, err
	case countOf(s.body) == 0 && op.Txn.Present:
		return r.giveUp(ctx, op, c.Shard, rec)
	case countOf(s.body) == 0:
		return rekeyNone, nil
	}
	if err := r.staysOn(ctx, &try, w, c, db); err != nil {
		return rekeyDone, err
	}
	if op.Txn.Present {
		rec.Reply = bson.Raw(s.body)
		err := r.writeRecord(ctx, &try, c.Shard, rec)
		if isContended(err) || mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
			return rekeyAgain, err
		}
		if err != nil {
			return rekeyDone, err
		}
	}
	commit := bsoncore.AppendInt32Element(nil, "commitTransaction", 1)
	if wc, ok := op.Cmd.Arg(wire.ArgWriteConcern); ok && op.Drop&wire.ArgWriteConcern == 0 {
		commit = append(commit, wc.Raw...)
	}
	end, err := r.inTrial(ctx, &try, c.Shard, "admin", commit)
	defer r.release(op, &end)
	if isContended(err) {
		return rekeyAgain, err
	}
	open = false
	if err != nil {
		return rekeyDone, err
	}
	reply := appendField(s.body[:len(s.body)-1:len(s.body)-1], end.body, "writeConcernError")
	return rekeyDone, w.do.took(op, c.Shard, wire.AppendDocEnd(reply, 0))
}

// isContended reports whether a transaction's statement failed because of others, so that
// it can be run again.
func isContended(err error) bool {
	code := mongoerr.CodeOf(err)
	return code == mongoerr.WriteConflict || code == mongoerr.NoSuchTransaction || code == mongoerr.LockTimeout
}

// countOf is how many documents a reply to update or findAndModify says it changed.
func countOf(reply wire.Doc) int64 {
	if last, ok := reply.Lookup("lastErrorObject"); ok {
		reply, _ = last.Doc()
	}
	e, _ := reply.Lookup("n")
	n, _ := e.Int64()
	return n
}

// staysOn refuses a change by which the document belongs to another shard. By the update's
// collation several may have the _id that was looked for; which one was changed is not known.
func (r *Router) staysOn(ctx context.Context, try *Op, w *single, c choice, db string) error {
	b := bsoncore.AppendStringElement(nil, "find", w.coll)
	at, b := bsoncore.AppendDocumentElementStart(b, "filter")
	t, id, _, err := shardkey.Lookup(c.Filter, []string{"_id"})
	if err != nil {
		return err
	}
	b = append(bsoncore.AppendHeader(b, bsoncore.Type(t), "_id"), id...)
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	b = appendField(b, bsoncore.BuildDocument(nil, w.meaning), "collation")
	s, err := r.inTrial(ctx, try, c.Shard, db, b)
	defer r.release(try, &s)
	if err != nil {
		return err
	}
	more, _, batch, err := cursorReply(s.info.Cursor)
	switch {
	case err != nil:
		return err
	case len(batch) == 0:
		return mongoerr.New(mongoerr.InternalError, "a document is gone within a transaction")
	case more != 0:
		return notYet("an update of the shard key of one of very many documents whose _id is the same by its collation")
	}
	for len(batch) > 0 {
		e, n := wire.FirstElem(batch)
		batch = batch[n:]
		doc, ok := e.Doc()
		if !ok {
			return wire.ErrMalformed
		}
		owner, err := w.entry.ownerOf(doc)
		if err != nil {
			return err
		}
		if owner[0] != c.Shard {
			return notYet("an update that moves a document to another shard")
		}
	}
	return nil
}

// recorded looks for the record of an attempt; reply is nil if it was given up.
func (r *Router) recorded(ctx context.Context, op *Op, shard string, id bson.D) (reply wire.Doc, found bool, err error) {
	doc, err := r.noted(ctx, op, shard, id)
	if doc == nil || err != nil {
		return nil, false, err
	}
	var rec record
	if err := bson.Unmarshal(bson.Raw(doc), &rec); err != nil {
		return nil, true, err
	}
	reply = wire.Doc(rec.Reply)
	if rec.Aside.N > 0 {
		if reply, err = r.parts(ctx, op, shard, rec.Aside); err != nil {
			return nil, true, err
		}
	}
	if reply != nil {
		reply, err = r.confirmed(ctx, op, shard, reply)
	}
	return reply, true, err
}

// confirmed adds to a recorded reply whether its shard can by now confirm what it has
// done, as the client asks.
func (r *Router) confirmed(ctx context.Context, op *Op, shard string, reply wire.Doc) (wire.Doc, error) {
	note := bson.D{
		{Key: "appendOplogNote", Value: int32(1)},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "shardgate: what is here stays"}}},
	}
	if wc, ok := op.Cmd.Arg(wire.ArgWriteConcern); ok && op.Drop&wire.ArgWriteConcern == 0 {
		note = append(note, bson.E{Key: "writeConcern", Value: wc.RawValue()})
	}
	s, err := r.keep(ctx, op, shard, "admin", note)
	defer r.release(op, &s)
	if err != nil {
		return nil, err
	}
	out := append(make(wire.Doc, 0, len(reply)+len(s.body)), reply[:len(reply)-1]...)
	return wire.AppendDocEnd(appendField(out, s.body, "writeConcernError"), 0), nil
}

// giveUp records that an attempt found nothing, so that it cannot run later.
func (r *Router) giveUp(ctx context.Context, op *Op, shard string, rec record) (rekeyed, error) {
	s, err := r.keep(ctx, op, shard, InternalDB, insertClaim(rec, majorityWrites))
	defer r.release(op, &s)
	if err == nil {
		err = firstWriteError(s.info.WriteErrors)
	}
	if err == nil {
		err = s.unconfirmed()
	}
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		return rekeyAgain, err
	}
	return rekeyNone, err
}

// writeRecord is the record's part of the transaction.
func (r *Router) writeRecord(ctx context.Context, try *Op, shard string, rec record) error {
	docs := []any{}
	if len(rec.Reply) > inlineLimit {
		var parts []bson.D
		rec.Aside, parts = inParts(rec.Reply)
		rec.Reply = nil
		for _, p := range parts {
			docs = append(docs, p)
		}
	}
	for _, d := range append(docs, rec) {
		raw, err := bson.Marshal(insertClaim(d, nil))
		if err != nil {
			return err
		}
		s, err := r.inTrial(ctx, try, shard, InternalDB, raw[4:len(raw)-1])
		r.release(try, &s)
		if err != nil {
			return err
		}
	}
	return nil
}
