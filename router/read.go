package router

import (
	"context"
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
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
}

// admit resolves the command's collection and passes the gate; leave ends it.
func (r *Router) admit(ctx context.Context, op *Op) (scope, error) {
	var buf [maxNS + 1]byte
	ns, err := op.NS(buf[:0])
	if err != nil {
		return scope{}, err
	}
	e, err := r.enter(ctx, ns, op.Deadline)
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
		r.leave(e)
		return scope{}, notYet("operations on views")
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
		return nil
	}
	t, err := target.Query(e.Table.Pattern(), e.Table, filter, collated)
	if err != nil {
		return mongoerr.Wrap(mongoerr.BadValue, err, "could not target the query")
	}
	s.exact = t.Exact
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
	case bson.TypeDateTime:
		return "date"
	case bson.TypeDecimal128:
		return "decimal"
	default:
		return t.String()
	}
}

// Find runs find.
func (r *Router) Find(ctx context.Context, op *Op) error {
	s, err := r.admit(ctx, op)
	if err != nil {
		return err
	}
	if s.entry == nil {
		return r.emptyCursor(op, s.ns)
	}
	defer r.leave(s.entry)
	filter, err := filterOf(op, "filter")
	if err != nil {
		return err
	}
	if err := r.route(&s, op, filter); err != nil {
		return err
	}
	if len(s.shards) == 1 {
		return r.passCursor(ctx, op, &s, &patch{})
	}
	return r.scatterFind(ctx, op, &s)
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
	b, _ = bsoncore.AppendDocumentEnd(b, at) //nolint:errcheck // at is a start
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
	c := r.newCursor(op, dbOf(s.ns)+"."+coll)
	c.parts = []*part{{shard: s.shards[0], addr: addr, id: id, coll: coll}}
	c.limit = -1
	r.cursors.add(r.Self().Number, c)
	binary.LittleEndian.PutUint64(field, uint64(c.ID))
	return nil
}

func (r *Router) newCursor(op *Op, ns string) *Cursor {
	c := &Cursor{NS: ns, Session: op.Session, TxnNumber: -1, limit: -1}
	if op.Txn.InTxn {
		c.TxnNumber = op.Txn.Number
	}
	if e, ok := op.Lookup("noCursorTimeout"); ok {
		c.noTimeout, _ = e.Bool()
	}
	return c
}

// findOptions are the options of find that a scatter must see.
type findOptions struct {
	skip, limit, batch int64
	hasBatch, single   bool
	sort               wire.Doc
	projection         wire.Doc
}

func parseFindOptions(op *Op) (o findOptions, err error) {
	for _, f := range []struct {
		name string
		to   *int64
	}{{"skip", &o.skip}, {"limit", &o.limit}, {"batchSize", &o.batch}} {
		e, ok := op.Lookup(f.name)
		if !ok {
			continue
		}
		if *f.to, ok = e.Int64(); !ok {
			return o, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'find.%s' is the wrong type '%s', expected types '[long, int, decimal, double']", f.name, TypeName(e.Type))
		}
		if *f.to < 0 {
			return o, mongoerr.Newf(51024, "BSON field '%s' value must be >= 0, actual value '%d'", f.name, *f.to)
		}
		o.hasBatch = o.hasBatch || f.name == "batchSize"
	}
	if e, ok := op.Lookup("singleBatch"); ok {
		o.single, _ = e.Bool()
	}
	if e, ok := op.Lookup("sort"); ok {
		o.sort, _ = e.Doc()
	}
	if e, ok := op.Lookup("projection"); ok {
		o.projection, _ = e.Doc()
	}
	if o.limit > 0 && o.skip > math.MaxInt64-o.limit {
		return o, mongoerr.New(mongoerr.Overflow, "sum of limit and skip cannot be represented as a 64-bit integer")
	}
	return o, nil
}

// defaultBatch is how many documents a first batch has unless told (MONGOS.md §3.1).
const defaultBatch = 101

