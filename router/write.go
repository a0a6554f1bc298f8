package router

import (
	"context"
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// statement is one write of a client's batch.
type statement struct {
	aim
	doc []byte          // as the shard is to get it
	err *mongoerr.Error // it cannot be targeted
}

// writeKind is one of the three batch commands.
type writeKind struct {
	name           string
	field          string // of the statements
	insert, update bool
}

func kindOf(name []byte) writeKind {
	switch string(name) {
	case "insert":
		return writeKind{name: "insert", field: "documents", insert: true}
	case "update":
		return writeKind{name: "update", field: "updates", update: true}
	default:
		return writeKind{name: "delete", field: "deletes"}
	}
}

// Write runs insert, update or delete. Every statement goes to the owners of its
// keys only; parts of one command run under one routing table.
func (r *Router) Write(ctx context.Context, op *Op) error {
	kind := kindOf(op.Cmd.First.Name)
	docs, n, err := statements(op, kind.field)
	if err != nil {
		return err
	}
	if err := readStmtIDs(op, n); err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := r.writeOnce(ctx, op, kind, docs, n)
		if attempt > 0 || mongoerr.CodeOf(err) != mongoerr.CollectionUUIDMismatch {
			return err
		}
		// The table is older than the collection: load and try once more
		// (nothing was written).
		if rerr := r.Refresh(ctx); rerr != nil {
			return err
		}
		op.Reply.Reset()
	}
}

func (r *Router) writeOnce(ctx context.Context, op *Op, kind writeKind, docs []byte, n int) error {
	s, err := r.admit(ctx, op)
	if err != nil {
		return err
	}
	if other := r.insisted(op, s.ns, s.entry); other != nil {
		r.leaveAs(s.entry, op.Write)
		return r.refuseAll(op, kind, n, other)
	}
	if s.entry == nil {
		if !kind.insert && !anyUpsert(docs) {
			return r.nothingWritten(ctx, op, kind)
		}
		if s, err = r.createAndAdmit(ctx, op, s.ns); err != nil {
			return err
		}
	}
	defer func() { r.finish(ctx, op, s.entry) }()
	var stmts []statement
	if s.entry.Sharded() {
		if stmts, err = r.targetStatements(op, kind, &s, docs, n); err != nil {
			return err
		}
	}
	ran, again, err := r.ranBefore(ctx, op, s.entry, n, stmts)
	if err != nil {
		return err
	}
	if len(ran) == 0 && !s.entry.Sharded() && !op.reshaped && passable(op, kind, docs) {
		return r.passWrite(ctx, op, &s)
	}
	if !s.entry.Sharded() {
		if stmts, err = r.targetStatements(op, kind, &s, docs, n); err != nil {
			return err
		}
	}
	if again {
		if err := r.sendBack(ctx, op, s.entry, stmts, ran, kind.insert); err != nil {
			return err
		}
	}
	if shard, ok := oneShard(stmts); ok {
		s.shards = shard
		if passable(op, kind, docs) && !s.entry.hasUnowned(shard[0]) {
			return r.passWrite(ctx, op, &s)
		}
	}
	return r.writeBatches(ctx, op, &batch{kind: kind, entry: s.entry, stmts: stmts})
}

// createAttempts bounds how often a write makes its collection anew while others drop
// it.
const createAttempts = 10

// createAndAdmit makes the namespace that a write names for the first time, again if
// it is dropped before the write has begun.
func (r *Router) createAndAdmit(ctx context.Context, op *Op, ns string) (s scope, err error) {
	if op.Txn.InTxn {
		return s, notYet("creating a collection inside a transaction")
	}
	for range createAttempts {
		if err := r.CreateImplicitly(ctx, ns); err != nil {
			return s, err
		}
		if s, err = r.admit(ctx, op); err != nil || s.entry != nil {
			return s, err
		}
	}
	return s, mongoerr.New(mongoerr.ConflictingOperationInProgress, "the collection is dropped again and again")
}

// statements returns a batch's documents, one after another, and their number.
func statements(op *Op, field string) (docs []byte, n int, err error) {
	has := false
	if op.Msg != nil {
		docs, has = op.Msg.Sequence(field)
	}
	if e, ok := op.Cmd.Body.Lookup(field); ok {
		has = true
		if docs != nil {
			return nil, 0, mongoerr.Newf(40433, "In OP_MSG requests, field '%s' is in both the body and a sequence", field)
		}
		if docs, err = joinArray(op, field, e); err != nil {
			return nil, 0, err
		}
	}
	for rest := docs; len(rest) > 0; n++ {
		rest = rest[binary.LittleEndian.Uint32(rest):]
	}
	if !has {
		return nil, 0, mongoerr.Newf(40414, "BSON field '%s.%s' is missing but a required field", op.Cmd.First.Name, field)
	}
	if n == 0 || n > wire.MaxBatch {
		return nil, 0, mongoerr.Newf(mongoerr.InvalidLength, "Write batch sizes must be between 1 and %d. Got %d operations.", wire.MaxBatch, n)
	}
	return docs, n, nil
}

func joinArray(op *Op, field string, e wire.Elem) ([]byte, error) {
	if e.Type != bson.TypeArray {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'array'", op.Cmd.First.Name, field, TypeName(e.Type))
	}
	var docs []byte
	it := wire.Doc(e.Value).Iter()
	var d wire.Elem
	for it.Next(&d) {
		if d.Type != bson.TypeEmbeddedDocument {
			return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s.%s' is the wrong type '%s', expected type 'object'", op.Cmd.First.Name, field, d.Name, TypeName(d.Type))
		}
		docs = append(docs, d.Value...)
	}
	return docs, it.Err()
}

