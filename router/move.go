package router

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/movement"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// MoveCollection moves an unsharded collection to another shard while it is in use
// (docs/movement.md), and pins it there.
func (r *Router) MoveCollection(ctx context.Context, ns, to string) error {
	return r.withLock(ctx, ns, "moveCollection", func(l catalog.Lock) error {
		s := r.snap.Load()
		e := s.Entries[ns]
		if err := movable(s, e, ns, to); err != nil {
			return err
		}
		if err := r.moveWhole(ctx, l, e, to); err != nil {
			return err
		}
		e = r.snap.Load().Entries[ns]
		if e == nil || e.Home() != to || e.Coll.Pinned {
			return nil
		}
		row := *e.Coll
		row.Pinned = true
		return r.apply(context.WithoutCancel(ctx), catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{row}})
	})
}

// moveWhole moves an unsharded collection to a shard, if it is not there.
func (r *Router) moveWhole(ctx context.Context, l catalog.Lock, e *Entry, to string) error {
	if e.Home() == to {
		return nil
	}
	if err := unsuited(e); err != nil {
		return err
	}
	if err := r.clearLeft(ctx, l, e.Coll.NS); err != nil {
		return err
	}
	m := r.newMover(l, e, e.Home(), to, nil)
	m.facts.Known = true // no router goes there before the switch
	return m.begin(ctx)
}

// newMover is for a movement that is to begin.
func (r *Router) newMover(l catalog.Lock, e *Entry, from, to string, part *catalog.Range) *mover {
	m := &mover{r: r, lock: l, row: catalog.Movement{
		ID: uuid.New(), NS: e.Coll.NS, Collection: e.Coll.UUID, From: from, To: to, Range: part, State: catalog.MovementCopying, Since: time.Now(),
	}}
	m.facts = movement.Facts{State: m.row.State, Mine: true}
	return m
}

// movable checks what the command asks for (MONGOS.md §7.2).
func movable(s *Snapshot, e *Entry, ns, to string) error {
	switch {
	case e == nil:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Namespace %s does not exist", ns)
	case e.Coll.Kind == catalog.KindView:
		return onView(ns)
	case e.Sharded():
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "MoveCollection can only be called on an unsharded collection: %s is sharded", ns)
	}
	if _, known := s.Shards[to]; !known {
		return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", to)
	}
	if len(s.Shards) == 1 {
		return mongoerr.New(mongoerr.IllegalOperation, "MoveCollection cannot be called on a single-shard cluster.")
	}
	return nil
}

// unsuited refuses collections whose documents cannot be moved as others are: a mover
// writes in transactions, which capped collections do not take (PROTOCOL.md F22).
func unsuited(e *Entry) error {
	if capped, _ := e.Coll.Options.Lookup("capped").BooleanOK(); capped {
		return notYet("moving a capped collection")
	}
	if e.isSeries() {
		return notYet("moving a time series collection")
	}
	return nil
}

// mover carries out one movement, under its lock.
type mover struct {
	r     *Router
	lock  catalog.Lock
	row   catalog.Movement
	facts movement.Facts
	copy  copying // of the router that began it
	keys  *shardkey.Pattern
	begun catalog.Version // in which the row came, for the router that began it

	began   time.Time     // of holding writes back
	held    time.Duration // how long they were held for the switch
	refused int           // how often the switch was put off
	cause   error         // why it failed
}

// copying makes the copy of what moves, for the router that began it.
type copying interface {
	shape(ctx context.Context) error  // makes the recipients' collection
	all(ctx context.Context) error    // copies, and follows the changes until little is left
	finish(ctx context.Context) error // follows them to their end, and compares
	close(ctx context.Context)
	counts() (copied, changed int64)
}

// begin puts the movement's row and carries it out to the switch; what comes after may be
// left to others. A client that goes away does not end it, its time limit does.
func (m *mover) begin(ctx context.Context) error {
	run, cancel := m.r.untilEnding(ctx)
	defer cancel()
	if m.row.Layout != nil {
		m.copy = newResharding(m)
	} else {
		m.copy = newCopier(m)
	}
	v, err := m.r.applyVersion(run, catalog.Change{
		Locks: m.locks(), Movements: []catalog.Movement{m.row}, Log: []catalog.LogEntry{m.log("start")},
	})
	m.begun = v
	if err == nil {
		// A router that does not answer now would hold up the switch.
		err = m.r.await(run, v, m.row.NS, m.r.opts.BarrierTimeout, oldWrites)
	}
	if err != nil && v != 0 {
		m.fail(err)
	} else if err != nil {
		return err
	}
	m.carryOn(run)
	if m.row.Layout != nil && errors.Is(m.cause, errTokenGone) {
		m.cause = mongoerr.Newf(mongoerr.ReshardCollectionAborted, "the resharding of %s was ended by somebody", m.row.NS)
	}
	copied, changed := m.copy.counts()
	m.r.log.Info().Str("ns", m.row.NS).Str("from", m.row.From).Str("to", m.row.To).Str("state", string(m.row.State)).
		Int64("documents", copied).Int64("changes", changed).Dur("held", m.held).Err(m.cause).Msg(m.command())
	return m.cause
}