// scatterFind asks several shards and merges: by sort key where there is a sort, as
// they come otherwise.
func (r *Router) scatterFind(ctx context.Context, op *Op, s *scope) error {
	o, err := parseFindOptions(op)
	if err != nil {
		return err
	}
	if e, ok := op.Lookup("tailable"); ok {
		if t, _ := e.Bool(); t {
			return mongoerr.New(mongoerr.BadValue, "error processing query: tailable cursor requested on non capped collection")
		}
	}
	p := &patch{skip: []string{"skip", "limit", "singleBatch", "batchSize"}, seqs: true}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	p.extra, err = scatterFindArgs(&o, p)
	if err != nil {
		return err
	}
	c := r.newCursor(op, s.ns)
	c.skip, c.limit = o.skip, -1
	if o.limit > 0 {
		c.limit = o.limit
	}
	c.order = sortOrder(o.sort)
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, _ int) []byte { return r.appendMessage(dst, op, p) })
	if err := r.openParts(ctx, op, c, answers); err != nil {
		return err
	}
	n := int64(defaultBatch)
	if o.hasBatch {
		n = o.batch
	}
	return r.firstBatch(ctx, op, c, n, o.single)
}

// scatterFindArgs are the options for each shard: skip and limit become one limit,
// a sort asks for its keys.
func scatterFindArgs(o *findOptions, p *patch) (extra []byte, err error) {
	if o.limit > 0 {
		extra = bsoncore.AppendInt64Element(extra, "limit", o.limit+o.skip)
	}
	if o.hasBatch {
		extra = bsoncore.AppendInt64Element(extra, "batchSize", o.batch)
	}
	if len(sortOrder(o.sort)) == 0 {
		return extra, nil
	}
	if o.projection != nil {
		if _, ok := o.projection.Lookup(sortKeyField); ok {
			return nil, mongoerr.New(mongoerr.BadValue, "Projection contains illegal field '$sortKey'")
		}
	}
	p.skip = append(p.skip, "projection")
	at, b := bsoncore.AppendDocumentElementStart(extra, "projection")
	if o.projection != nil {
		b = append(b, o.projection[4:len(o.projection)-1]...)
	}
	meta, b := bsoncore.AppendDocumentElementStart(b, sortKeyField)
	b = bsoncore.AppendStringElement(b, "$meta", "sortKey")
	b, _ = bsoncore.AppendDocumentEnd(b, meta) //nolint:errcheck // meta is a start
	b, _ = bsoncore.AppendDocumentEnd(b, at)   //nolint:errcheck // at is a start
	return b, nil
}

// sortOrder says for each field of a sort whether it descends; nil where there is
// nothing to sort by ($natural is no order over shards).
func sortOrder(sort wire.Doc) []bool {
	var order []bool
	it := sort.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if string(e.Name) == "$natural" {
			return nil
		}
		n, ok := e.Int64()
		order = append(order, ok && n < 0)
	}
	return order
}

// openParts makes the answers' cursors parts of c; after a failure all are closed.
func (r *Router) openParts(ctx context.Context, op *Op, c *Cursor, answers []answer) error {
	err := firstError(answers)
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			r.release(op, &a.sent)
			continue
		}
		p := &part{shard: a.shard, addr: a.addr, buf: a.buf}
		var perr error
		if p.id, p.coll, p.rest, perr = cursorReply(a.info.Cursor); perr != nil && err == nil {
			err = perr
		}
		c.parts = append(c.parts, p)
	}
	if err != nil {
		r.killShardCursors(ctx, c)
	}
	return err
}

// firstBatch answers with the first n documents of a merge and keeps what is left as
// a cursor, unless single.
func (r *Router) firstBatch(ctx context.Context, op *Op, c *Cursor, n int64, single bool) error {
	c.ID = 0
	r.cursors.add(r.Self().Number, c)
	id := c.ID
	if single {
		c.ID = 0
	}
	done, err := r.nextBatch(ctx, op, c, "firstBatch", n)
	if err != nil || done || single {
		r.cursors.remove(id)
		r.killShardCursors(ctx, c)
	}
	if err == nil {
		op.Reply.OK()
	}
	return err
}

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
	var done bool
	if c.merged() {
		if done, err = r.nextBatch(ctx, op, c, "nextBatch", n); err == nil {
			op.Reply.OK()
		}
	} else {
		done, err = r.passGetMore(ctx, op, c)
	}
	gone := done || err != nil
	if r.cursors.checkIn(c, gone) || gone {
		r.killShardCursors(ctx, c)
	}
	return err
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
