package router

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// barrier waits until every registered router acts by version v and has nothing older
// in flight on what the lock covers. Acknowledgements are rows; hints only shorten the
// wait.
func (r *Router) barrier(ctx context.Context, v catalog.Version, lock string) error {
	return r.await(ctx, v, lock, r.opts.BarrierTimeout, oldOperations)
}

// older says what of older versions must have ended. Cursors may be idle for minutes: they
// put a movement off, but no DDL.
type older int

const (
	oldWrites older = iota
	oldOperations
	oldCursors // and operations
)

// await is barrier with a limit and a choice of its own. A router that does not answer at
// all is waited for until it is evicted, if that can be certain, unless the limit is a
// short one; and so is one that was started again meanwhile, and shuts out its predecessor.
func (r *Router) await(ctx context.Context, v catalog.Version, lock string, patience time.Duration, what older) error {
	began := time.Now()
	defer r.timeBarrier(began)
	mutePatience := patience
	if patience >= r.opts.BarrierTimeout && !r.opts.Backend.Admin.None() {
		mutePatience = max(patience, r.opts.EvictAfter+evictPatience)
	}
	shards := r.snap.Load().shardsUnder(lock)
	for {
		ticked := r.ticked.wait()
		r.reload.signal()
		routers, err := r.store.Routers(ctx)
		if err != nil {
			return catalogError(err)
		}
		var late []string
		limit := mutePatience
		for i := range routers {
			why, is := behind(&routers[i], v, lock, shards, what)
			if !is {
				continue
			}
			late = append(late, routers[i].Name+why.text)
			if !why.mute {
				limit = patience
			}
		}
		if len(late) == 0 {
			return nil
		}
		if time.Since(began) > limit || r.isStopped() {
			return mongoerr.Newf(mongoerr.LockBusy,
				"router(s) %s did not acknowledge the metadata change in time", strings.Join(late, ", "))
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

// evictPatience is how long it may take to shut a router out of shards that are well.
const evictPatience = 5 * time.Second

// lag says what a router that is behind is waited for.
type lag struct {
	text string
	mute bool // for any answer, or to be shut out: which comes with time
}

// behind reports whether a router may still act by something older than v on what the
// lock covers, which lies on the given shards, and why if it is not silence. Where a former incarnation
// of it is not shut out of a shard, that one may still write to all that lies there, by
// whatever it knew; and so may one that is evicted.
func behind(o *catalog.Router, v catalog.Version, lock string, shards []string, what older) (why lag, is bool) {
	if o.Evicted {
		for _, u := range o.Users {
			if slices.Contains(shards, u.Shard) {
				return lag{fmt.Sprintf(" (it is silent, and not shut out of %s)", u.Shard), true}, true
			}
		}
		return lag{}, false
	}
	if o.Ack.Version < v {
		return lag{mute: true}, true
	}
	for _, h := range o.Ack.Held {
		if !catalog.LocksConflict(lock, h.NS) {
			continue
		}
		if what == oldCursors && h.Cursors != 0 && h.Cursors < v {
			return lag{text: fmt.Sprintf(" (cursors on %s are open)", h.NS)}, true
		}
		if what == oldWrites && (h.Writes == 0 || h.Writes >= v) {
			continue
		}
		if h.Version < v {
			return lag{text: fmt.Sprintf(" (operations on %s still run)", h.NS)}, true
		}
	}
	for _, u := range o.Users {
		if u.User != userOf(o.Incarnation) && slices.Contains(shards, u.Shard) {
			return lag{fmt.Sprintf(" (its predecessor is not shut out of %s)", u.Shard), true}, true
		}
	}
	return lag{}, false
}

// shardsUnder lists the shards on which something lies that the lock covers.
func (s *Snapshot) shardsUnder(lock string) []string {
	var shards []string
	add := func(e *Entry) {
		if e != nil && e.Table != nil {
			shards = append(shards, e.Table.Shards()...)
		}
	}
	for _, m := range s.movementsOf(lock, catalog.MovementCopying, catalog.MovementSwitched, catalog.MovementLeaving) {
		shards = append(shards, m.From, m.To)
		if m.Layout != nil {
			shards = append(shards, m.Layout.Shards()...)
		}
	}
	if _, coll := catalog.SplitNS(lock); coll != "" {
		add(s.Entries[lock])
		return shards
	}
	for ns, e := range s.Entries {
		if catalog.LocksConflict(lock, ns) {
			add(e)
		}
	}
	return shards
}
