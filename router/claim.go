package router

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// InternalDB is a database of shardgate's own on every shard. Clients do not see it.
const InternalDB = "__shardgate"

// Collections of InternalDB.
const (
	claimsColl  = "claims"  // choices of single writes, and marks of attempts that were given up
	scratchColl = "scratch" // always empty: upserts are tried in it and undone
)

// claimLifetime is how long a claim is kept: longer than a client repeats a write.
const claimLifetime = time.Hour

// attemptSession is the session of a single write's attempt: the client's own for the
// first.
func attemptSession(id UUID, attempt int32) UUID {
	if attempt == 0 {
		return id
	}
	return derivedSession(id, "attempt", uint64(attempt))
}

// derivedSession makes a session id of another one.
func derivedSession(id UUID, purpose string, n uint64) UUID {
	b := binary.BigEndian.AppendUint64(append(id[:len(id):len(id)], purpose...), n)
	sum := sha256.Sum256(b)
	out := UUID(sum[:16])
	reserve(&out)
	return out
}

// claimID names a statement: the client's session, transaction number and statement, on one
// life of the collection, which its timestamp tells: that stays when its key changes.
func claimID(op *Op, w *single) bson.D {
	s := op.Session
	return bson.D{
		{Key: "id", Value: bson.Binary{Subtype: 4, Data: s.ID[:]}},
		{Key: "uid", Value: bson.Binary{Data: s.UID[:]}},
		{Key: "txnNumber", Value: op.Txn.Number},
		{Key: "stmtId", Value: w.stmt},
		{Key: "collection", Value: w.entry.Coll.Timestamp.BSON()},
	}
}

// claimsShard is where the claims of a collection's database are.
func (r *Router) claimsShard(e *Entry) string {
	d := r.snap.Load().Databases[dbOf(e.Coll.NS)]
	return d.Claims()
}

// claim notes a choice on the shard that keeps them and returns the one to act on:
// this one, or an earlier one for the same or a later attempt.
func (r *Router) claim(ctx context.Context, op *Op, w *single, c choice) (choice, error) {
	shard := r.claimsShard(w.entry)
	if err := r.prepareInternal(ctx, shard); err != nil {
		return c, err
	}
	chosen := c
	if err := r.setAside(ctx, op, shard, &c); err != nil {
		return c, err
	}
	id := claimID(op, w)
	note := struct {
		ID     bson.D    `bson:"_id"`
		Until  time.Time `bson:"until"`
		Choice choice    `bson:"choice"`
	}{id, time.Now().Add(claimLifetime), c}
	held := bson.D{{Key: "$ifNull", Value: bson.A{"$choice.attempt", int32(-1)}}}
	cmd := bson.D{
		{Key: "findAndModify", Value: claimsColl},
		{Key: "query", Value: bson.D{{Key: "_id", Value: id}}},
		{Key: "update", Value: bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$lt", Value: bson.A{held, c.Attempt}}}, bson.D{{Key: "$literal", Value: note}}, "$$ROOT",
		}}}}}}},
		{Key: "upsert", Value: true},
		{Key: "new", Value: true},
		{Key: "writeConcern", Value: majorityWrites},
	}
	for {
		s, err := r.keep(ctx, op, shard, InternalDB, cmd)
		var reply struct {
			Value struct {
				Choice choice `bson:"choice"`
			} `bson:"value"`
		}
		if err == nil {
			err = s.unconfirmed()
		}
		if err == nil {
			err = bson.Unmarshal(append(bson.Raw(nil), s.body...), &reply)
		}
		r.release(op, &s)
		if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
			continue // another router was first
		}
		if held := reply.Value.Choice; err != nil || held.Aside == c.Aside && held.Aside.N > 0 {
			return chosen, err
		}
		err = r.putBack(ctx, op, shard, &reply.Value.Choice)
		return reply.Value.Choice, err
	}
}

// keep runs a command of the router's own for a single write, trying again: it is one that
// may run twice. The reply must be released.
func (r *Router) keep(ctx context.Context, op *Op, shard, db string, cmd bson.D) (sent, error) {
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return sent{}, err
	}
	own := *op
	own.Write, own.lost, own.Txn = false, nil, Txn{}
	elems := r.appendEnvelope(raw[4:len(raw)-1], &own, &patch{})
	s, err := r.exchange(ctx, &own, shard, &backend.Request{Msg: backend.AppendCommand(nil, db, elems)})
	op.Trace = own.Trace
	if err == nil && !s.info.OK {
		err = shardError(&own, s.body)
	}
	return s, err
}

// unconfirmed returns a reply's write concern error.
func (s *sent) unconfirmed() error {
	if wc, ok := s.info.WCError.Doc(); ok {
		return wcErrorOf(s.shard, wc)
	}
	return nil
}

