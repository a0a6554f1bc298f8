package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
)

// errReplaced ends a router whose name another one has taken: both would take it from
// each other for ever.
var errReplaced = errors.New("another router runs under this name")

// ErrEvicted ends a router that others have shut out. Another one may take its place at
// once, under the same name.
var ErrEvicted = errors.New("this router was shut out: it did not answer for too long")

// register makes the catalog row of a new incarnation, which inherits the shard users
// of the one that it replaces (PROTOCOL.md, "More rules" 2 and 3).
func (r *Router) register(ctx context.Context) (replaced *catalog.Router, err error) {
	incarnation := uuid.NewString()
	self, replaced, err := r.store.Register(ctx, catalog.Router{
		Incarnation: incarnation, Name: r.opts.Name, Version: r.opts.Version, Started: time.Now(),
	})
	if err != nil {
		r.disown(ctx, incarnation)
		return nil, fmt.Errorf("register router %s: %w", r.opts.Name, err)
	}
	r.self.Store(self)
	r.usersMu.Lock()
	defer r.usersMu.Unlock()
	for _, u := range self.Users {
		if _, known := r.former[u]; !known {
			r.former[u] = false
		}
	}
	return replaced, nil
}

// disown sees to it that a row which may have been made, its reply being lost, holds
// nothing up but what it inherited.
func (r *Router) disown(ctx context.Context, incarnation string) {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	err := r.store.Heartbeat(ctx, incarnation, catalog.Ack{Version: catalog.Stopped}, nil)
	if err != nil && !errors.Is(err, catalog.ErrEvicted) {
		r.log.Warn().Err(err).Msg("a row may be left in the catalog: metadata operations wait until this router is started again")
	}
}

// superseded says why a router whose row is gone, or that others have evicted, ends: the
// catalog is another one, the name is another router's by now, or neither, in which case
// a new Router may take its place. Whatever this one has under way must never come to a
// shard by a later login: so it ends for good, with its connections, and does not
// register again.
func (r *Router) superseded(ctx context.Context) error {
	if r.regressed.Load() {
		return fmt.Errorf("%w, and knows this router no more", errOtherCatalog)
	}
	routers, err := r.store.Routers(ctx)
	if err != nil {
		return err
	}
	for i := range routers {
		if routers[i].Name == r.opts.Name && routers[i].Incarnation != r.Self().Incarnation {
			return fmt.Errorf("%w, %s, started %s: give each router an \"advertise\" of its own", errReplaced,
				r.opts.Name, routers[i].Started.Format(time.RFC3339))
		}
	}
	return ErrEvicted
}

// userOf is the name of an incarnation's mongod user, the same on every shard.
func userOf(incarnation string) string { return "shardgate-" + incarnation }

// logIn makes this incarnation's own user on a shard, trying until it is done, or the
// shard is gone or the router evicted. The user is used only when the catalog has it in
// this router's row and so knows whom to shut out.
func (r *Router) logIn(ctx context.Context, b *backend.Shard) {
	ctx, cancel := r.untilStopped(ctx)
	defer cancel()
	r.usersMu.Lock()
	r.users[b.ID] = userOf(r.Self().Incarnation)
	r.usersMu.Unlock()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := r.tryLogIn(ctx, b)
		if err == nil {
			// The first answer sets the clock: from then on every reply carries a time.
			_, err = r.run(ctx, b.ID, "admin", bson.D{{Key: "ping", Value: int32(1)}})
		}
		if err == nil || errors.Is(err, catalog.ErrEvicted) {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-b.Done():
			t.Stop()
			return
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		r.log.Warn().Err(err).Str("shard", b.ID).Msg("log in to shard")
	}
}

func (r *Router) tryLogIn(ctx context.Context, b *backend.Shard) error {
	c, err := b.CreateUser(ctx, userOf(r.Self().Incarnation))
	if err != nil {
		return err
	}
	if err := r.syncMu.lock(ctx); err != nil {
		return err
	}
	defer r.syncMu.unlock()
	next := r.nextBeat()
	if err := r.beat(ctx, &next); err != nil {
		return err
	}
	return b.SetCredential(c)
}

// shardUsers lists the users that this router has on shards, and those of former
// incarnations that may still be there.
func (r *Router) shardUsers() []catalog.ShardUser {
	r.usersMu.Lock()
	defer r.usersMu.Unlock()
	users := make([]catalog.ShardUser, 0, len(r.users)+len(r.former))
	for shard, user := range r.users {
		users = append(users, catalog.ShardUser{Shard: shard, User: user})
	}
	for u := range r.former {
		users = append(users, u)
	}
	slices.SortFunc(users, func(a, b catalog.ShardUser) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.User, b.User))
	})
	return slices.Compact(users)
}

