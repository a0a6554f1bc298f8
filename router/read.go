package router

import (
	"context"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// scope is what a command on one collection works with: the entry it was admitted
// by and the shards it needs.
type scope struct {
	entry  *Entry // nil: no such collection
	ns     string
	shards []string
	exact  bool

	streams bool // what is opened is a change stream
}

// admit resolves the command's collection and passes the gate; leave ends it, finish where
// the command writes. A view is an error (isOnView), with the view as the entry.
func (r *Router) admit(ctx context.Context, op *Op) (scope, error) {
	var buf [maxNS + 1]byte
	ns, err := op.NS(buf[:0])
	if err != nil {
		return scope{}, err
	}
	e, err := r.pass(ctx, ns, op.Deadline, op.Write)
	if err != nil {
		return scope{}, err
	}
	s := scope{entry: e}
	if e == nil {
		s.ns = string(ns)
		return s, nil
	}
	s.ns = e.Coll.NS
	if e.Coll.Kind == catalog.KindView {
		r.leaveAs(e, op.Write)
		return s, onView(e.Coll.NS)
	}
	if err := op.seeMove(e); err != nil {
		r.leaveAs(e, op.Write)
		return scope{ns: s.ns}, err
	}
	return s, nil
}

// route finds the shards that a filter needs.
func (r *Router) route(s *scope, op *Op, filter bson.Raw) error {
	e := s.entry
	if !e.Sharded() {
		s.shards = e.Table.Shards()
		s.exact = true
		return nil
	}
	var key [128]byte
	collated := Collated(op, e)
	if k, ok := target.ExactKey(e.Table.Pattern(), key[:0], filter, collated); ok {
		i := e.Table.ShardOf(e.Table.Find(k))
		s.shards = e.Table.Shards()[i : i+1]
		s.exact = true
		op.Trace.Why = target.WhyKey
		return nil
	}
	t, err := target.Query(e.Table.Pattern(), e.Table, filter, collated)
	if err != nil {
		return mongoerr.Wrap(mongoerr.BadValue, err, "could not target the query")
	}
	s.exact = t.Exact
	op.Trace.Why = t.Why
	if t.Shards.Len() == 1 {
		i := t.Shards.First()
		s.shards = e.Table.Shards()[i : i+1]
		return nil
	}
	s.shards = shardList(e, &t)
	return nil
}

func shardList(e *Entry, t *target.Targets) []string {
	list := make([]string, 0, t.Shards.Len())
	for i := range t.Shards.All() {
		list = append(list, e.Table.Shards()[i])
	}
	return list
}

// Collated reports whether strings compare by a collation other than simple: the
// command's own or else the collection's (MONGOS.md §2.4).
func Collated(op *Op, e *Entry) bool {
	c, ok := op.Lookup("collation")
	if !ok {
		return len(e.Coll.Collation) > 0
	}
	return collationIsNotSimple(c)
}

func collationIsNotSimple(c wire.Elem) bool {
	d, ok := c.Doc()
	if !ok {
		return true
	}
	l, ok := d.Lookup("locale")
	if !ok {
		return len(d) > 5
	}
	s, _ := l.Str()
	return s != "simple"
}

var emptyDoc = []byte{5, 0, 0, 0, 0}

// filterOf returns a command's filter document, empty if it is absent.
func filterOf(op *Op, field string) (bson.Raw, error) {
	e, ok := op.Lookup(field)
	if !ok {
		return emptyDoc, nil
	}
	d, ok := e.Doc()
	if !ok {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch,
			"BSON field '%s.%s' is the wrong type '%s', expected type 'object'", op.Cmd.First.Name, field, TypeName(e.Type))
	}
	return bson.Raw(d), nil
}

// TypeName is a BSON type's name as MongoDB's messages spell it.
func TypeName(t bson.Type) string {
	switch t {
	case bson.TypeDouble:
		return "double"
	case bson.TypeEmbeddedDocument:
		return "object"
	case bson.TypeBoolean:
		return "bool"
	case bson.TypeInt32:
		return "int"
	case bson.TypeInt64:
		return "long"
	case bson.TypeObjectID:
		return "objectId"
	case bson.TypeBinary:
		return "binData"
	case bson.TypeDateTime:
		return "date"
	case bson.TypeDecimal128:
		return "decimal"
	default:
		return t.String()
	}
}

func (r *Router) emptyCursor(op *Op, ns string) error {
	op.Reply.Elems = append(op.Reply.Elems, cursorElement("firstBatch", ns)...)
	op.Reply.OK()
	return nil
}

// cursorElement is an exhausted cursor without documents.
func cursorElement(batch, ns string) []byte {
	at, b := bsoncore.AppendDocumentElementStart(nil, "cursor")
	b = bsoncore.AppendArrayElement(b, batch, emptyDoc)
	b = bsoncore.AppendInt64Element(b, "id", 0)
	b = bsoncore.AppendStringElement(b, "ns", ns)
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	return b
}

// passCursor forwards a command whose reply is a cursor to one shard; a cursor left
// open there is the router's from now on.
func (r *Router) passCursor(ctx context.Context, op *Op, s *scope, p *patch) error {
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	p.seqs = true
	info, addr, err := r.forward(ctx, op, s.shards[0], p)
	if err != nil {
		return err
	}
	return r.keepCursor(op, s, info, addr)
}

// keepCursor registers the open cursor of a passed-through reply and patches its id.
func (r *Router) keepCursor(op *Op, s *scope, info wire.ShardReply, addr string) error {
	at := wire.CursorIDOffset(info.Cursor.Value)
	if at < 0 {
		return nil
	}
	field := info.Cursor.Value[at : at+8]
	id := int64(binary.LittleEndian.Uint64(field))
	if id == 0 {
		return nil
	}
	_, coll, _, err := cursorReply(info.Cursor)
	if err != nil {
		return err
	}
	reads := s.entry
	if s.streams {
		reads = nil // it reads the log
	}
	c := r.newCursor(op, reads, dbOf(s.ns)+"."+coll)
	c.parts = []*part{{shard: s.shards[0], addr: addr, id: id, coll: coll}}
	c.passes = true
	if s.streams {
		c.watches = s.entry
	}
	r.cursors.add(r.Self().Number, c)
	binary.LittleEndian.PutUint64(field, uint64(c.ID))
	return nil
}

// newCursor makes a client's cursor; reads is what it goes on to read by, nil if it does
// not matter how long it does.
func (r *Router) newCursor(op *Op, reads *Entry, ns string) *Cursor {
	c := &Cursor{NS: ns, reads: reads, Session: op.Session, TxnNumber: -1, api: apiArguments(op), limit: -1, buffers: op.Buffers}
	if op.Txn.InTxn {
		c.TxnNumber = op.Txn.Number
	}
	if e, ok := op.Lookup("noCursorTimeout"); ok {
		c.noTimeout, _ = e.Bool()
	}
	return c
}
