package router

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// lostWrite is a write that a shard may still run: its replies never came.
type lostWrite struct {
	shard string
	conns []int64 // on which it was sent, as the shard calls them; 0 for unknown
}

// finish ends an operation that may have written: it leaves the gate, unless a reply
// was lost. A write without a reply may still run on its shard (PROTOCOL.md F3), so it
// counts as in flight until the shard proves that it is gone.
func (r *Router) finish(ctx context.Context, op *Op, e *Entry) {
	if len(op.lost) == 0 {
		r.leave(e)
		return
	}
	session, lost := op.Session.ID, op.lost
	r.wg.Go(func() {
		for i := range lost {
			if !r.awaitGone(context.WithoutCancel(ctx), &lost[i], session) {
				return // it stays in flight, and in this router's row (see signOff)
			}
		}
		r.leave(e)
	})
}

// awaitGone kills what is left of a lost write of a session and waits until there is
// nothing. What else the session runs there came on other connections. It reports false
// if this router stops before that is certain.
func (r *Router) awaitGone(ctx context.Context, lost *lostWrite, session UUID) bool {
	shard := lost.shard
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		running, err := r.runningOps(ctx, lost, session)
		if err == nil && len(running) == 0 {
			return true
		}
		r.killOps(ctx, shard, running)
		if _, exists := r.snap.Load().Shards[shard]; !exists {
			return true
		}
		t := time.NewTimer(wait)
		select {
		case <-r.stopped:
			t.Stop()
			return false
		case <-t.C:
		}
	}
}

// runningOps lists what a shard's primary runs of a lost write.
func (r *Router) runningOps(ctx context.Context, lost *lostWrite, session UUID) ([]int64, error) {
	match := bson.D{{Key: "lsid.id", Value: bson.Binary{Subtype: 4, Data: session[:]}}, {Key: "active", Value: true}}
	if !slices.Contains(lost.conns, 0) {
		match = append(match, bson.E{Key: "connectionId", Value: bson.D{{Key: "$in", Value: lost.conns}}})
	}
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	return r.listOps(ctx, lost.shard, match)
}

// listOps lists what a shard's primary runs, by a filter on $currentOp.
func (r *Router) listOps(ctx context.Context, shard string, match bson.D) (ids []int64, err error) {
	err = r.drain(ctx, shard, "admin", bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}}}},
			bson.D{{Key: "$match", Value: match}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "opid", Value: int32(1)}}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	}, func(doc bson.Raw) error {
		if id, ok := doc.Lookup("opid").AsInt64OK(); ok {
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

// killOps asks a shard to end operations; that it will not is seen when they are listed.
func (r *Router) killOps(ctx context.Context, shard string, ids []int64) {
	for _, id := range ids {
		if _, err := r.run(ctx, shard, "admin", bson.D{{Key: "killOp", Value: int32(1)}, {Key: "op", Value: id}}); err != nil {
			r.log.Debug().Err(err).Str("shard", shard).Msg("kill an operation")
		}
	}
}
