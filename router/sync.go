package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

const (
	pollEvery      = time.Second     // safety net beside the catalog's hints
	heartbeatEvery = 2 * time.Second // well below the Store's silence limit
	pruneEvery     = 30 * time.Second
)

// Run keeps the routing tables up to date, acknowledges versions and beats, until
// ctx ends; then it deregisters and closes all shards.
func (r *Router) Run(ctx context.Context) error {
	defer r.Close(ctx)
	hints, err := r.store.Watch(ctx)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("watch the catalog: %w", err)
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-hints:
			r.ticked.signal()
		case <-poll.C:
		case <-r.reload:
		case <-r.drained:
		case <-prune.C:
			r.prune(ctx)
			continue
		}
		r.tick(ctx)
	}
	return nil
}

// Close ends a router that will not Run: it deregisters and closes all shards, also
// where ctx has ended.
func (r *Router) Close(ctx context.Context) {
	close(r.stopped)
	r.shutdown(context.WithoutCancel(ctx))
}

func (r *Router) tick(ctx context.Context) {
	err := r.Refresh(ctx)
	if err == nil {
		err = r.acknowledge(ctx)
	}
	switch {
	case err == nil:
		if r.down.Swap(false) {
			r.log.Info().Msg("the catalog is back")
		}
		if r.recovering.CompareAndSwap(false, true) {
			r.wg.Go(func() {
				defer r.recovering.Store(false)
				r.recoverFenced(ctx)
			})
		}
	case ctx.Err() != nil:
	case errors.Is(err, catalog.ErrEvicted):
		r.log.Error().Msg("this router was evicted; it registers again under a new name")
		if err := r.rejoin(ctx); err != nil {
			r.log.Error().Err(err).Msg("register again")
		}
	default:
		if !r.down.Swap(true) {
			r.log.Error().Err(err).Msg("the catalog is away; known collections are served from memory")
		}
	}
}

// Refresh loads what changed in the catalog and acts by it from now on.
func (r *Router) Refresh(ctx context.Context) error {
	// Who has a limit does not wait without one for a load that the catalog keeps waiting.
	if err := r.syncMu.lock(ctx); err != nil {
		return err
	}
	defer r.syncMu.unlock()
	old := r.snap.Load()
	d, err := r.store.Load(ctx, old.Version)
	if err != nil {
		return err
	}
	if d.Version < old.Version {
		if !r.regressed.Swap(true) {
			r.log.Error().Int64("seen", int64(old.Version)).Int64("now", int64(d.Version)).
				Msg("the catalog went back: it lost acknowledged changes; DDL stops until a person has looked")
		}
		return nil
	}
	if d.Version == old.Version {
		return nil
	}
	next, retired, err := old.next(d)
	if err != nil {
		return fmt.Errorf("catalog version %d: %w", d.Version, err)
	}
	r.openShards(ctx, next)
	r.snap.Store(next)
	for _, e := range retired {
		close(e.replaced)
	}
	r.retired = append(r.retired, retired...)
	return nil
}

// acknowledge tells the catalog the newest version by which this router acts with
// nothing older in flight, and that it lives.
func (r *Router) acknowledge(ctx context.Context) error {
	if err := r.syncMu.lock(ctx); err != nil {
		return err
	}
	defer r.syncMu.unlock()
	r.retired = slices.DeleteFunc(r.retired, func(e *Entry) bool { return e.inflight.Load() == 0 })
	v := r.acked
	if len(r.retired) == 0 {
		v = r.snap.Load().Version
	}
	if v == r.acked && time.Since(r.beatAt) < heartbeatEvery {
		return nil
	}
	if err := r.store.Heartbeat(ctx, r.Self().Incarnation, v, r.shardUsers()); err != nil {
		return err
	}
	r.acked, r.beatAt = v, time.Now()
	r.ticked.signal()
	return nil
}

func (r *Router) shardUsers() []catalog.ShardUser {
	r.usersMu.Lock()
	defer r.usersMu.Unlock()
	users := make([]catalog.ShardUser, 0, len(r.users))
	for shard, user := range r.users {
		users = append(users, catalog.ShardUser{Shard: shard, User: user})
	}
	return users
}

