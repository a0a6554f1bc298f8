package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// withLock runs fn under the lock called name ("db", "db.coll" or "$…"), waiting for
// it up to the lock timeout and the end of ctx, on a snapshot that is fresh, and with
// what a dead router left of the collection cleared up.
func (r *Router) withLock(ctx context.Context, name, why string, fn func(catalog.Lock) error) error {
	if r.regressed.Load() {
		return mongoerr.New(mongoerr.FailedToSatisfyReadPreference, "the catalog went back in time: metadata operations are stopped until a person has looked")
	}
	lock, err := r.recovered(ctx, name, why)
	if err != nil {
		return expired(catalogError(err))
	}
	defer r.unlock(ctx, lock)
	return expired(fn(lock))
}

// recovered takes a lock and clears up under it. While that needs another lock, which
// somebody holds who may be waiting for this one, it lets go and tries again.
func (r *Router) recovered(ctx context.Context, name, why string) (catalog.Lock, error) {
	for limit := time.Now().Add(r.opts.LockTimeout); ; {
		lock, err := r.awaitLock(ctx, name, why)
		if err != nil {
			return lock, err
		}
		if err = r.Refresh(ctx); err == nil {
			err = r.recoverEntry(ctx, lock, name)
		}
		if err == nil {
			return lock, nil
		}
		r.unlock(ctx, lock)
		if !errors.Is(err, catalog.ErrLocked) || time.Now().After(limit) || !sleep(ctx, 10*time.Millisecond) {
			return lock, err
		}
	}
}

// withLocks is withLock for several names, taken in their order.
func (r *Router) withLocks(ctx context.Context, names []string, why string, fn func([]catalog.Lock) error) error {
	var held []catalog.Lock
	var next func() error
	next = func() error {
		if len(held) == len(names) {
			return fn(held)
		}
		return r.withLock(ctx, names[len(held)], why, func(l catalog.Lock) error {
			held = append(held, l)
			return next()
		})
	}
	return next()
}

// expired makes 50 of the end of the client's time limit, wherever it was noticed.
func expired(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && mongoerr.CodeOf(err) == 0 && !isUnreachable(err) {
		return mongoerr.Wrap(mongoerr.MaxTimeMSExpired, err, "operation exceeded time limit")
	}
	return err
}

func (r *Router) awaitLock(ctx context.Context, name, why string) (catalog.Lock, error) {
	limit := time.Now().Add(r.opts.LockTimeout)
	for {
		lock, err := r.acquire(ctx, name, why)
		if !errors.Is(err, catalog.ErrLocked) || time.Now().After(limit) {
			return lock, err
		}
		for _, m := range r.snap.Load().movementsOf(name, catalog.MovementCopying) {
			if m.Layout != nil {
				return lock, errResharding(m.NS)
			}
			return lock, mongoerr.New(mongoerr.ConflictingOperationInProgress, "the collection, or one of the database, is being moved to another shard")
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return lock, ctx.Err()
		}
	}
}

