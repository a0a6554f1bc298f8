package router

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/shardgate/shardgate/catalog"
)

// recoverAfter is how long a row may be fenced before somebody looks whether the router
// that fenced it still lives.
const recoverAfter = 2 * time.Second

// recoverFenced finishes or undoes what a dead router left fenced: a collection whose
// lock nobody holds.
func (r *Router) recoverFenced(ctx context.Context) {
	r.tidyMovements(ctx)
	for ns, e := range r.snap.Load().fenced {
		if time.Since(e.since) < recoverAfter {
			continue
		}
		lock, err := r.acquire(ctx, ns, "recovery")
		if err != nil {
			continue
		}
		if err = r.Refresh(ctx); err == nil {
			err = r.recoverEntry(ctx, lock, ns)
		}
		if err != nil {
			r.log.Warn().Err(err).Str("ns", ns).Msg("recover a collection left fenced")
		}
		r.unlock(ctx, lock)
	}
}

// recoverEntry opens what was left fenced, forgets what was never opened, and drops on
// what was being dropped, reads what shards have made of options, finishes renames, and undoes or finishes movements. Nothing of it was acknowledged, and DDL can be repeated. The
// lock is the name's or its database's, and the snapshot was loaded under it.
func (r *Router) recoverEntry(ctx context.Context, lock catalog.Lock, ns string) error {
	if err := r.recoverMovements(ctx, lock); err != nil {
		return err
	}
	e := r.snap.Load().Entries[ns]
	if e == nil || e.Coll.State == catalog.StateOpen {
		return nil
	}
	locks := []catalog.Lock{lock}
	switch {
	case e.Coll.State == catalog.StateDropping:
		return r.dropFenced(ctx, lock, e)
	case e.Coll.State == catalog.StateModifying:
		return r.recoverOptions(ctx, lock, e)
	case e.Coll.State == catalog.StateRenaming:
		return r.recoverRename(ctx, lock, ns)
	case e.unborn():
		// What its shard may have, or get yet, is empty, and gives way to the next one
		// of the name.
		return r.apply(ctx, catalog.Change{Locks: locks, Drop: []string{ns}})
	}
	row := *e.Coll
	row.State = catalog.StateOpen
	return r.apply(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{row}})
}

// unborn reports whether the row stands for a collection that is yet to be made.
func (e *Entry) unborn() bool {
	return e.Table != nil && e.Coll.State == catalog.StateFenced && e.Coll.UUID == uuid.Nil && len(e.Coll.Options) == 0
}
