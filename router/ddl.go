package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// withLock runs fn under the lock called name ("db", "db.coll" or "$…"), waiting for
// it up to the lock timeout, on a snapshot that is fresh.
func (r *Router) withLock(ctx context.Context, name, why string, fn func(catalog.Lock) error) error {
	if r.regressed.Load() {
		return mongoerr.New(mongoerr.FailedToSatisfyReadPreference, "the catalog went back in time: metadata operations are stopped until a person has looked")
	}
	limit := time.Now().Add(r.opts.LockTimeout)
	var lock catalog.Lock
	for {
		var err error
		lock, err = r.acquire(ctx, name, why)
		if err == nil {
			break
		}
		if !errors.Is(err, catalog.ErrLocked) || time.Now().After(limit) {
			return catalogError(err)
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	defer r.unlock(ctx, lock)
	if err := r.Refresh(ctx); err != nil {
		return catalogError(err)
	}
	return fn(lock)
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

func (r *Router) applyVersion(ctx context.Context, c catalog.Change) (catalog.Version, error) {
	v, err := r.store.Apply(ctx, c)
	if err != nil {
		return 0, catalogError(err)
	}
	if err := r.Refresh(ctx); err != nil {
		return 0, catalogError(err)
	}
	return v, nil
}

// fence makes every router hold operations on the given collections back and waits
// until none is in flight on what the change's lock covers. If that is not to be had in
// time, undo is applied and the error is 46 LockBusy. After a fence one of three
// things must follow: a change that opens or drops the collections, or unfence.
func (r *Router) fence(ctx context.Context, c, undo catalog.Change) error {
	v, err := r.applyVersion(ctx, c)
	if err != nil {
		return err
	}
	if err := r.barrier(ctx, v, c.Locks[0].Name); err != nil {
		r.undo(ctx, undo)
		return err
	}
	return nil
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

// fenceEntry fences one existing collection.
func (r *Router) fenceEntry(ctx context.Context, l catalog.Lock, e *Entry) error {
	row := *e.Coll
	row.State = catalog.StateFenced
	open := *e.Coll
	return r.fence(ctx,
		catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{row}},
		catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{open}})
}

// run runs a DDL command on one shard's primary. Reaching the shard's clock raises
// ours, so that later reads see what it did.
func (r *Router) run(ctx context.Context, shard, db string, cmd bson.D) (wire.Doc, error) {
	b := r.Shard(shard)
	if b == nil {
		return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", shard)
	}
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	elems := raw[4 : len(raw)-1]
	if t := r.Clock.Now(); t != 0 {
		elems = wire.AppendClusterTime(append([]byte(nil), elems...), &wire.ClusterTime{Time: t})
	}
	body, err := b.Run(ctx, db, elems)
	if body != nil {
		if info, ierr := wire.Inspect(body); ierr == nil {
			r.Clock.Advance(info.ClusterTime)
		}
	}
	return body, err
}

var majorityWrites = bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int32(60000)}}

// collInfo is what listCollections says of one namespace.
type collInfo struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"`
	Options bson.Raw `bson:"options"`
	Info    struct {
		UUID bson.Binary `bson:"uuid"`
	} `bson:"info"`
	IDIndex bson.Raw `bson:"idIndex"`
}

func (i *collInfo) uuid() uuid.UUID {
	var u uuid.UUID
	copy(u[:], i.Info.UUID.Data)
	return u
}

// listOn lists what a shard's database holds, by filter.
func (r *Router) listOn(ctx context.Context, shard, db string, filter bson.D) ([]collInfo, error) {
	var list []collInfo
	err := r.drain(ctx, shard, db, bson.D{{Key: "listCollections", Value: int32(1)}, {Key: "filter", Value: filter}},
		func(doc bson.Raw) error {
			var i collInfo
			if err := bson.Unmarshal(doc, &i); err != nil {
				return err
			}
			list = append(list, i)
			return nil
		})
	return list, err
}

// drain runs a command that answers with a cursor and hands over every document.
func (r *Router) drain(ctx context.Context, shard, db string, cmd bson.D, each func(bson.Raw) error) error {
	for {
		body, err := r.run(ctx, shard, db, cmd)
		if err != nil {
			return err
		}
		info, err := wire.Inspect(body)
		if err != nil {
			return err
		}
		id, coll, batch, err := cursorReply(info.Cursor)
		if err != nil {
			return err
		}
		for len(batch) > 0 {
			e, n := wire.FirstElem(batch)
			if n == 0 {
				return wire.ErrMalformed
			}
			if err := each(bson.Raw(e.Value)); err != nil {
				return err
			}
			batch = batch[n:]
		}
		if id == 0 {
			return nil
		}
		cmd = bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}}
	}
}

// isUnreachable reports whether an error is about getting to a shard, not from it.
func isUnreachable(err error) bool {
	var be *backend.Error
	return errors.As(err, &be)
}

// recoverFenced finishes or undoes what a dead router left fenced: a collection whose
// lock nobody holds. What exists on a shard is opened, as nothing was acknowledged
// but may have been done; what exists nowhere is forgotten. DDL can be repeated.
func (r *Router) recoverFenced(ctx context.Context) {
	for ns, e := range r.snap.Load().fenced {
		if time.Since(e.since) < recoverAfter {
			continue
		}
		lock, err := r.acquire(ctx, ns, "recovery")
		if err != nil {
			continue
		}
		if err := r.recoverEntry(ctx, lock, ns); err != nil {
			r.log.Warn().Err(err).Str("ns", ns).Msg("recover a collection left fenced")
		}
		r.unlock(ctx, lock)
	}
}

const recoverAfter = 2 * time.Second

func (r *Router) recoverEntry(ctx context.Context, lock catalog.Lock, ns string) error {
	if err := r.Refresh(ctx); err != nil {
		return err
	}
	e := r.snap.Load().Entries[ns]
	if e == nil || e.Coll.State != catalog.StateFenced {
		return nil
	}
	locks := []catalog.Lock{lock}
	row := *e.Coll
	row.State = catalog.StateOpen
	if e.Table == nil { // a view lies on no shard
		return r.apply(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{row}})
	}
	db, coll := catalog.SplitNS(ns)
	var found *collInfo
	for _, shard := range e.Table.Shards() {
		list, err := r.listOn(ctx, shard, db, bson.D{{Key: "name", Value: coll}})
		if err != nil {
			return err
		}
		if len(list) > 0 {
			found = &list[0]
		}
	}
	if found == nil {
		return r.apply(ctx, catalog.Change{Locks: locks, Drop: []string{ns}})
	}
	if err := r.copyShape(ctx, ns, found, e.Table.Shards()); err != nil {
		return err
	}
	row.UUID, row.Options = found.uuid(), found.Options
	return r.apply(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{row}})
}