// acquire tries to take a lock. A client that goes away or has no more time does not
// cut it short: nobody would know then whether the lock is held, nor give it back.
func (r *Router) acquire(ctx context.Context, name, why string) (catalog.Lock, error) {
	if err := ctx.Err(); err != nil {
		return catalog.Lock{}, err
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockCallTimeout)
	defer cancel()
	l, err := r.store.Acquire(bound, name, r.Self().Incarnation, why)
	if errors.Is(err, catalog.ErrLocked) && r.evicting.Load() && r.breakLocks(bound, name) == nil {
		l, err = r.store.Acquire(bound, name, r.Self().Incarnation, why)
	}
	if err != nil && l.Token != 0 {
		r.unlock(ctx, l) // it may be held: its reply was lost
	}
	if errors.Is(err, context.DeadlineExceeded) {
		// The limit was ours: the client's own has passed, or the catalog does not answer.
		if cerr := ctx.Err(); cerr != nil {
			return l, cerr
		}
		return l, fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	return l, err
}

// breakLocks frees a name of the locks of routers that are evicted, as soon as they are
// shut out of all shards that their work may concern: those of the database.
func (r *Router) breakLocks(ctx context.Context, name string) error {
	if err := r.Refresh(ctx); err != nil { // nothing is changed by those locks any more
		return err
	}
	return r.store.Break(ctx, name, r.snap.Load().shardsUnder(cmp.Or(catalog.LockDatabase(name), name)))
}

// unlock gives a lock back. Where the catalog is away it goes on trying until the
// router stops: a lock that stays with a living router is nobody's to break.
func (r *Router) unlock(ctx context.Context, l catalog.Lock) {
	ctx = context.WithoutCancel(ctx)
	err := r.tryUnlock(ctx, l)
	if err == nil {
		return
	}
	r.log.Warn().Err(err).Str("lock", l.Name).Msg("release lock; trying on")
	r.wg.Go(func() {
		for wait := 100 * time.Millisecond; err != nil; wait = min(2*wait, 2*time.Second) {
			t := time.NewTimer(wait)
			select {
			case <-r.stopped:
				t.Stop()
				return // its locks go when it deregisters
			case <-t.C:
			}
			err = r.tryUnlock(ctx, l)
		}
	})
}

// lockCallTimeout bounds one call for a lock.
const lockCallTimeout = 5 * time.Second

func (r *Router) tryUnlock(ctx context.Context, l catalog.Lock) error {
	ctx, cancel := context.WithTimeout(ctx, lockCallTimeout)
	defer cancel()
	return r.store.Release(ctx, l)
}

// apply makes a catalog change and acts by it at once.
func (r *Router) apply(ctx context.Context, c catalog.Change) error {
	_, err := r.applyVersion(ctx, c)
	return err
}

// applyVersion is apply; a version beside an error is that of the change, which was made.
func (r *Router) applyVersion(ctx context.Context, c catalog.Change) (catalog.Version, error) {
	v, err := r.store.Apply(ctx, c)
	if err != nil {
		return 0, catalogError(err)
	}
	return v, catalogError(r.Refresh(ctx))
}

// fence makes every router hold operations on the given collections back and waits
// until none is in flight on what the change's locks cover. If that is not to be had in
// time, undo is applied and the error is 46 LockBusy, or the end of ctx. After a fence a
// change must follow that opens or drops the collections.
func (r *Router) fence(ctx context.Context, c, undo catalog.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	v, err := r.applyVersion(context.WithoutCancel(ctx), c) // whether it was made is to be known
	if v == 0 {
		return err
	}
	for i := 0; err == nil && i < len(c.Locks); i++ {
		err = r.barrier(ctx, v, c.Locks[i].Name)
	}
	if err != nil {
		r.undo(ctx, undo)
	}
	return err
}

// undo applies a change that takes a fence back, whatever became of the client. If
// even that fails, recoverFenced does it later.
func (r *Router) undo(ctx context.Context, c catalog.Change) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.apply(ctx, c); err != nil {
		r.log.Error().Err(err).Msg("take a fence back")
	}
}

// fenceEntries fences existing collections.
func (r *Router) fenceEntries(ctx context.Context, l catalog.Lock, entries []*Entry) error {
	locks := []catalog.Lock{l}
	return r.fence(ctx,
		catalog.Change{Locks: locks, Rows: rowsIn(entries, catalog.StateFenced)},
		catalog.Change{Locks: locks, Rows: rowsIn(entries, catalog.StateOpen)})
}

// rowsIn returns the collections' rows in another state.
func rowsIn(entries []*Entry, state catalog.State) []catalog.Collection {
	rows := make([]catalog.Collection, len(entries))
	for i, e := range entries {
		rows[i] = *e.Coll
		rows[i].State = state
	}
	return rows
}

// announce applies a change that needs no fence and waits until every router knows.
func (r *Router) announce(ctx context.Context, c catalog.Change) error {
	v, err := r.applyVersion(ctx, c)
	if err != nil {
		return err
	}
	for i := 0; err == nil && i < len(c.Locks); i++ {
		err = r.barrier(ctx, v, c.Locks[i].Name)
	}
	return err
}
