package router

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Distinct runs distinct: one shard's answer passes through; several are united and
// ordered by a real mongod, under the same collation (MONGOS.md §1.5).
func (r *Router) Distinct(ctx context.Context, op *Op) error {
	s, err := r.admit(ctx, op)
	if isOnView(err) {
		return r.distinctView(ctx, op, s.entry)
	}
	if err != nil {
		return err
	}
	if s.entry == nil {
		if err := r.refusedOnNothing(ctx, op); err != nil {
			return err
		}
		op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "values", emptyDoc)
		op.Reply.OK()
		return nil
	}
	defer r.leave(s.entry)
	filter, err := filterOf(op, "query")
	if err != nil {
		return err
	}
	if err := r.route(&s, op, filter); err != nil {
		return err
	}
	p := &patch{}
	if len(s.shards) > 1 && op.Txn.InTxn {
		return mongoerr.New(mongoerr.OperationNotSupportedInTransaction, "Cannot run 'distinct' on a sharded collection in a multi-document transaction")
	}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	at := uint64(0)
	if len(s.shards) > 1 {
		at = r.oneTime(op, p)
	}
	own, err := s.narrow(p, "query", filter)
	if err != nil {
		return err
	}
	if len(s.shards) == 1 {
		_, _, err = r.forward(ctx, op, s.shards[0], own.at(0))
		return err
	}
	return r.uniteDistinct(ctx, op, &s, &own, at)
}

// uniteDistinct asks several shards; at is the time at which they read, if it is to show.
func (r *Router) uniteDistinct(ctx context.Context, op *Op, s *scope, own *patches, at uint64) error {
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, i int) []byte { return r.appendMessage(dst, op, own.at(i)) })
	defer r.releaseAll(op, answers)
	if err := firstError(answers); err != nil {
		return err
	}
	var docs []bson.Raw
	for i := range answers {
		values, _ := answers[i].body.Lookup("values")
		it := wire.Doc(values.Value).Iter()
		var e wire.Elem
		for it.Next(&e) {
			v := bsoncore.AppendHeader(nil, bsoncore.Type(e.Type), "v")
			docs = append(docs, bson.Raw(bsoncore.BuildDocument(nil, append(v, e.Value...))))
		}
		if it.Err() != nil {
			return it.Err()
		}
	}
	united, err := r.unite(ctx, op, s, docs)
	if err != nil {
		return err
	}
	arr, b := bsoncore.AppendArrayElementStart(op.Reply.Elems, "values")
	for i, d := range united {
		v := d.Lookup("_id")
		b = bsoncore.AppendHeader(b, bsoncore.Type(v.Type), strconv.Itoa(i))
		b = append(b, v.Value...)
	}
	op.Reply.Elems, _ = bsoncore.AppendArrayEnd(b, arr)
	if at != 0 {
		op.Reply.Elems = wire.AppendTimestampElement(op.Reply.Elems, "atClusterTime", at)
	}
	op.Reply.OK()
	return nil
}

// unite returns {_id: value} for each value that differs from the others, in order.
func (r *Router) unite(ctx context.Context, op *Op, s *scope, docs []bson.Raw) ([]bson.Raw, error) {
	if len(docs) == 0 {
		return nil, nil
	}
	stages := []wire.Doc{
		stageDoc("$group", bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "_id", "$v"))),
		stageDoc("$sort", bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1))),
	}
	return r.VirtualDocs(ctx, op, docs, stages, s.entry.collation())
}
