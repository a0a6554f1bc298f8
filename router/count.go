package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Count runs count: each owner counts, the router adds (MONGOS.md §1.5).
func (r *Router) Count(ctx context.Context, op *Op) error {
	s, err := r.admit(ctx, op)
	if err != nil {
		return err
	}
	if s.entry == nil {
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
	skip, limit := int64Arg(op, "skip"), int64Arg(op, "limit")
	if skip < 0 {
		return mongoerr.Newf(51024, "BSON field 'skip' value must be >= 0, actual value '%d'", skip)
	}
	if limit < 0 {
		limit = -limit
	}
	p := &patch{skip: []string{"skip", "limit"}}
	if limit > 0 {
		p.extra = bsoncore.AppendInt64Element(nil, "limit", limit+skip)
	}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, _ int) []byte { return r.appendMessage(dst, op, p) })
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

// appendCount appends a count as mongos does: an int32 where it fits.
func appendCount(b []byte, name string, n int64) []byte {
	if n == int64(int32(n)) {
		return bsoncore.AppendInt32Element(b, name, int32(n))
	}
	return bsoncore.AppendInt64Element(b, name, n)
}

func int64Arg(op *Op, name string) int64 {
	e, ok := op.Lookup(name)
	if !ok {
		return 0
	}
	n, _ := e.Int64()
	return n
}

// FindAndModify runs findAndModify on the shard that its query pins.
func (r *Router) FindAndModify(ctx context.Context, op *Op) error {
	s, err := r.admit(ctx, op)
	if err != nil {
		return err
	}
	upsert := isSet(op.Cmd.Body, "upsert")
	if s.entry == nil {
		if !upsert {
			op.Reply.Doc("lastErrorObject", bsoncore.BuildDocument(nil,
				bsoncore.AppendBooleanElement(bsoncore.AppendInt32Element(nil, "n", 0), "updatedExisting", false)))
			op.Reply.Elems = bsoncore.AppendNullElement(op.Reply.Elems, "value")
			op.Reply.OK()
			return nil
		}
		if s, err = r.createAndAdmit(ctx, op, s.ns); err != nil {
			return err
		}
	}
	defer func() { r.finish(ctx, op, s.entry) }()
	if s.shards, err = r.targetFindAndModify(op, s.entry, upsert); err != nil {
		return err
	}
	p := &patch{}
	if err := r.join(op, s.shards, p); err != nil {
		return err
	}
	_, _, err = r.forward(ctx, op, s.shards[0], p)
	return err
}

func (r *Router) targetFindAndModify(op *Op, e *Entry, upsert bool) ([]string, error) {
	if !e.Sharded() {
		return e.Table.Shards(), nil
	}
	q, err := filterOf(op, "query")
	if err != nil {
		return nil, err
	}
	collated := Collated(op, e)
	if mods, ok := op.Lookup("update"); ok {
		u := target.Update{Filter: q, Collated: collated, Mods: mods.RawValue(), Upsert: upsert}
		if err := e.keepsKey(u); err != nil {
			return nil, err
		}
	}
	return e.targetWrite(q, collated, false, upsert)
}

// EndSessions tells every shard that the client's sessions are over and closes their
// cursors here. Shards that cannot be reached end them by themselves.
func (r *Router) EndSessions(ctx context.Context, op *Op, command string, ids []UUID) {
	for _, id := range ids {
		for _, c := range r.cursors.removeSession(id) {
			r.killShardCursors(ctx, c)
		}
	}
	b := bsoncore.NewArrayBuilder()
	for _, id := range ids {
		d := bsoncore.AppendBinaryElement(nil, "id", 4, id[:])
		d = bsoncore.AppendBinaryElement(d, "uid", 0, op.Session.UID[:])
		b.AppendDocument(bsoncore.BuildDocument(nil, d))
	}
	elems := bsoncore.AppendArrayElement(nil, command, b.Build())
	for id, shard := range r.Shards() {
		if !shard.HasPrimary() {
			continue
		}
		r.wg.Go(func() {
			ctx, cancel := withTimeout(ctx)
			defer cancel()
			if _, err := shard.Run(ctx, "admin", elems); err != nil {
				r.log.Debug().Err(err).Str("shard", id).Msg(command)
			}
		})
	}
}

// backgroundLimit bounds what is done for a client behind its back.
const backgroundLimit = 5 * time.Second

func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), backgroundLimit)
}
