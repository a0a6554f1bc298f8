package router

import (
	"context"
	"time"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// enter admits a read of a namespace under the newest table, and counts it until leave.
// It returns nil where the catalog knows no such namespace. While the collection is fenced
// or being dropped it waits, up to the hold limit.
//
// The count is raised before the pointer is read a second time: otherwise an
// operation that was preempted in between could pass a barrier already
// acknowledged (PROTOCOL.md, "More rules" 1).
func (r *Router) enter(ctx context.Context, ns []byte, deadline time.Time) (*Entry, error) {
	return r.pass(ctx, ns, deadline, false)
}

// pass is enter, or its like for an operation that writes: that one waits while writes are
// held back, too. leaveAs ends it.
func (r *Router) pass(ctx context.Context, ns []byte, deadline time.Time, write bool) (*Entry, error) {
	for asked := false; ; {
		s := r.snap.Load()
		e := s.named(ns)
		if e == nil {
			if asked || r.isHeard() {
				return nil, nil
			}
			r.Latest(ctx)
			asked = true
			continue
		}
		if !e.admits(write) {
			if err := r.awaitReplacement(ctx, e, deadline); err != nil {
				return nil, err
			}
			continue
		}
		if write {
			e.writing.Add(1)
		}
		e.inflight.Add(1)
		if s == r.snap.Load() || r.snap.Load().named(ns) == e {
			return e, nil
		}
		r.leaveAs(e, write)
	}
}

// isHeard reports whether the catalog has heard of this router lately. If not, others may
// have evicted it: shards refuse it then, but of what no shard is asked it must ask the
// catalog.
func (r *Router) isHeard() bool {
	at := r.heard.Load()
	return at == nil || time.Since(*at) < r.opts.EvictAfter/2
}

// admits reports whether operations may begin by the entry.
func (e *Entry) admits(write bool) bool {
	switch e.Coll.State {
	case catalog.StateOpen, catalog.StateModifying:
		return true
	case catalog.StateHeld:
		return !write
	default:
		return false
	}
}

// leaveAs ends what pass began.
func (r *Router) leaveAs(e *Entry, write bool) {
	if e != nil && write && e.writing.Add(-1) == 0 {
		r.wakeRetired(e)
	}
	r.leave(e)
}

// leave ends what enter began.
func (r *Router) leave(e *Entry) {
	if e != nil && e.inflight.Add(-1) == 0 {
		r.wakeRetired(e)
	}
}

// wakeRetired has it told that a replaced entry has nothing in flight any more.
func (r *Router) wakeRetired(e *Entry) {
	select {
	case <-e.replaced:
		r.drained.signal()
	default:
	}
}

func (r *Router) awaitReplacement(ctx context.Context, e *Entry, deadline time.Time) error {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
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
	case <-r.stopped:
		return mongoerr.New(mongoerr.InterruptedAtShutdown, "router is shutting down")
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
