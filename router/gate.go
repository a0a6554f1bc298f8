package router

import (
	"context"
	"time"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// enter admits an operation on a namespace under the newest table, and counts it
// until leave. It returns nil where the catalog knows no such namespace. While the
// collection is fenced or being dropped it waits, up to the hold limit.
//
// The count is raised before the pointer is read a second time: otherwise an
// operation that was preempted in between could pass a barrier already
// acknowledged (PROTOCOL.md, "More rules" 1).
func (r *Router) enter(ctx context.Context, ns []byte, deadline time.Time) (*Entry, error) {
	for {
		s := r.snap.Load()
		e := s.Entries[string(ns)]
		if e == nil {
			return nil, nil
		}
		if e.Coll.State != catalog.StateOpen {
			if err := r.awaitReplacement(ctx, e, deadline); err != nil {
				return nil, err
			}
			continue
		}
		e.inflight.Add(1)
		if s == r.snap.Load() || r.snap.Load().Entries[string(ns)] == e {
			return e, nil
		}
		r.leave(e)
	}
}

// leave ends what enter began.
func (r *Router) leave(e *Entry) {
	if e == nil || e.inflight.Add(-1) > 0 {
		return
	}
	select {
	case <-e.replaced:
		r.drained.signal()
	default:
	}
}

func (r *Router) awaitReplacement(ctx context.Context, e *Entry, deadline time.Time) error {
	limit := time.NewTimer(r.opts.HoldLimit)
	defer limit.Stop()
	var late <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-e.replaced:
		return nil
	case <-late:
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
	case <-limit.C:
		return mongoerr.Newf(mongoerr.LockBusy, "a metadata operation on %s is under way", e.Coll.NS)
	case <-ctx.Done():
		return mongoerr.New(mongoerr.InterruptedAtShutdown, "router is shutting down")
	}
}

// hint is a coalescing wake-up for one waiter.
type hint chan struct{}

func newHint() hint { return make(hint, 1) }

func (h hint) signal() {
	select {
	case h <- struct{}{}:
	default:
	}
}
