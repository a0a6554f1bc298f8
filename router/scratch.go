package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// chooseInsert finds out which document an upsert would insert, and so which shard is to
// get it. A real mongod says it: the upsert runs in a transaction on a collection that is
// always empty, and is undone.
func (r *Router) chooseInsert(ctx context.Context, op *Op, w *single, c *choice) error {
	shards := r.anyShards()
	if err := r.prepareInternal(ctx, shards[0]); err != nil {
		return err
	}
	var wait time.Duration
	for {
		try := r.trial(op)
		doc, err := r.tryUpsert(ctx, &try, w, shards[0])
		if isContended(err) && w.backOff(ctx, op, &wait) {
			continue // another upsert with the same _id is being tried
		}
		if err == nil && w.projects.Type != 0 {
			c.Value, err = r.projected(ctx, &try, w, shards[0], doc)
		}
		r.undoTrial(ctx, &try, shards[0])
		if err != nil {
			return err
		}
		c.Insert = doc
		owner, err := w.entry.ownerOf(doc)
		if err == nil {
			c.Shard = owner[0]
		}
		return err
	}
}

// trial is an operation in a transaction of the router's own on one shard. There is one
// at a time on a connection.
func (r *Router) trial(op *Op) Op {
	try := *op
	try.lost = nil
	try.Session.ID = derivedSession(ImplicitSession(r.incarnation(), op.Conn), "trial", 0)
	try.Txn = Txn{Number: int64(r.freshTime()), Present: true, InTxn: true}
	return try
}

// tryUpsert runs the upsert and returns the new document.
func (r *Router) tryUpsert(ctx context.Context, op *Op, w *single, shard string) (bson.Raw, error) {
	b := bsoncore.AppendStringElement(nil, "findAndModify", scratchColl)
	b = bsoncore.AppendDocumentElement(b, "query", bsoncore.Document(w.filter))
	b = append(b, w.upsert...)
	if _, ok := wire.Doc(bsoncore.BuildDocument(nil, w.upsert)).Lookup("collation"); !ok && len(w.entry.Coll.Collation) > 0 {
		b = bsoncore.AppendDocumentElement(b, "collation", bsoncore.Document(w.entry.Coll.Collation))
	}
	b = bsoncore.AppendBooleanElement(b, "upsert", true)
	b = bsoncore.AppendBooleanElement(b, "new", true)
	b = bsoncore.AppendBooleanElement(b, "startTransaction", true)
	s, err := r.inTrial(ctx, op, shard, InternalDB, b)
	defer r.release(op, &s)
	if err != nil {
		return nil, err
	}
	v, _ := s.body.Lookup("value")
	d, ok := v.Doc()
	if !ok {
		return nil, mongoerr.New(mongoerr.InternalError, "an upsert has inserted nothing")
	}
	return append(bson.Raw(nil), d...), nil
}

// projected is the new document as the client wants to see it.
func (r *Router) projected(ctx context.Context, op *Op, w *single, shard string, doc bson.Raw) (bson.Raw, error) {
	id := doc.Lookup("_id")
	b := bsoncore.AppendStringElement(nil, "find", scratchColl)
	at, b := bsoncore.AppendDocumentElementStart(b, "filter")
	b = append(bsoncore.AppendHeader(b, bsoncore.Type(id.Type), "_id"), id.Value...)
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	b = append(bsoncore.AppendHeader(b, bsoncore.Type(w.projects.Type), "projection"), w.projects.Value...)
	s, err := r.inTrial(ctx, op, shard, InternalDB, b)
	defer r.release(op, &s)
	if err != nil {
		return nil, err
	}
	_, _, batch, err := cursorReply(s.info.Cursor)
	if err != nil {
		return nil, err
	}
	e, _ := wire.FirstElem(batch)
	return append(bson.Raw(nil), e.Value...), nil
}

// undoTrial ends the trial. The next one on this connection would, too.
func (r *Router) undoTrial(ctx context.Context, op *Op, shard string) {
	b := r.appendEnvelope(appendTxn(bsoncore.AppendInt32Element(nil, "abortTransaction", 1), op), op, &patch{})
	r.wg.Go(func() {
		ctx, cancel := withTimeout(ctx)
		defer cancel()
		if s := r.Shard(shard); s != nil {
			if _, err := s.Run(ctx, "admin", b); err != nil {
				r.log.Debug().Err(err).Str("shard", shard).Msg("undo an upsert's trial")
			}
		}
	})
}

func appendTxn(b []byte, op *Op) []byte {
	b = bsoncore.AppendInt64Element(b, "txnNumber", op.Txn.Number)
	return bsoncore.AppendBooleanElement(b, "autocommit", false)
}

// inTrial runs a statement of a trial's transaction.
func (r *Router) inTrial(ctx context.Context, try *Op, shard, db string, elems []byte) (sent, error) {
	elems = r.appendEnvelope(appendTxn(elems, try), try, &patch{})
	s, err := r.exchange(ctx, try, shard, &backend.Request{Msg: backend.AppendCommand(nil, db, elems)})
	if err == nil && !s.info.OK {
		err = shardError(&Op{}, s.body) // the transaction is ours, not the client's
	}
	if err == nil {
		try.Reply.ShardTime = max(try.Reply.ShardTime, s.info.OperationTime)
		err = firstWriteError(s.info.WriteErrors)
	}
	return s, err
}
