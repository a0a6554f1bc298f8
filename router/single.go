package router

import (
	"context"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// single is a write of one document whose filter does not say on which shard it lies:
// updateOne, replaceOne, deleteOne, findAndModify, and upserts without the whole shard
// key. A document is chosen first, then written by its _id and shard key and the filter;
// if it does not match any more, another one is chosen (PROTOCOL.md "More rules" 9). A
// write with a transaction number notes its choice in a claim before it acts, so that
// every repetition, at any router, acts on the same document.
type single struct {
	entry    *Entry
	coll     string
	filter   wire.Doc
	by       ordering  // of the documents that match; without one any will do
	shards   []string  // that the filter may reach
	stmt     int32     // the statement's number
	meaning  []byte    // elements on which the filter's meaning depends: collation, let, hint
	upsert   []byte    // elements of the same write as findAndModify; nil: it does not upsert
	projects wire.Elem // how the reply shows an inserted document; zero: whole, or not at all

	rekeys bool      // it may change the shard key
	until  time.Time // when to end trying
	do     singleKind
}

// singleKind is the command that a single write is, or is part of.
type singleKind interface {
	// write runs the write on a shard, by another filter than the client's, and takes in
	// its result, unless it wrote nothing.
	write(ctx context.Context, op *Op, w *single, shard string, filter []byte) (n int64, err error)
	// command is the write's first element and all that belongs to it, with another filter.
	command(op *Op, w *single, filter []byte) []byte
	// took takes in a shard's reply to command.
	took(op *Op, shard string, reply wire.Doc) error
	// inserted takes in that the upsert has inserted a document; unconfirmed is the shard's
	// writeConcernError, absent where there is none.
	inserted(op *Op, c choice, unconfirmed wire.Elem)
	// nothing takes in that there is nothing to write.
	nothing(op *Op)
}

// choice is what a single write is to do.
type choice struct {
	Attempt int32    `bson:"attempt"`
	Shard   string   `bson:"shard"` // "": there is nothing to do
	Filter  bson.Raw `bson:"filter,omitempty"`
	Insert  bson.Raw `bson:"insert,omitempty"`
	Value   bson.Raw `bson:"value,omitempty"` // of the reply to a findAndModify that inserts
	Aside   bulky    `bson:"aside"`           // Insert and Value, where they are too long for a claim
}

// errSingleInTxn refuses what would need transactions over several shards.
var errSingleInTxn = notYet("in a transaction, a write of one document whose filter does not hold the shard key, or that may change it")

// writeSingle runs a single write outside transactions.
func (r *Router) writeSingle(ctx context.Context, op *Op, w *single) error {
	w.until = time.Now().Add(r.opts.RetryTimeout)
	for attempt := int32(0); time.Now().Before(w.until); {
		at, done, err := r.attemptSingle(ctx, op, w, attempt)
		switch {
		case err != nil && !(op.Txn.Present && r.mayPass(op, err)):
			return err
		case err != nil && (time.Now().After(w.until) || !sleep(ctx, 50*time.Millisecond)):
			return err
		case err != nil: // once more, by the claim if there is one
		case done:
			return nil
		default:
			attempt = at + 1
		}
		if late := op.Expired(); late != nil {
			return late
		}
	}
	return errContended
}

// errContended ends a single write that others prevent.
var errContended = mongoerr.New(mongoerr.WriteConflict, "the documents that match are changed by others all the time")

// backOff waits before another try, longer each time; false if there is to be none.
func (w *single) backOff(ctx context.Context, op *Op, wait *time.Duration) bool {
	*wait = min(max(2*(*wait), time.Millisecond), 50*time.Millisecond)
	return time.Now().Before(w.until) && op.Expired() == nil && sleep(ctx, *wait)
}

// mayPass reports whether a failure is one of a shard that is away for a moment.
func (r *Router) mayPass(op *Op, err error) bool {
	return r.mayRepeat(op, err, &backend.Request{}) || mongoerr.CodeOf(err).Retriable()
}

// attemptSingle chooses a document and writes it; at is the attempt that it came to, as
// an earlier run of this write may have come further than this one.
func (r *Router) attemptSingle(ctx context.Context, op *Op, w *single, attempt int32) (at int32, done bool, err error) {
	c, err := r.choose(ctx, op, w)
	if err != nil {
		return attempt, false, err
	}
	c.Attempt = attempt
	if op.Txn.Present {
		if c, err = r.claim(ctx, op, w, c); err != nil {
			return attempt, false, err
		}
	}
	done, err = r.carryOut(ctx, op, w, c)
	return c.Attempt, done, err
}

// carryOut does what was chosen; done is false if the document does not match any more.
func (r *Router) carryOut(ctx context.Context, op *Op, w *single, c choice) (done bool, err error) {
	if c.Shard == "" {
		w.do.nothing(op)
		return true, nil
	}
	if op.reshaped && c.Insert == nil {
		if done, over, err := r.ranReshaped(ctx, op, w, c); over || err != nil {
			return done, err
		}
	}
	owned, err := w.isOwned(&c)
	if err != nil {
		return false, err
	}
	if w.rekeys && c.Insert == nil {
		return r.rekey(ctx, op, w, c, owned)
	}
	own := op.Session
	op.Session.ID = attemptSession(own.ID, c.Attempt)
	defer func() { op.Session = own }()
	if !owned {
		if ran, err := r.ranElsewhere(ctx, op, w, c.Shard); !ran || err != nil {
			return false, err
		}
	}
	if c.Insert != nil {
		return true, r.unblocked(ctx, op, w.entry, c.Shard, newcomer{doc: c.Insert, whole: true}, func() error { return r.insertSingle(ctx, op, w, c) })
	}
	filter := conjunction(w.filter, c.Filter)
	n, err := w.do.write(ctx, op, w, c.Shard, filter)
	if err != nil || n > 0 || !op.Txn.Present {
		return n > 0, err
	}
	ran, err := r.closeAttempt(ctx, op, w, c.Shard)
	if err != nil || !ran {
		return false, err
	}
	// An earlier run of the same attempt has come in between: the shard knows its result.
	n, err = w.do.write(ctx, op, w, c.Shard, filter)
	return n > 0, err
}

// isOwned reports whether a chosen document belongs to the shard that was chosen with it. A
// claim may be of before its chunk moved, or of another key, by which it belongs nowhere.
func (w *single) isOwned(c *choice) (bool, error) {
	if c.Insert != nil {
		owner, err := w.entry.ownerOf(c.Insert)
		return err == nil && owner[0] == c.Shard, err
	}
	owner, err := w.entry.ownerOfIdentity(c.Filter)
	return owner == c.Shard, err
}

// ownerOfIdentity is the shard of a document by the filter that identity made of it.
func (e *Entry) ownerOfIdentity(filter bson.Raw) (string, error) {
	if !e.Sharded() {
		return e.Home(), nil
	}
	var buf [128]byte
	key := buf[:0]
	p := e.Table.Pattern()
	for i := range p.Len() {
		f := p.Field(i)
		path, below := []string{f.Name}, f.Path()
		if below[0] == "_id" {
			path = below[:1]
		}
		cond, err := filter.LookupErr(path...)
		if err != nil {
			return "", nil //nolint:nilerr // it is of another key: nobody's
		}
		value := []string{"$eq"}
		if below[0] == "_id" {
			value = append(value, below[1:]...)
		}
		t, v, found, err := shardkey.Lookup(cond.Value, value)
		switch {
		case err != nil:
			return "", mongoerr.Wrap(mongoerr.InternalError, err, "the choice of an earlier try has no key")
		case found:
		case path[0] == "_id" || cond.Document().Lookup("$type").IsZero():
			t, v = bson.TypeNull, nil
		default:
			t, v = bson.TypeUndefined, nil
		}
		key = p.AppendField(key, i, t, v)
	}
	return e.owner(key)[0], nil
}

// ranElsewhere reports whether an attempt ran on a shard that its document has left: then
// that one knows what it did. If not, it never will.
func (r *Router) ranElsewhere(ctx context.Context, op *Op, w *single, shard string) (bool, error) {
	if !op.Txn.Present {
		return false, nil
	}
	ask := *op
	ask.stmtIDs, ask.stmtID = nil, w.stmt
	ids, err := r.probe(ctx, &ask, shard, 1)
	if err != nil {
		return false, err
	}
	if len(ids) == 0 {
		ran, err := r.closeAttempt(ctx, op, w, shard)
		return ran, err
	}
	closed, err := r.isClosed(ctx, op, w, shard)
	return !closed, err
}

// conjunction makes {$and: [a, b]}.
func conjunction(a, b []byte) []byte {
	list := bsoncore.NewArrayBuilder().AppendDocument(a).AppendDocument(b).Build()
	return bsoncore.BuildDocument(nil, bsoncore.AppendArrayElement(nil, "$and", list))
}

// choose finds a document that the write may change, the first by its sort if it has
// one; if there is none, an upsert's new document.
func (r *Router) choose(ctx context.Context, op *Op, w *single) (c choice, err error) {
	read := *op
	read.Write, read.lost = false, nil
	elems, err := w.finds()
	if err != nil {
		return c, err
	}
	answers := r.scatter(ctx, &read, w.shards, func(dst []byte, i int) []byte { return r.appendElems(dst, &read, elems[i]) })
	op.Trace = read.Trace
	defer r.releaseAll(op, answers)
	if err := firstError(answers); err != nil {
		return c, err
	}
	order := w.by.order()
	var best wire.Doc
	first := rand.IntN(len(answers)) // those who look for any document are not to meet at one
	for i := range answers {
		i = (first + i) % len(answers)
		_, _, batch, err := cursorReply(answers[i].info.Cursor)
		if err != nil {
			return c, err
		}
		e, n := wire.FirstElem(batch)
		if n == 0 {
			continue
		}
		if d := wire.Doc(e.Value); best == nil || len(order) > 0 && less(d, best, order) {
			best, c.Shard = d, answers[i].shard
		}
	}
	switch {
	case best != nil:
		c.Filter, err = identity(w.entry, best)
	case w.upsert != nil:
		err = r.chooseInsert(ctx, op, w, &c)
	}
	return c, err
}

// find is the command by which a shard offers one document.
func (w *single) find(filter []byte) []byte {
	b := bsoncore.AppendStringElement(nil, "find", w.coll)
	b = bsoncore.AppendDocumentElement(b, "filter", filter)
	b = bsoncore.AppendInt64Element(b, "limit", 1)
	b = bsoncore.AppendBooleanElement(b, "singleBatch", true)
	b = append(b, w.meaning...)
	if len(w.by.sort) > 0 {
		b = bsoncore.AppendDocumentElement(b, "sort", bsoncore.Document(w.by.sort))
	}
	at, b := bsoncore.AppendDocumentElementStart(b, "projection")
	for _, path := range identifying(w.entry) {
		b = bsoncore.AppendInt32Element(b, path.Name, 1)
	}
	if len(w.by.order()) > 0 {
		meta, d := bsoncore.AppendDocumentElementStart(b, sortKeyField)
		d = bsoncore.AppendStringElement(d, "$meta", w.by.sortKeyMeta())
		b, _ = bsoncore.AppendDocumentEnd(d, meta)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	return b
}

// namedPath is a field's dotted name and its parts.
type namedPath struct {
	Name  string
	Parts []string
}

// identifying lists the fields that together name one document: _id and the shard key.
func identifying(e *Entry) []namedPath {
	list := []namedPath{{"_id", []string{"_id"}}}
	p := e.Table.Pattern()
	for i := range p.Len() {
		if f := p.Field(i); f.Path()[0] != "_id" {
			list = append(list, namedPath{f.Name, f.Path()})
		}
	}
	return list
}

// identity is the filter that only this document matches.
func identity(e *Entry, doc []byte) (bson.Raw, error) {
	var b []byte
	for _, path := range identifying(e) {
		t, value, found, err := shardkey.Lookup(doc, path.Parts)
		if err != nil {
			return nil, mongoerr.Wrap(mongoerr.InternalError, err, "the document has no key")
		}
		if !found {
			t, value = bson.TypeNull, nil
		}
		at, d := bsoncore.AppendDocumentElementStart(b, path.Name)
		if t == bson.TypeUndefined { // which nothing can be compared to
			d = bsoncore.AppendInt32Element(d, "$type", int32(t))
		} else {
			d = append(bsoncore.AppendHeader(d, bsoncore.Type(t), "$eq"), value...)
		}
		b, _ = bsoncore.AppendDocumentEnd(d, at)
	}
	return bson.Raw(bsoncore.BuildDocument(nil, b)), nil
}

// insertSingle inserts an upsert's document where it belongs.
func (r *Router) insertSingle(ctx context.Context, op *Op, w *single, c choice) error {
	b := bsoncore.AppendStringElement(nil, "insert", w.coll)
	b = bsoncore.AppendArrayElement(b, "documents", bsoncore.NewArrayBuilder().AppendDocument(bsoncore.Document(c.Insert)).Build())
	if op.Txn.Present {
		b = bsoncore.AppendInt64Element(b, "txnNumber", op.Txn.Number)
		b = bsoncore.AppendInt32Element(b, "stmtId", w.stmt)
	}
	if wc, ok := op.Cmd.Arg(wire.ArgWriteConcern); ok && op.Drop&wire.ArgWriteConcern == 0 {
		b = append(b, wc.Raw...)
	}
	for _, name := range []string{"bypassDocumentValidation", "comment"} {
		b = appendField(b, op.Cmd.Body, name)
	}
	id := UUID(w.entry.Coll.UUID)
	b = bsoncore.AppendBinaryElement(b, "collectionUUID", 4, id[:])
	answers := r.scatter(ctx, op, []string{c.Shard}, func(dst []byte, _ int) []byte { return r.appendElems(dst, op, b) })
	defer r.releaseAll(op, answers)
	if err := answers[0].err; err != nil {
		return err
	}
	if err := firstWriteError(answers[0].info.WriteErrors); err != nil {
		return err
	}
	w.do.inserted(op, c, answers[0].info.WCError)
	return nil
}

// firstWriteError makes the first of a reply's writeErrors an error of its own.
func firstWriteError(list wire.Elem) error {
	if list.Type != bson.TypeArray {
		return nil
	}
	first, _ := wire.Doc(list.Value).First()
	d, ok := first.Doc()
	if !ok {
		return nil
	}
	e := &mongoerr.Error{}
	it := d.Iter()
	var f wire.Elem
	for it.Next(&f) {
		switch string(f.Name) {
		case "index":
		case "code":
			n, _ := f.Int64()
			e.Code = mongoerr.Code(n)
		case "errmsg":
			e.Message, _ = f.Str()
		default:
			e.Extra = append(e.Extra, f.Raw...)
		}
	}
	return e
}

// collOf is the collection's name in a namespace.
func collOf(ns string) string { return ns[len(dbOf(ns))+1:] }
