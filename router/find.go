package router

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Find runs find.
func (r *Router) Find(ctx context.Context, op *Op) error {
	s, err := r.admitInsisted(ctx, op)
	if isOnView(err) {
		return r.readView(ctx, op, s.entry)
	}
	if err != nil {
		return err
	}
	if s.entry == nil {
		if err := r.refusedOnNothing(ctx, op); err != nil {
			return err
		}
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
	if len(s.shards) > 1 || s.marks(projectionOf(op)) {
		return r.scatterFind(ctx, op, &s, filter)
	}
	err = r.passFind(ctx, op, &s, filter)
	if isUnreachable(err) && isSet(op.Cmd.Body, "allowPartialResults") {
		c := r.newCursor(op, s.entry, s.ns)
		c.missed = true
		return r.firstBatch(ctx, op, c, 0)
	}
	return err
}

// passFind runs find on one shard.
func (r *Router) passFind(ctx context.Context, op *Op, s *scope, filter bson.Raw) error {
	if !s.leavesOut() {
		return r.passCursor(ctx, op, s, &patch{})
	}
	own, err := s.narrow(&patch{}, "filter", filter)
	if err != nil {
		return err
	}
	return r.passCursor(ctx, op, s, own.at(0))
}

// findOptions are the options of find that a scatter must see.
type findOptions struct {
	skip, limit, batch int64
	hasBatch, single   bool
	projection         wire.Doc
	ordering
}

// ordering is what orders the results of a read.
type ordering struct {
	sort wire.Doc
	near bool // the filter orders by distance
}

// order says for each field of the merge's sort key whether it descends; empty where
// there is nothing to sort by.
func (o *ordering) order() []bool {
	if o.near && len(o.sort) <= len(emptyDoc) {
		return []bool{false}
	}
	return sortOrder(o.sort)
}

// sortKeyMeta is the metadata by which shards show an order.
func (o *ordering) sortKeyMeta() string {
	if o.near && len(o.sort) <= len(emptyDoc) {
		return "geoNearDistance"
	}
	return "sortKey"
}

func parseFindOptions(op *Op, filter bson.Raw) (o findOptions, err error) {
	o.near = target.HasNear(filter)
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
		if o.single, ok = e.Bool(); !ok {
			return o, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'find.singleBatch' is the wrong type '%s', expected type 'bool'", TypeName(e.Type))
		}
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
func (r *Router) scatterFind(ctx context.Context, op *Op, s *scope, filter bson.Raw) error {
	o, err := parseFindOptions(op, filter)
	if err != nil {
		return err
	}
	if e, ok := op.Lookup("tailable"); ok {
		if t, _ := e.Bool(); t {
			return mongoerr.New(mongoerr.BadValue, "error processing query: tailable cursor requested on non capped collection")
		}
	}
	// Without the API's arguments, as the router's getMores are.
	p := &patch{drop: wire.ArgAPI, skip: []string{"skip", "limit", "singleBatch", "batchSize", "allowPartialResults"}, seqs: true}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	args, err := scatterFindArgs(&o, p)
	if err != nil {
		return err
	}
	p.extra = args
	c := r.newCursor(op, s.entry, s.ns)
	c.mayMiss = isSet(op.Cmd.Body, "allowPartialResults")
	c.atTime = r.oneTime(op, p)
	c.skip, c.limit, c.single = o.skip, -1, o.single
	if o.limit > 0 {
		c.limit = o.limit
	}
	c.order = o.order()
	var own patches
	if c.marks = s.marks(o.projection); c.marks {
		own, err = s.mark(p, &o, args)
	} else {
		own, err = s.narrow(p, "filter", filter)
	}
	if err != nil {
		return err
	}
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, i int) []byte { return r.appendMessage(dst, op, own.at(i)) })
	if err := r.openParts(ctx, op, c, answers); err != nil {
		return err
	}
	n := int64(defaultBatch)
	if o.hasBatch {
		n = o.batch
	}
	return r.firstBatch(ctx, op, c, n)
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
	if len(o.order()) == 0 {
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
	b = bsoncore.AppendStringElement(b, "$meta", o.sortKeyMeta())
	b, _ = bsoncore.AppendDocumentEnd(b, meta)
	b, _ = bsoncore.AppendDocumentEnd(b, at)
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
		meta := e.Type == bson.TypeEmbeddedDocument // {$meta: …}: the best come first
		order = append(order, meta || ok && n < 0)
	}
	return order
}

// openParts makes the answers' cursors parts of c; after a failure all are closed.
func (r *Router) openParts(ctx context.Context, op *Op, c *Cursor, answers []answer) error {
	var err error
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			r.release(op, &a.sent)
			if !c.misses(a.err) && err == nil {
				err = a.err
			}
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
// a cursor, unless it is single.
func (r *Router) firstBatch(ctx context.Context, op *Op, c *Cursor, n int64) error {
	c.busy = true // killCursors and the end of the session must leave its parts to us
	r.cursors.add(r.Self().Number, c)
	return r.mergedBatch(ctx, op, c, "firstBatch", n)
}

// mergedBatch answers with the next n documents of a merged cursor that is checked out,
// and checks it in.
func (r *Router) mergedBatch(ctx context.Context, op *Op, c *Cursor, name string, n int64) error {
	done, err := r.nextBatch(ctx, op, c, name, n)
	if err == nil {
		op.Reply.OK()
	}
	r.checkIn(ctx, c, done || err != nil)
	return err
}

// checkIn gives a cursor back; what it has open on shards is closed if it is done, or
// was killed meanwhile.
func (r *Router) checkIn(ctx context.Context, c *Cursor, done bool) {
	if r.cursors.checkIn(c, done) || done {
		r.killShardCursors(ctx, c)
	}
}
