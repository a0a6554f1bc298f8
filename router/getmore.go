package router

import (
	"context"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// GetMore runs getMore on one of this router's cursors.
func (r *Router) GetMore(ctx context.Context, op *Op) error {
	id, ok := op.Cmd.First.Int64()
	if !ok || op.Cmd.First.Type != bson.TypeInt64 {
		return mongoerr.New(mongoerr.TypeMismatch, "Field 'getMore' must be of type long")
	}
	coll, ok := op.Lookup("collection")
	if !ok {
		return mongoerr.New(40414, "BSON field 'getMore.collection' is missing but a required field")
	}
	name, _ := coll.Str()
	n := int64(-1)
	if e, ok := op.Lookup("batchSize"); ok {
		if n, _ = e.Int64(); n < 0 {
			return mongoerr.Newf(51024, "BSON field 'batchSize' value must be >= 0, actual value '%d'", n)
		}
		if n == 0 {
			n = -1
		}
	}
	c, err := r.cursors.checkOut(id)
	if err != nil {
		return err
	}
	if err := checkCursor(op, c, string(op.Cmd.DB)+"."+name); err != nil {
		r.cursors.checkIn(c, false)
		return err
	}
	if c.passes && r.hasMovedAway(c) {
		r.checkIn(ctx, c, true)
		return errHistoryMoved(c.NS)
	}
	if c.passes {
		done, err := r.passGetMore(ctx, op, c)
		if err == nil && r.hasMovedAway(c) {
			op.Reply.Reset() // it may be the end of the former copy
			done, err = true, errHistoryMoved(c.NS)
		}
		r.checkIn(ctx, c, done || err != nil)
		return err
	}
	if op.Cmd.Has(wire.ArgMaxTimeMS) {
		r.cursors.checkIn(c, false)
		return mongoerr.New(mongoerr.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
	}
	return r.mergedBatch(ctx, op, c, "nextBatch", n)
}

// getMoreIDAt is the offset of the cursor id in a getMore message: it is the value of
// the body's first element.
const getMoreIDAt = wire.MsgBodyAt + 4 + 1 + len("getMore") + 1

// passGetMore forwards a getMore to the shard of a one-shard cursor: the shard's
// cursor id replaces the router's, and back.
func (r *Router) passGetMore(ctx context.Context, op *Op, c *Cursor) (done bool, err error) {
	p := c.parts[0]
	buf := op.Buffers.Get(len(op.Cmd.Body) + 512)
	defer op.Buffers.Put(buf)
	client := op.Session
	op.Session = c.Session
	var wait []byte
	if e, ok := op.Cmd.Arg(wire.ArgMaxTimeMS); ok {
		wait = e.Raw // how long to wait for data, not a limit of the operation
	}
	*buf = r.appendMessage(*buf, op, &patch{extra: wait})
	op.Session = client
	binary.LittleEndian.PutUint64((*buf)[getMoreIDAt:], uint64(p.id))
	s, err := r.exchange(ctx, op, p.shard, &backend.Request{Msg: *buf, Addr: p.addr})
	if err != nil {
		op.Buffers.Put(s.buf)
		return false, err
	}
	info, _, err := r.adopt(op, &s)
	if err != nil {
		return false, err
	}
	at := wire.CursorIDOffset(info.Cursor.Value)
	if at < 0 {
		return true, nil
	}
	field := info.Cursor.Value[at : at+8]
	if p.id = int64(binary.LittleEndian.Uint64(field)); p.id == 0 {
		return true, nil
	}
	binary.LittleEndian.PutUint64(field, uint64(c.ID))
	return false, nil
}

// KillCursors runs killCursors on this router's cursors.
func (r *Router) KillCursors(ctx context.Context, op *Op) error {
	list, ok := op.Lookup("cursors")
	if !ok || list.Type != bson.TypeArray {
		return mongoerr.New(40414, "BSON field 'killCursors.cursors' is missing but a required field")
	}
	killed, missing := bsoncore.NewArrayBuilder(), bsoncore.NewArrayBuilder()
	it := wire.Doc(list.Value).Iter()
	var e wire.Elem
	for it.Next(&e) {
		id, ok := e.Int64()
		if !ok {
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'killCursors.cursors' must hold longs")
		}
		c, busy := r.cursors.remove(id)
		if c == nil {
			missing.AppendInt64(id)
			continue
		}
		if !busy {
			r.killShardCursors(ctx, c)
		}
		killed.AppendInt64(id)
	}
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsKilled", killed.Build())
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsNotFound", missing.Build())
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsAlive", emptyDoc)
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsUnknown", emptyDoc)
	op.Reply.OK()
	return nil
}