// expectUser notes that an incarnation may have left a user on each shard.
func (r *Router) expectUser(incarnation string) {
	r.usersMu.Lock()
	defer r.usersMu.Unlock()
	for id := range r.snap.Load().Shards {
		u := catalog.ShardUser{Shard: id, User: userOf(incarnation)}
		if _, known := r.former[u]; !known {
			r.former[u] = false
		}
	}
}

// untilStopped is a context for what is done in the background: it ends when the router
// stops, which no dead shard is to hold up.
func (r *Router) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.wg.Go(func() {
		select {
		case <-r.stopped:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// Evicted reports whether others have shut this router out, or a shard says so and the
// catalog does not deny it yet. It can do nothing for anybody then.
func (r *Router) Evicted() bool { return r.evicted.Load() || r.refused.Load() }

// Stopped is closed when the router begins to close: nobody is to come to it any more.
func (r *Router) Stopped() <-chan struct{} { return r.stopped }

// Limits of what a router that stops waits for: its last operations, its users on the
// shards, the catalog. Each has its own, so that none takes another's.
const (
	idleLimit    = 5 * time.Second
	leaveLimit   = 5 * time.Second
	signOffLimit = 5 * time.Second
)

// Close ends a router that will not Run: it closes all shards and deregisters, also
// where ctx has ended.
//
// One that is evicted waits for nothing, as nothing that it has begun can be done any
// more, and leaves its row to those who shut it out.
func (r *Router) Close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if !r.evicted.Load() {
		r.awaitIdle(ctx)
	}
	close(r.stopped)
	if r.peers != nil {
		r.peers.Close()
	}
	r.leaveShards(ctx)
	r.wg.Wait()
	if r.evicted.Load() {
		return
	}
	if err := r.signOff(ctx); err != nil {
		r.log.Warn().Err(err).Msg("deregister")
	}
}

// awaitIdle waits, not for long, until no operation is in flight: a write whose reply
// was lost is still looked for.
func (r *Router) awaitIdle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, idleLimit)
	defer cancel()
	for {
		held, err := r.inFlight(ctx)
		if err != nil || len(held) == 0 || !sleep(ctx, 10*time.Millisecond) {
			return
		}
	}
}

// inFlight lists on what operations run, whatever their table.
func (r *Router) inFlight(ctx context.Context) ([]catalog.Hold, error) {
	if err := r.syncMu.lock(ctx); err != nil {
		return nil, err
	}
	defer r.syncMu.unlock()
	s := r.snap.Load()
	held := heldBy(r.retired)
	for _, e := range s.Entries {
		held = append(held, holdOf(e, s.Version))
	}
	for i := range held {
		held[i].Cursors = 0 // they end with this router
	}
	held = slices.DeleteFunc(held, func(h catalog.Hold) bool { return h.Version == catalog.Stopped })
	return sortHolds(held), nil
}

// leaveShards drops this router's users where they can be reached, and closes all shards.
func (r *Router) leaveShards(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	for _, b := range r.Shards() {
		r.usersMu.Lock()
		user := r.users[b.ID]
		r.usersMu.Unlock()
		if user != "" && !r.evicted.Load() && b.HasPrimary() {
			if err := b.DropUser(ctx, user); err != nil {
				r.log.Warn().Err(err).Msg("drop own user")
			}
		}
		b.Close(ctx)
	}
}

// signOff takes this router's row away. If something that it began may still run on a
// shard, or a former incarnation is not shut out, the row stays and says so: changes of
// what is concerned wait until the next incarnation has shut both out.
func (r *Router) signOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, signOffLimit)
	defer cancel()
	incarnation := r.Self().Incarnation
	held, err := r.inFlight(ctx)
	if err != nil {
		return err
	}
	r.usersMu.Lock()
	former := len(r.former)
	r.usersMu.Unlock()
	if len(held) == 0 && former == 0 {
		return r.store.Deregister(ctx, incarnation)
	}
	r.log.Error().Interface("held", held).Int("formerUsers", former).
		Msg("not everything that ran is known to have ended: changes of what is concerned wait until this router is started again")
	return r.store.Heartbeat(ctx, incarnation, catalog.Ack{Version: catalog.Stopped, Held: held}, r.shardUsers())
}
