package router

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Count runs count: each owner counts, the router adds (MONGOS.md §1.5).
func (r *Router) Count(ctx context.Context, op *Op) error {
	s, err := r.admit(ctx, op)
	if isOnView(err) {
		return r.countView(ctx, op, s.entry)
	}
	if err != nil {
		return err
	}
	if s.entry == nil {
		if err := r.refusedOnNothing(ctx, op); err != nil {
			return err
		}
		op.Reply.Doc("shards", emptyDoc)
		op.Reply.Int32("n", 0)
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
	skip, limit, err := countLimits(op)
	if err != nil {
		return err
	}
	p := &patch{skip: []string{"skip", "limit"}}
	if limit > 0 && skip <= math.MaxInt64-limit { // else all that there is
		p.extra = bsoncore.AppendInt64Element(nil, "limit", limit+skip)
	}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	own, err := s.narrow(p, "query", filter)
	if err != nil {
		return err
	}
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, i int) []byte { return r.appendMessage(dst, op, own.at(i)) })
	defer r.releaseAll(op, answers)
	if err := firstError(answers); err != nil {
		return err
	}
	total := int64(0)
	at, b := bsoncore.AppendDocumentElementStart(op.Reply.Elems, "shards")
	for i := range answers {
		e, _ := answers[i].body.Lookup("n")
		n, _ := e.Int64()
		total += n
		b = appendCount(b, answers[i].shard, n)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	total = max(total-skip, 0)
	if limit > 0 {
		total = min(total, limit)
	}
	op.Reply.Elems = appendCount(b, "n", total)
	op.Reply.OK()
	return nil
}

// countLimits reads skip and limit as mongod does; it takes a negative limit for a positive one.
func countLimits(op *Op) (skip, limit int64, err error) {
	if e, ok := op.Lookup("skip"); ok && !e.IsNull() {
		if skip, ok = e.Int64(); !ok {
			return 0, 0, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'count.skip' is the wrong type '%s', expected types '[long, int, decimal, double']", TypeName(e.Type))
		}
	}
	if skip < 0 {
		return 0, 0, mongoerr.Newf(51024, "BSON field 'skip' value must be >= 0, actual value '%d'", skip)
	}
	if e, ok := op.Lookup("limit"); ok {
		if limit, ok = e.Int64(); !ok {
			return 0, 0, mongoerr.New(mongoerr.BadValue, "limit value is not a valid number")
		}
	}
	if limit == math.MinInt64 {
		return 0, 0, mongoerr.New(mongoerr.BadValue, "limit value for count cannot be min long")
	}
	if limit < 0 {
		limit = -limit
	}
	return skip, limit, nil
}

// appendCount appends a count as mongos does: an int32 where it fits.
func appendCount(b []byte, name string, n int64) []byte {
	if n == int64(int32(n)) {
		return bsoncore.AppendInt32Element(b, name, int32(n))
	}
	return bsoncore.AppendInt64Element(b, name, n)
}
