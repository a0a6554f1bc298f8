package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// finish ends an operation that may have written: it leaves the gate, unless a reply
// was lost. A write without a reply may still run on its shard (PROTOCOL.md F3), so it
// counts as in flight until the shard proves that it is gone.
func (r *Router) finish(ctx context.Context, op *Op, e *Entry) {
	if len(op.lost) == 0 {
		r.leave(e)
		return
	}
	session, shards := op.Session.ID, op.lost
	r.wg.Go(func() {
		for _, shard := range shards {
			if !r.awaitGone(context.WithoutCancel(ctx), shard, session) {
				return // it stays in flight, and in this router's row (see signOff)
			}
		}
		r.leave(e)
	})
}

// awaitGone kills what a session runs on a shard and waits until nothing of it is left
// there. It reports false if this router stops before that is certain.
func (r *Router) awaitGone(ctx context.Context, shard string, session UUID) bool {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		running, err := r.runningOps(ctx, shard, session)
		if err == nil && len(running) == 0 {
			return true
		}
		for _, id := range running {
			if _, err := r.run(ctx, shard, "admin", bson.D{{Key: "killOp", Value: int32(1)}, {Key: "op", Value: id}}); err != nil {
				r.log.Debug().Err(err).Str("shard", shard).Msg("kill a lost operation")
			}
		}
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

// runningOps lists the operations of a session on a shard's primary.
func (r *Router) runningOps(ctx context.Context, shard string, session UUID) ([]int64, error) {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	var ids []int64
	err := r.drain(ctx, shard, "admin", bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{
				{Key: "lsid.id", Value: bson.Binary{Subtype: 4, Data: session[:]}}, {Key: "active", Value: true},
			}}},
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
