package router

import (
	"context"
	"encoding/binary"
	"maps"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// GetMore runs getMore on one of this router's cursors, or has the router do it that has
// the cursor.
func (r *Router) GetMore(ctx context.Context, op *Op) error {
	q, err := readGetMore(op)
	if err != nil {
		return err
	}
	c, err := r.cursors.checkOut(q.id)
	if mongoerr.CodeOf(err) == mongoerr.CursorNotFound && r.home(op, q.id) != 0 {
		return r.moreElsewhere(ctx, op, q.id)
	}
	if err != nil {
		return err
	}
	if err := checkCursor(op, c, string(op.Cmd.DB)+"."+q.coll); err != nil {
		r.cursors.checkIn(c, false)
		return err
	}
	if c.passes && r.hasMovedAway(ctx, c) {
		r.checkIn(ctx, c, true)
		return errHistoryMoved(c.NS)
	}
	if c.passes {
		done, err := r.passGetMore(ctx, op, c)
		if err == nil && r.hasMovedAway(ctx, c) {
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
	return r.mergedBatch(ctx, op, c, "nextBatch", q.batch)
}

// moreWanted is what a getMore asks for.
type moreWanted struct {
	id    int64
	coll  string
	batch int64 // -1: as many as fit
}

// readGetMore reads a getMore as strictly as a mongod does.
func readGetMore(op *Op) (q moreWanted, err error) {
	q.batch = -1
	named := false
	it := op.Cmd.Body.Iter()
	var e wire.Elem
	for first := true; it.Next(&e); first = false {
		n, isNumber := e.Int64()
		isNumber = isNumber || e.Type == bson.TypeDecimal128
		switch name := string(e.Name); {
		case first && e.IsNull():
			return q, mongoerr.New(40414, "BSON field 'getMore.getMore' is missing but a required field")
		case first && e.Type != bson.TypeInt64:
			return q, wrongField("getMore.getMore", e, " 'long'")
		case first:
			q.id = n
		case name == "maxTimeMS" && !e.IsNull() && !isNumber, name == "batchSize" && !e.IsNull() && !isNumber:
			return q, wrongField("getMore."+name, e, "s '[long, int, decimal, double']")
		case wire.IsGeneric(e.Name), e.IsNull(), name == "term", name == "lastKnownCommittedOpTime":
		case name == "collection":
			if q.coll, named = e.Str(); !named {
				return q, wrongField("getMore.collection", e, " 'string'")
			}
		case name == "batchSize":
			if n < 0 {
				return q, mongoerr.Newf(51024, "BSON field 'batchSize' value must be >= 0, actual value '%d'", n)
			}
			if n > 0 {
				q.batch = n
			}
		default:
			return q, mongoerr.Newf(40415, "BSON field 'getMore.%s' is an unknown field.", name)
		}
	}
	switch {
	case !named:
		return q, mongoerr.New(40414, "BSON field 'getMore.collection' is missing but a required field")
	case q.coll == "":
		return q, mongoerr.New(mongoerr.InvalidNamespace, "Collection names cannot be empty")
	}
	return q, it.Err()
}

// wrongField refuses a field of a wrong type; want are the types in quotes.
func wrongField(field string, e wire.Elem, want string) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type%s", field, TypeName(e.Type), want)
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

// KillCursors runs killCursors on this router's cursors, and has others do so on theirs.
func (r *Router) KillCursors(ctx context.Context, op *Op) error {
	ids, err := readKillCursors(op)
	if err != nil {
		return err
	}
	gone := map[int64]bool{}
	byHome := map[int][]int64{}
	for _, id := range ids {
		c, busy := r.cursors.remove(id)
		if c == nil {
			if home := r.home(op, id); home != 0 {
				byHome[home] = append(byHome[home], id)
			}
			continue
		}
		if !busy {
			r.killShardCursors(ctx, c)
		}
		gone[id] = true
	}
	if len(byHome) > 0 {
		maps.Copy(gone, r.killElsewhere(ctx, op, byHome))
	}
	killed, missing := bsoncore.NewArrayBuilder(), bsoncore.NewArrayBuilder()
	for _, id := range ids {
		if gone[id] {
			killed.AppendInt64(id)
			delete(gone, id) // named twice: it was there once
		} else {
			missing.AppendInt64(id)
		}
	}
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsKilled", killed.Build())
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsNotFound", missing.Build())
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsAlive", emptyDoc)
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "cursorsUnknown", emptyDoc)
	op.Reply.OK()
	return nil
}

// readKillCursors reads the ids of a killCursors as strictly as a mongod does: nothing is
// killed if one of them is none.
func readKillCursors(op *Op) ([]int64, error) {
	if _, err := op.NS(nil); err != nil {
		return nil, err
	}
	var list wire.Elem
	it := op.Cmd.Body.Iter()
	var e wire.Elem
	for first := true; it.Next(&e); first = false {
		switch {
		case first, wire.IsGeneric(e.Name):
		case string(e.Name) == "cursors":
			list = e
		default:
			return nil, mongoerr.Newf(40415, "BSON field 'killCursors.%s' is an unknown field.", e.Name)
		}
	}
	switch {
	case list.Type == 0:
		return nil, mongoerr.New(40414, "BSON field 'killCursors.cursors' is missing but a required field")
	case list.IsNull():
		return nil, mongoerr.New(10065, "invalid parameter: expected an object (cursors)")
	case list.Type != bson.TypeArray:
		return nil, wrongField("killCursors.cursors", list, " 'array'")
	}
	var ids []int64
	in := wire.Doc(list.Value).Iter()
	for in.Next(&e) {
		if e.Type != bson.TypeInt64 {
			return nil, wrongField("killCursors.cursors."+string(e.Name), e, " 'long'")
		}
		id, _ := e.Int64()
		ids = append(ids, id)
	}
	return ids, in.Err()
}
