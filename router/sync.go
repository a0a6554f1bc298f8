package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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
// ctx ends or another router takes this one's name; then it closes all shards and
// deregisters.
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
	r.wg.Keep(ctx, func() { r.watchOthers(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-hints:
			r.ticked.signal()
		case <-poll.C:
			r.sessions.expire(time.Now())
			r.measure(ctx)
		case <-r.reload:
		case <-r.drained:
		case <-prune.C:
			r.prune(ctx)
			continue
		}
		if err := r.tick(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tick looks at the catalog and answers it. An error ends the router.
func (r *Router) tick(ctx context.Context) error {
	err := r.Refresh(ctx)
	foreign := errors.Is(err, errOtherCatalog)
	if err == nil || foreign {
		err = r.acknowledge(ctx)
	}
	switch {
	case err == nil && foreign: // said once; reads and writes go on
	case err == nil:
		if r.down.Swap(false) {
			r.log.Info().Msg("the catalog is back")
		}
		if s := r.snap.Load(); len(s.fenced)+len(s.Movements) > 0 && r.recovering.CompareAndSwap(false, true) {
			r.wg.Go(func() {
				defer r.recovering.Store(false)
				r.recoverFenced(ctx)
			})
		}
	case ctx.Err() != nil:
	case errors.Is(err, catalog.ErrEvicted):
		err := r.superseded(ctx)
		if errors.Is(err, errReplaced) || errors.Is(err, errOtherCatalog) || errors.Is(err, ErrEvicted) {
			r.evicted.Store(errors.Is(err, ErrEvicted))
			return err
		}
		r.log.Error().Err(err).Msg("the catalog does not know this router any more")
	default:
		if !r.down.Swap(true) {
			r.log.Error().Err(err).Msg("the catalog is away; known collections are served from memory")
		}
	}
	return nil //nolint:nilerr // it is logged, and the next tick tries again
}

// errOtherCatalog stops metadata operations until the router is started again.
var errOtherCatalog = mongoerr.New(mongoerr.FailedToSatisfyReadPreference,
	"the catalog is not the one that this router knows, or went back in time: metadata operations are stopped until a person has looked and started the router again")

// Refresh loads what changed in the catalog and acts by it from now on.
func (r *Router) Refresh(ctx context.Context) error {
	// Who has a limit does not wait without one for a load that the catalog keeps waiting.
	if err := r.syncMu.lock(ctx); err != nil {
		return err
	}
	defer r.syncMu.unlock()
	if r.regressed.Load() {
		return errOtherCatalog
	}
	old := r.snap.Load()
	d, err := r.loadSince(ctx, old.Version)
	if err != nil {
		return err
	}
	if old.promoted(d) {
		// A replica took over. What it lacked may have been made up for by other
		// changes, so nothing that was loaded before is taken for granted.
		if d, err = r.loadSince(ctx, 0); err != nil {
			return err
		}
	}
	r.seen.Store(time.Now().UnixNano())
	switch {
	case !old.precedes(d):
		r.regressed.Store(true)
		r.log.Error().Int64("seen", int64(old.Version)).Int64("now", int64(d.Version)).
			Int64("seenTimeline", old.Timeline).Int64("timeline", d.Timeline).
			Str("seenCluster", old.Cluster).Str("cluster", d.Cluster).
			Msg("the catalog is another one, or it went back and lost acknowledged changes: DDL stops until a person has looked")
		return errOtherCatalog
	case d.Version == old.Version && !d.Full:
		return nil
	}
	next, retired, err := old.next(d)
	if errors.Is(err, errDelta) {
		if d, err = r.loadAnew(ctx, old, err); err != nil {
			return err
		}
		next, retired, err = old.next(d)
	}
	if err != nil {
		return fmt.Errorf("catalog version %d: %w", d.Version, err)
	}
	r.openShards(ctx, next)
	for i := range d.Movements {
		r.Clock.Advance(uint64(d.Movements[i].At)) // what is read there is not older (PROTOCOL.md F17)
	}
	r.snap.Store(next)
	for _, e := range retired {
		e.until = old.Version
		close(e.replaced)
	}
	r.retired = append(r.retired, retired...)
	return nil
}

// loadSince has the store load what changed after a version; syncMu is held. A load of
// everything may take longer than a router may be silent, so it beats meanwhile, and
// acknowledges nothing by that: what it loads may show that the catalog went back.
func (r *Router) loadSince(ctx context.Context, after catalog.Version) (*catalog.Delta, error) {
	loading, loaded := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() {
		for sleep(loading, heartbeatEvery) {
			at := time.Now()
			if err := r.store.Heartbeat(ctx, r.Self().Incarnation, catalog.Ack{Held: r.nextBeat().ack.Held}, nil); err != nil {
				r.log.Debug().Err(err).Msg("beat while the catalog is loaded")
				continue // acknowledge says what it is
			}
			r.heard.Store(&at)
		}
	})
	d, err := r.store.Load(ctx, after)
	loaded()
	beating.Wait()
	return d, err
}

// loadAnew loads everything after a change that did not fit: chunks were put by hand, or by
// a router of another version. What is all of it fits.
func (r *Router) loadAnew(ctx context.Context, old *Snapshot, why error) (*catalog.Delta, error) {
	r.log.Warn().Err(why).Msg("the catalog is loaded anew")
	d, err := r.loadSince(ctx, 0)
	if err == nil && !old.precedes(d) {
		err = errOtherCatalog // the next look at it says what it is
	}
	return d, err
}

// beat is what a heartbeat tells.
type beat struct {
	ack   catalog.Ack
	users []catalog.ShardUser
	at    time.Time
}

func (b *beat) same(o *beat) bool {
	return b.ack.Version == o.ack.Version && slices.Equal(b.ack.Held, o.ack.Held) && slices.Equal(b.users, o.users)
}

// acknowledge tells the catalog by which version this router acts and what is still in
// flight of older ones, and that it lives.
func (r *Router) acknowledge(ctx context.Context) error {
	if err := r.syncMu.lock(ctx); err != nil {
		return err
	}
	defer r.syncMu.unlock()
	b := r.nextBeat()
	refused := r.refused.Load()
	if b.same(&r.sent) && time.Since(r.sent.at) < heartbeatEvery && !refused {
		return nil
	}
	err := r.beat(ctx, &b)
	if err == nil && refused {
		r.refused.Store(false)
		r.log.Error().Msg("a shard refuses this router's user, though nobody has evicted it")
	}
	return err
}

// nextBeat is what is to be told now; syncMu is held.
func (r *Router) nextBeat() beat {
	// In this order: what opens a cursor is in flight until that is counted.
	r.retired = slices.DeleteFunc(r.retired, func(e *Entry) bool { return e.inflight.Load() == 0 && e.cursors.Load() == 0 })
	b := beat{ack: catalog.Ack{Held: heldBy(r.retired)}, users: r.shardUsers()}
	if !r.regressed.Load() {
		b.ack.Version = r.snap.Load().Version
	}
	return b
}

// beat sends a heartbeat; syncMu is held.
func (r *Router) beat(ctx context.Context, b *beat) error {
	b.at = time.Now() // who is stopped before the reply has not been heard since
	if err := r.store.Heartbeat(ctx, r.Self().Incarnation, b.ack, b.users); err != nil {
		return err
	}
	r.heard.Store(&b.at)
	r.sent = *b
	r.ticked.signal()
	return nil
}

// heldBy lists what replaced entries still run or read, by namespace.
func heldBy(retired []*Entry) []catalog.Hold {
	var held []catalog.Hold
	for _, e := range retired {
		if h := holdOf(e, e.until); h.Version != catalog.Stopped || h.Cursors != 0 {
			held = append(held, h)
		}
	}
	return sortHolds(held)
}

// holdOf says what runs by an entry of which v is the last version.
func holdOf(e *Entry, v catalog.Version) catalog.Hold {
	h := catalog.Hold{NS: e.Coll.NS, Version: catalog.Stopped}
	if e.inflight.Load() != 0 {
		h.Version = v
	}
	if e.writing.Load() != 0 {
		h.Writes = v
	}
	if e.cursors.Load() != 0 {
		h.Cursors = v
	}
	return h
}

// sortHolds leaves the oldest of each namespace.
func sortHolds(held []catalog.Hold) []catalog.Hold {
	slices.SortFunc(held, func(a, b catalog.Hold) int {
		return cmp.Or(cmp.Compare(a.NS, b.NS), cmp.Compare(a.Version, b.Version))
	})
	merged := held[:0]
	for _, h := range held {
		if n := len(merged); n > 0 && merged[n-1].NS == h.NS {
			merged[n-1].Writes = oldest(merged[n-1].Writes, h.Writes)
			merged[n-1].Cursors = oldest(merged[n-1].Cursors, h.Cursors)
			continue
		}
		merged = append(merged, h)
	}
	return merged
}

// oldest is the smaller of two versions that are 0 for none.
func oldest(a, b catalog.Version) catalog.Version {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// openShards opens shards that the snapshot has and the router does not, and closes
// those that are gone. The login is made behind: operations wait for it.
func (r *Router) openShards(ctx context.Context, s *Snapshot) {
	if r.isStopped() {
		return
	}
	old := *r.shards.Load()
	next := make(map[string]*backend.Shard, len(s.Shards))
	for id, row := range s.Shards {
		if have := old[id]; have != nil && have.Host == row.Host {
			next[id] = have
			continue
		}
		b, err := backend.Open(id, row.Host, &r.opts.Backend)
		if err != nil { // nothing was asked yet: it is the row, and a change of it comes here again
			r.log.Error().Err(err).Str("shard", id).Msg("open shard")
			continue
		}
		next[id] = b
		r.wg.Keep(ctx, func() { r.logIn(ctx, b) })
	}
	r.shards.Store(&next)
	for id, b := range old {
		if next[id] != b {
			r.wg.Go(func() { b.Close(context.WithoutCancel(ctx)) })
		}
	}
}

func (r *Router) prune(ctx context.Context) {
	for _, b := range r.Shards() {
		b.Prune()
	}
	r.peers.Prune()
	r.cursors.expire(func(c *Cursor) { r.killShardCursors(ctx, c) })
	r.txns.expire()
}

// measure measures the latencies of shards where it is time to, one shard after the other.
func (r *Router) measure(ctx context.Context) {
	var due []*backend.Shard
	for _, b := range r.Shards() {
		if b.MeasureDue() {
			due = append(due, b)
		}
	}
	if len(due) > 0 && r.measuring.CompareAndSwap(false, true) {
		r.wg.Go(func() {
			defer r.measuring.Store(false)
			for _, b := range due {
				b.Measure(ctx)
			}
		})
	}
}

// catalogError is what a client sees of a catalog failure: 133 where it cannot be
// reached (DESIGN.md "Catalog"), 46 where somebody else is at work.
func catalogError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, catalog.ErrUnavailable):
		return mongoerr.Wrap(mongoerr.FailedToSatisfyReadPreference, err, "the catalog (PostgreSQL) cannot be reached")
	case errors.Is(err, catalog.ErrEvicted):
		return ErrEvicted
	case errors.Is(err, catalog.ErrLocked):
		return mongoerr.Wrap(mongoerr.LockBusy, err, "another metadata operation is under way")
	case errors.Is(err, catalog.ErrLockLost), errors.Is(err, catalog.ErrConflict):
		return mongoerr.Wrap(mongoerr.ConflictingOperationInProgress, err, "the metadata changed meanwhile")
	default:
		return err
	}
}
