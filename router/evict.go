package router

import (
	"context"
	"errors"
	"time"

	"github.com/shardgate/shardgate/catalog"
)

// sighting is how long a router's last heartbeat has been the same.
type sighting struct {
	ping  time.Time // by the catalog's clock
	since time.Time // by this router's, which does not jump
}

// watch is what a router knows of the others' heartbeats.
type watch struct {
	looked time.Time
	seen   map[string]sighting        // by incarnation
	begun  map[catalog.ShardUser]bool // somebody is at it
	done   chan catalog.ShardUser
}

// watchOthers evicts routers that do not answer, until this one stops. Where shards run
// without auth nobody can be shut out for certain, so nobody is: a person may know that a
// router is dead.
func (r *Router) watchOthers(ctx context.Context) {
	if r.opts.Backend.Admin.None() {
		return
	}
	ctx, cancel := r.untilStopped(ctx)
	defer cancel()
	w := &watch{seen: map[string]sighting{}, begun: map[catalog.ShardUser]bool{}, done: make(chan catalog.ShardUser)}
	poll := time.NewTicker(min(pollEvery, r.opts.EvictAfter/4))
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-w.done:
			delete(w.begun, u)
		case <-poll.C:
			r.look(ctx, w)
		}
	}
}

// lookGap is how far apart two looks may be for what was seen before to count: a router
// that was stopped, or could not reach the catalog, has not watched the others. Nor has one
// that the catalog does not hear: it may be as deaf to them.
const (
	lookGap  = 3 * time.Second
	heardGap = 2*heartbeatEvery + time.Second
)

// look notes which routers have beaten, evicts those that have not for too long, and shuts
// out whom anybody has evicted.
func (r *Router) look(ctx context.Context, w *watch) {
	ctx, cancel := context.WithTimeout(ctx, backgroundLimit)
	defer cancel()
	routers, err := r.store.Routers(ctx)
	now := time.Now()
	heard := r.heard.Load()
	if err != nil || r.regressed.Load() || now.Sub(w.looked) > lookGap || heard == nil || now.Sub(*heard) > heardGap {
		clear(w.seen)
	}
	w.looked = now
	if err != nil || r.regressed.Load() {
		return
	}
	evicting := false
	seen := make(map[string]sighting, len(routers))
	for i := range routers {
		o := &routers[i]
		if o.Incarnation == r.Self().Incarnation {
			continue
		}
		s := w.seen[o.Incarnation]
		if s.since.IsZero() || !s.ping.Equal(o.Ping) {
			s = sighting{ping: o.Ping, since: now}
		}
		seen[o.Incarnation] = s
		if !o.Evicted && now.Sub(s.since) >= r.opts.EvictAfter {
			o.Evicted = r.evict(ctx, o)
		}
		if o.Evicted {
			evicting = true
			r.shutOutOf(ctx, w, o)
		}
	}
	w.seen = seen
	if r.evicting.Swap(evicting) != evicting {
		r.reload.signal()
	}
}

// evict begins to evict a router, if it has not beaten since it was looked at.
func (r *Router) evict(ctx context.Context, o *catalog.Router) bool {
	switch err := r.store.Evict(ctx, o.Incarnation, o.Ping); {
	case err == nil:
		r.log.Warn().Str("router", o.Name).Str("incarnation", o.Incarnation).Time("lastHeard", o.Ping).
			Msg("a router does not answer; it is shut out of the shards")
		return true
	case !errors.Is(err, catalog.ErrConflict):
		r.log.Warn().Err(err).Str("router", o.Name).Msg("evict a router")
	}
	return false
}

// shutOutOf begins to shut an evicted router out of each shard. All routers may do so at
// once; whoever is done with a shard says so in the row, which goes with the last one.
func (r *Router) shutOutOf(ctx context.Context, w *watch, o *catalog.Router) {
	ctx = context.WithoutCancel(ctx)
	for _, u := range o.Users {
		if w.begun[u] {
			continue
		}
		w.begun[u] = true
		incarnation, name := o.Incarnation, o.Name
		r.wg.Go(func() {
			ctx, cancel := r.untilStopped(ctx)
			defer cancel()
			if r.untilShutOut(ctx, u) {
				err := r.store.ShutOut(ctx, incarnation, u)
				if err == nil {
					r.log.Info().Str("router", name).Str("shard", u.Shard).Msg("a router is shut out")
					r.ticked.signal()
				} else {
					r.log.Warn().Err(err).Str("router", name).Msg("note that a router is shut out")
				}
			}
			select {
			case w.done <- u: // if it is still in the row, the next look begins again
			case <-r.stopped:
			}
		})
	}
}