// openShards opens shards that the snapshot has and the router does not, and closes
// those that are gone. The login is made behind: operations wait for it.
func (r *Router) openShards(ctx context.Context, s *Snapshot) {
	old := *r.shards.Load()
	next := make(map[string]*backend.Shard, len(s.Shards))
	for id, row := range s.Shards {
		if have := old[id]; have != nil && have.Host == row.Host {
			next[id] = have
			continue
		}
		b, err := backend.Open(id, row.Host, &r.opts.Backend)
		if err != nil {
			r.log.Error().Err(err).Str("shard", id).Msg("open shard")
			continue
		}
		next[id] = b
		r.wg.Go(func() { r.logIn(context.WithoutCancel(ctx), b) })
	}
	r.shards.Store(&next)
	for id, b := range old {
		if next[id] != b {
			r.wg.Go(func() { b.Close(context.WithoutCancel(ctx)) })
		}
	}
}

// logIn makes this router's own user on a shard, trying until it is done or the
// shard is gone.
func (r *Router) logIn(ctx context.Context, b *backend.Shard) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		name := userOf(r.Self().Incarnation)
		r.usersMu.Lock()
		r.users[b.ID] = name
		r.usersMu.Unlock()
		err := b.CreateUser(ctx, name)
		if err == nil {
			// The first answer sets the clock: from then on every reply carries a time.
			_, err = r.run(ctx, b.ID, "admin", bson.D{{Key: "ping", Value: int32(1)}})
		}
		if err == nil {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-b.Done():
			t.Stop()
			return
		case <-t.C:
		}
		r.log.Warn().Err(err).Str("shard", b.ID).Msg("log in to shard")
	}
}

// rejoin registers a new incarnation after an eviction and logs in anew everywhere.
func (r *Router) rejoin(ctx context.Context) error {
	if err := r.register(ctx); err != nil {
		return err
	}
	if err := r.syncMu.lock(ctx); err != nil {
		return err
	}
	r.acked = 0
	r.syncMu.unlock()
	for _, b := range r.Shards() {
		r.wg.Go(func() { r.logIn(context.WithoutCancel(ctx), b) })
	}
	return nil
}

// barrier waits until every registered router acts by version v with nothing older
// in flight. Acknowledgements are rows; hints only shorten the wait.
func (r *Router) barrier(ctx context.Context, v catalog.Version) error {
	limit := time.Now().Add(r.opts.BarrierTimeout)
	for {
		ticked := r.ticked.wait()
		r.reload.signal()
		routers, err := r.store.Routers(ctx)
		if err != nil {
			return catalogError(err)
		}
		behind := slices.DeleteFunc(routers, func(o catalog.Router) bool { return o.Acked >= v })
		if len(behind) == 0 {
			return nil
		}
		if time.Now().After(limit) {
			return mongoerr.Newf(mongoerr.LockBusy,
				"router(s) %s did not acknowledge the metadata change in time", routerNames(behind))
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-ticked:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		t.Stop()
	}
}

func routerNames(routers []catalog.Router) string {
	names := make([]string, len(routers))
	for i := range routers {
		names[i] = routers[i].Name
	}
	return strings.Join(names, ", ")
}

func (r *Router) prune(ctx context.Context) {
	for _, b := range r.Shards() {
		b.Prune()
	}
	r.cursors.expire(func(c *Cursor) { r.killShardCursors(ctx, c) })
	r.txns.expire()
}

func (r *Router) shutdown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, b := range r.Shards() {
		r.usersMu.Lock()
		user := r.users[b.ID]
		r.usersMu.Unlock()
		if user != "" && b.HasPrimary() {
			if err := b.DropUser(ctx, user); err != nil {
				r.log.Warn().Err(err).Msg("drop own user")
			}
		}
		b.Close(ctx)
	}
	if err := r.store.Deregister(ctx, r.Self().Incarnation); err != nil {
		r.log.Warn().Err(err).Msg("deregister")
	}
	r.wg.Wait()
}

// catalogError is what a client sees of a catalog failure: 133 where it cannot be
// reached (DESIGN.md "Catalog"), 46 where somebody else is at work.
func catalogError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, catalog.ErrUnavailable):
		return mongoerr.Wrap(mongoerr.FailedToSatisfyReadPreference, err, "the catalog (PostgreSQL) cannot be reached")
	case errors.Is(err, catalog.ErrLocked):
		return mongoerr.Wrap(mongoerr.LockBusy, err, "another metadata operation is under way")
	case errors.Is(err, catalog.ErrLockLost), errors.Is(err, catalog.ErrConflict):
		return mongoerr.Wrap(mongoerr.ConflictingOperationInProgress, err, "the metadata changed meanwhile")
	default:
		return err
	}
}
