package router

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// lostWrite is a write that a shard may still run: its replies never came.
type lostWrite struct {
	shard string
	conns []string // on which it was sent: backend.Error.Conn
}

// finish ends an operation that may have written: it leaves the gate, unless a reply
// was lost. A write without a reply may still run on its shard (PROTOCOL.md F3), so it
// counts as in flight until the shard proves that it is gone.
func (r *Router) finish(ctx context.Context, op *Op, e *Entry) {
	if len(op.lost) == 0 {
		r.leaveAs(e, op.Write)
		return
	}
	lost, write := op.lost, op.Write
	r.wg.Go(func() {
		for i := range lost {
			if !r.awaitGone(context.WithoutCancel(ctx), &lost[i]) {
				return // it stays in flight, and in this router's row (see signOff)
			}
		}
		r.leaveAs(e, write)
	})
}

// awaitGone kills what is left of a lost write and waits until there is nothing: the
// connections on which it was sent are closed here, and the shard is done with each when
// it has read to its end. An idle one may have the write yet to read. It reports false if
// this router stops before that is certain.
func (r *Router) awaitGone(ctx context.Context, lost *lostWrite) bool {
	shard := lost.shard
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		left, err := r.leftOf(ctx, lost)
		if err == nil && len(left) == 0 {
			return true
		}
		r.killOps(ctx, shard, left.active())
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

// certain waits, after a failure without a reply, until the shard has done with the command.
func (r *Router) certain(ctx context.Context, shard string, err error) error {
	lost, may := lostOf(shard, err)
	if may && !r.awaitGone(context.WithoutCancel(ctx), &lost) {
		return fmt.Errorf("this router stops: %w", err)
	}
	return err
}

// leftOf lists the connections of a lost write that a shard's primary still has.
func (r *Router) leftOf(ctx context.Context, lost *lostWrite) (shardOps, error) {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	return r.listOps(ctx, lost.shard, bson.D{{Key: "appName", Value: bson.D{{Key: "$in", Value: lost.conns}}}})
}

// shardOp is what a shard says of an operation, or of a connection without one.
type shardOp struct {
	ID     int64 `bson:"opid"`
	Active bool  `bson:"active"`
}

type shardOps []shardOp

// active lists those that run.
func (l shardOps) active() (ids []int64) {
	for _, o := range l {
		if o.Active {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// listOps lists operations and idle connections on a shard's primary, by a filter on
// $currentOp.
func (r *Router) listOps(ctx context.Context, shard string, match bson.D) (list shardOps, err error) {
	err = r.drain(ctx, shard, "admin", bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}}},
			bson.D{{Key: "$match", Value: match}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "opid", Value: int32(1)}, {Key: "active", Value: int32(1)}}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	}, func(doc bson.Raw) error {
		var o shardOp
		err := bson.Unmarshal(doc, &o)
		list = append(list, o)
		return err
	})
	return list, err
}

// killOps asks a shard to end operations; that it will not is seen when they are listed.
func (r *Router) killOps(ctx context.Context, shard string, ids []int64) {
	for _, id := range ids {
		if _, err := r.run(ctx, shard, "admin", bson.D{{Key: "killOp", Value: int32(1)}, {Key: "op", Value: id}}); err != nil {
			r.log.Debug().Err(err).Str("shard", shard).Msg("kill an operation")
		}
	}
}