// envelopeRoom is more than what a command can grow by on its way to a shard.
const envelopeRoom = 1024

// passable reports whether a shard can be given the client's message as it is, with what
// the router adds. A client may fill a message to the last byte; a shard closes the
// connection on a longer one.
func passable(op *Op, kind writeKind, docs []byte) bool {
	if op.Msg != nil && int(op.Msg.Length) > wire.MaxMessageLen-envelopeRoom {
		return false
	}
	return !kind.insert || insertable(docs)
}

// insertable reports whether all documents can be stored as they are: they have an
// _id and no timestamp that a server would fill.
func insertable(docs []byte) bool {
	for len(docs) > 0 {
		n := binary.LittleEndian.Uint32(docs)
		if !storable(docs[:n]) {
			return false
		}
		docs = docs[n:]
	}
	return true
}

func storable(doc wire.Doc) bool {
	it := doc.Iter()
	var e wire.Elem
	hasID := false
	for it.Next(&e) {
		hasID = hasID || string(e.Name) == "_id"
		if e.Type == bson.TypeTimestamp && binary.LittleEndian.Uint64(e.Value) == 0 && string(e.Name) != "_id" {
			return false
		}
	}
	return hasID
}

// stored returns a document as it is to be stored: an absent _id comes first, and
// top-level empty timestamps take the current time, before targeting, because a
// shard would do it after (DESIGN.md "A request's way").
func (r *Router) stored(doc wire.Doc) ([]byte, error) {
	if storable(doc) {
		return doc, nil
	}
	at, out := wire.AppendDocStart(make([]byte, 0, len(doc)+32))
	if _, ok := doc.Lookup("_id"); !ok {
		out = bsoncore.AppendObjectIDElement(out, "_id", bson.NewObjectID())
	}
	it := doc.Iter()
	var e wire.Elem
	for it.Next(&e) {
		from := len(out)
		out = append(out, e.Raw...)
		if e.Type == bson.TypeTimestamp && binary.LittleEndian.Uint64(e.Value) == 0 && string(e.Name) != "_id" {
			binary.LittleEndian.PutUint64(out[from+len(e.Raw)-8:], r.freshTime())
		}
	}
	return wire.AppendDocEnd(out, at), it.Err()
}

// freshTime is a timestamp for a document: now, unique within this router.
func (r *Router) freshTime() uint64 {
	now := uint64(time.Now().Unix()) << 32
	for {
		last := r.lastTime.Load()
		next := max(now, last) + 1
		if r.lastTime.CompareAndSwap(last, next) {
			return next
		}
	}
}

func (r *Router) targetStatements(op *Op, kind writeKind, s *scope, docs []byte, n int) ([]statement, error) {
	stmts := make([]statement, 0, n)
	for len(docs) > 0 {
		l := binary.LittleEndian.Uint32(docs)
		doc := wire.Doc(docs[:l:l])
		docs = docs[l:]
		st := statement{doc: doc}
		if err := kind.check(doc); err != nil {
			return nil, err
		}
		var err error
		switch {
		case kind.insert:
			if st.doc, err = r.stored(doc); err != nil {
				return nil, err // what cannot be read to its end is not cut off
			}
			st.shards, err = s.entry.ownerOf(st.doc)
		case kind.update:
			st.aim, err = s.entry.targetUpdate(doc)
		default:
			st.aim, err = s.entry.targetDelete(doc)
		}
		if len(st.shards) > 1 {
			op.Trace.Why = st.why
		}
		if st.way != wayDirect && op.Txn.InTxn {
			err = errSingleInTxn
		}
		if mongoerr.CodeOf(err) == mongoerr.NotImplemented {
			return nil, err // a refusal is for the whole command: it is not half done
		}
		if err != nil {
			st.err = mongoerr.As(err)
		}
		stmts = append(stmts, st)
	}
	return stmts, nil
}

func oneShard(stmts []statement) ([]string, bool) {
	for i := range stmts {
		if stmts[i].err != nil || stmts[i].way != wayDirect || len(stmts[i].shards) != 1 || stmts[i].shards[0] != stmts[0].shards[0] {
			return nil, false
		}
	}
	return stmts[0].shards, true
}

func anyUpsert(docs []byte) bool {
	for len(docs) > 0 {
		n := binary.LittleEndian.Uint32(docs)
		if isSet(docs[:n], "upsert") {
			return true
		}
		docs = docs[n:]
	}
	return false
}

// passWrite forwards the whole command to one shard.
func (r *Router) passWrite(ctx context.Context, op *Op, s *scope) error {
	if len(s.shards) == 0 {
		s.shards = s.entry.Table.Shards()
	}
	id := UUID(s.entry.Coll.UUID)
	p := &patch{seqs: true, uuid: &id}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	info, _, err := r.forward(ctx, op, s.shards[0], p)
	if err != nil {
		return err
	}
	return mismatch(info.WriteErrors)
}

// mismatch returns 361 if the shard's collection is another than the table's: then
// nothing was written, whatever the number of statements.
func mismatch(writeErrors wire.Elem) error {
	if writeErrors.Type != bson.TypeArray {
		return nil
	}
	first, ok := wire.Doc(writeErrors.Value).First()
	if !ok {
		return nil
	}
	d, _ := first.Doc()
	code, ok := d.Lookup("code")
	if n, _ := code.Int64(); !ok || mongoerr.Code(n) != mongoerr.CollectionUUIDMismatch {
		return nil
	}
	msg, _ := d.Lookup("errmsg")
	text, _ := msg.Str()
	return mongoerr.New(mongoerr.CollectionUUIDMismatch, text)
}