// closeAttempt makes sure that an attempt which found nothing to write on a shard cannot
// write there later, for example from a router that was paused: a mark takes its place
// (PROTOCOL.md F13). ran reports that it did write meanwhile.
func (r *Router) closeAttempt(ctx context.Context, op *Op, w *single, shard string) (ran bool, err error) {
	if err := r.prepareInternal(ctx, shard); err != nil {
		return false, err
	}
	mark, err := bson.Marshal(bson.D{{Key: "update", Value: claimsColl}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: markID(op, w)}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "until", Value: time.Now().Add(claimLifetime)}}}}},
		{Key: "upsert", Value: true},
	}}}, {Key: "writeConcern", Value: majorityWrites}})
	if err != nil {
		return false, err
	}
	elems := bsoncore.AppendInt64Element(mark[4:len(mark)-1], "txnNumber", op.Txn.Number)
	elems = bsoncore.AppendArrayElement(elems, "stmtIds", bsoncore.NewArrayBuilder().AppendInt32(w.stmt).Build())
	elems = r.appendEnvelope(elems, op, &patch{})
	s, err := r.exchange(ctx, op, shard, &backend.Request{Msg: backend.AppendCommand(nil, InternalDB, elems)})
	defer r.release(op, &s)
	if err == nil && !s.info.OK {
		err = shardError(op, s.body)
	}
	if mongoerr.CodeOf(err) == ranAsDelete {
		return true, nil
	}
	if err == nil {
		err = s.unconfirmed()
	}
	if err != nil {
		return false, err
	}
	_, again := s.body.Lookup("retriedStmtIds")
	_, marked := s.body.Lookup("upserted")
	return again && !marked, nil
}

// markID names the mark of an attempt that was closed; op has the attempt's session.
func markID(op *Op, w *single) bson.D {
	return append(claimID(op, w), bson.E{Key: "closed", Value: true})
}

// isClosed reports whether a shard has the mark of an attempt.
func (r *Router) isClosed(ctx context.Context, op *Op, w *single, shard string) (bool, error) {
	doc, err := r.noted(ctx, op, shard, markID(op, w))
	return doc != nil, err
}

// noted returns what a shard has of claims, records and marks by an _id, nil for nothing.
func (r *Router) noted(ctx context.Context, op *Op, shard string, id bson.D) (wire.Doc, error) {
	s, err := r.keep(ctx, op, shard, InternalDB, bson.D{
		{Key: "find", Value: claimsColl}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "singleBatch", Value: true},
	})
	defer r.release(op, &s)
	if err != nil {
		return nil, err
	}
	_, _, batch, err := cursorReply(s.info.Cursor)
	e, _ := wire.FirstElem(batch)
	return append(wire.Doc(nil), e.Value...), err
}

// isOtherKind reports whether a code says that a findAndModify has the number of a write
// that it cannot be: of a mark.
func isOtherKind(c mongoerr.Code) bool { return c >= 40605 && c <= 40613 }

// ranAsDelete is a shard's answer to an update whose number it knows as a delete's.
const ranAsDelete mongoerr.Code = 40638

// prepareInternal makes the collections of InternalDB on a shard, once.
func (r *Router) prepareInternal(ctx context.Context, shard string) error {
	if _, done := r.prepared.Load(shard); done {
		return nil
	}
	own := Op{Buffers: new(wire.Buffers), Reply: &wire.Reply{}, Session: Session{ID: r.incarnation()}}
	own.Deadline, _ = ctx.Deadline()
	for _, cmd := range []bson.D{
		{{Key: "createIndexes", Value: claimsColl}, {Key: "indexes", Value: bson.A{bson.D{
			{Key: "key", Value: bson.D{{Key: "until", Value: int32(1)}}}, {Key: "name", Value: "until_1"}, {Key: "expireAfterSeconds", Value: int32(0)},
		}}}},
		{{Key: "createIndexes", Value: movesColl}, {Key: "indexes", Value: bson.A{bson.D{
			{Key: "key", Value: bson.D{{Key: "until", Value: int32(1)}}}, {Key: "name", Value: "until_1"}, {Key: "expireAfterSeconds", Value: int32(0)},
		}}}},
		{{Key: "create", Value: scratchColl}},
	} {
		s, err := r.keep(ctx, &own, shard, InternalDB, cmd)
		r.release(&own, &s)
		if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceExists {
			return err
		}
	}
	r.prepared.Store(shard, true)
	if err := r.sweepSpilled(ctx, shard); err != nil {
		r.log.Debug().Err(err).Str("shard", shard).Msg("look for temporary collections")
	}
	return nil
}
