package router

import (
	"context"

	"github.com/shardgate/shardgate/catalog"
)

// isReshaped reports whether a client may still repeat a write of when the collection had
// another shard key.
func (s *Snapshot) isReshaped(e *Entry) bool {
	for _, m := range s.Movements {
		if m.State == catalog.MovementGone && m.Layout != nil && m.Collection == e.Coll.UUID {
			return true
		}
	}
	return false
}

// ranReshaped answers a repeated write with what it did when the collection had another key.
// It may have been one that could change that key, and is none now, or the other way round:
// what tells that it ran is not the same. over is false if it did not.
func (r *Router) ranReshaped(ctx context.Context, op *Op, w *single, c choice) (done, over bool, err error) {
	if !w.rekeys {
		reply, found, err := r.recorded(ctx, op, c.Shard, recordID(op, w, c))
		if reply != nil && err == nil {
			err = w.do.took(op, c.Shard, reply)
		}
		return reply != nil, found, err
	}
	own := op.Session
	op.Session.ID = attemptSession(own.ID, c.Attempt)
	defer func() { op.Session = own }()
	ask := *op
	ask.stmtIDs, ask.stmtID = nil, w.stmt
	if ids, err := r.probe(ctx, &ask, c.Shard, 1); err != nil || len(ids) == 0 {
		return false, false, err
	}
	if closed, err := r.isClosed(ctx, op, w, c.Shard); closed || err != nil {
		return false, true, err
	}
	n, err := w.do.write(ctx, op, w, c.Shard, conjunction(w.filter, c.Filter))
	return n > 0, true, err
}