// carryOn does one action after another until writes flow again, or nothing more can be
// done now. Who finds the movement later goes on.
func (m *mover) carryOn(ctx context.Context) {
	for tries := 0; ; {
		a := movement.Next(m.facts)
		m.r.log.Debug().Str("ns", m.row.NS).Stringer("action", a).Msg("a movement's step")
		m.r.failpoint(ctx, "move-"+a.String())
		over, err := m.do(ctx, a)
		if over {
			return
		}
		if err == nil {
			tries = 0
			continue
		}
		m.r.log.Warn().Err(err).Str("ns", m.row.NS).Stringer("action", a).Msg("a movement's step")
		if a < movement.Record && m.facts.State == catalog.MovementCopying {
			m.fail(err)
			ctx = context.WithoutCancel(ctx) // it is undone all the same
			continue
		}
		if a == movement.Record {
			// Whether it is on record is not known. To look is to undo, or to find that it is.
			m.fail(err)
			continue
		}
		if tries++; lostLock(err) || tries > moveTries || m.r.isStopped() || !sleep(context.WithoutCancel(ctx), moveRetry) {
			if m.cause == nil {
				m.cause = err
			}
			return
		}
	}
}

// moveTries and moveRetry bound how long a router tries to finish or undo a movement
// before it leaves it to whoever finds it next.
const (
	moveTries = 40
	moveRetry = 250 * time.Millisecond
)

// lostLock reports whether the movement is another router's by now.
func lostLock(err error) bool {
	return errors.Is(err, catalog.ErrLockLost) || errors.Is(err, catalog.ErrEvicted)
}

// untilEnding is a context for a movement: it ends with the time limit of ctx, if that has
// one, or when the router is about to stop.
func (r *Router) untilEnding(ctx context.Context) (context.Context, context.CancelFunc) {
	var (
		run    context.Context
		cancel context.CancelFunc
	)
	if d, limited := ctx.Deadline(); limited {
		run, cancel = context.WithDeadline(context.WithoutCancel(ctx), d)
	} else {
		run, cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	r.wg.Go(func() {
		select {
		case <-r.ending:
		case <-r.stopped:
		case <-run.Done():
		}
		cancel()
	})
	return run, cancel
}

// EndMovements has movements that this router has begun undone, or finished where they
// cannot be any more: it is about to stop.
func (r *Router) EndMovements() { r.endOnce.Do(func() { close(r.ending) }) }

func (m *mover) fail(err error) {
	m.facts.Failed = true
	select {
	case <-m.r.ending:
		err = mongoerr.Wrap(mongoerr.InterruptedAtShutdown, err, "the router stops")
	default:
	}
	if m.cause == nil {
		m.cause = expired(err)
	}
}

// do carries out one action; over says that the movement is done with for now.
func (m *mover) do(ctx context.Context, a movement.Action) (over bool, err error) {
	switch a {
	case movement.Announce:
		err = m.announce(ctx)
		m.facts.Known = err == nil
	case movement.Shape:
		err = m.copy.shape(ctx)
		m.facts.Shaped = err == nil
	case movement.Copy:
		err = m.copy.all(ctx)
		m.facts.Copied = err == nil
	case movement.Hold, movement.Drain, movement.CatchUp:
		err = m.quiesce(ctx, a)
	case movement.Record:
		err = m.record(ctx)
	case movement.Switch:
		err = m.switchOver(context.WithoutCancel(ctx))
	case movement.Await:
		err = m.awaitSwitch(context.WithoutCancel(ctx))
	case movement.Release:
		if err = m.release(context.WithoutCancel(ctx)); err == nil && m.copy != nil {
			m.copy.close(ctx)
		}
		return err == nil, err
	case movement.Undo:
		return m.undo(context.WithoutCancel(ctx))
	case movement.Clean:
		_, err = m.clean(ctx, sweepSlice)
		return true, err
	case movement.Forget:
		return true, m.r.apply(ctx, catalog.Change{Locks: m.locks(), DropMovements: []uuid.UUID{m.row.ID}})
	case movement.Keep, movement.Recall:
		return true, nil
	}
	return false, err
}

func (m *mover) locks() []catalog.Lock { return []catalog.Lock{m.lock} }

// entry is the collection as the catalog has it now; nil if it is gone, or another.
func (m *mover) entry() *Entry {
	e := m.r.snap.Load().Entries[m.row.NS]
	if e == nil || e.Coll.UUID != m.row.Collection {
		return nil
	}
	return e
}

// movementsOf lists the movements of what a lock covers, by state.
func (s *Snapshot) movementsOf(lock string, states ...catalog.MovementState) []catalog.Movement {
	var list []catalog.Movement
	for _, m := range s.Movements {
		if catalog.LocksConflict(lock, m.NS) && slices.Contains(states, m.State) {
			list = append(list, m)
		}
	}
	return list
}
