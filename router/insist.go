package router

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// insisted checks the collectionUUID that a client sends with a command which the entry
// admits, nil for no collection: shards get the router's own in its place.
func (r *Router) insisted(op *Op, ns string, e *Entry) *mongoerr.Error {
	arg, given := op.Cmd.Arg(wire.ArgCollectionUUID)
	if !given || len(arg.Value) != 21 {
		return nil // commands have refused what is no UUID
	}
	var want UUID
	copy(want[:], arg.Value[5:])
	if e.isSeries() && seriesOf(ns) == "" {
		// As on a mongod: inserts do not look, other writes look at the buckets, and reads
		// at the view, which has none.
		switch {
		case string(op.Cmd.First.Name) == "insert":
			return nil
		case !op.Write:
			return r.otherCollection(ns, want)
		}
		ns = bucketsOf(ns)
	}
	return r.isCollection(ns, e, &want)
}

// admitInsisted is admit for a read that may say which collection it means.
func (r *Router) admitInsisted(ctx context.Context, op *Op) (scope, error) {
	s, err := r.admit(ctx, op)
	if err != nil && !isOnView(err) {
		return s, err
	}
	if other := r.insisted(op, s.ns, s.entry); other != nil {
		if err == nil {
			r.leave(s.entry)
		}
		return scope{}, other
	}
	return s, err
}

// wanted is isCollection for DDL, under the name's lock; a view is refused as what it is.
func (r *Router) wanted(ns string, want *UUID) error {
	e := r.snap.Load().named([]byte(ns))
	if e != nil && e.Coll.Kind == catalog.KindView {
		return nil
	}
	if other := r.isCollection(ns, e, want); other != nil {
		return other
	}
	return nil
}

// isCollection returns 361 if a client wants another collection than the entry's; nil wants any.
func (r *Router) isCollection(ns string, e *Entry, want *UUID) *mongoerr.Error {
	if want == nil || e != nil && e.Coll.UUID != uuid.Nil && UUID(e.Coll.UUID) == *want {
		return nil
	}
	return r.otherCollection(ns, *want)
}

// otherCollection is 361 CollectionUUIDMismatch, which names the collection of that UUID in
// the database.
func (r *Router) otherCollection(ns string, want UUID) *mongoerr.Error {
	db, coll := catalog.SplitNS(ns)
	err := mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified")
	b := bsoncore.AppendStringElement(nil, "db", db)
	b = bsoncore.AppendBinaryElement(b, "collectionUUID", 4, want[:])
	b = bsoncore.AppendStringElement(b, "expectedCollection", coll)
	for _, e := range r.snap.Load().Entries {
		if dbOf(e.Coll.NS) == db && e.Coll.UUID != uuid.Nil && UUID(e.Coll.UUID) == want {
			err.Extra = bsoncore.AppendStringElement(b, "actualCollection", strings.TrimPrefix(e.stored(), db+"."))
			return err
		}
	}
	err.Extra = bsoncore.AppendNullElement(b, "actualCollection")
	return err
}

// refuseAll answers a write none of whose statements may run: an ordered batch ends with the first.
func (r *Router) refuseAll(op *Op, kind writeKind, n int, err *mongoerr.Error) error {
	if op.Txn.InTxn {
		return err
	}
	index := make([]int, n)
	for i := range index {
		index[i] = i
	}
	var res writeResult
	res.addChildError(op, index, err)
	r.replyWrite(op, kind, true, &res)
	return nil
}
