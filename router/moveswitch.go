package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/movement"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

const (
	// holdPatience is how long writes are held back for the routers to be ready for the
	// switch; if they are not, it is put off.
	holdPatience = 2 * time.Second
	// holdBudget is how long the whole switch may take up to its record.
	holdBudget = 5 * time.Second
	// drainPatience is how long the donor is asked to wait for an open transaction: reads
	// queue behind that.
	drainPatience = 100 * time.Millisecond
	// switchPatience is how long a switch is put off. A mongod ends transactions that are
	// open for 60 s.
	switchPatience = 75 * time.Second
	switchPause    = 500 * time.Millisecond
)

// quiesce brings the writes to rest and the copies together. What cannot be done in
// time lets writes flow again and is tried later.
func (m *mover) quiesce(ctx context.Context, a movement.Action) error {
	var err error
	switch a {
	case movement.Hold:
		if m.row.Layout != nil {
			if err = m.letEnd(ctx); err == nil {
				err = m.copy.all(ctx) // what was changed meanwhile
			}
		}
		m.began = time.Now()
		if err == nil {
			err = m.setHeld(ctx, true)
		}
		if err == nil {
			m.facts.Held = true
			return nil
		}
	case movement.Drain:
		if err = m.drain(ctx); err == nil {
			m.facts.Drained = true
			return nil
		}
	default:
		if err = m.copy.finish(ctx); err == nil && time.Since(m.began) > holdBudget {
			err = errTooSlow
		}
		if err == nil {
			m.facts.Equal = true
			return nil
		}
	}
	code := mongoerr.CodeOf(err)
	again := code == mongoerr.LockBusy || err == errTooSlow //nolint:errorlint // it is never wrapped
	if m.refused++; !again || time.Duration(m.refused)*switchPause > switchPatience {
		return err
	}
	m.r.log.Info().Err(err).Str("ns", m.row.NS).Stringer("action", a).Int("times", m.refused).Msg("a movement's switch is put off")
	m.facts.Held, m.facts.Drained, m.facts.Copied = false, false, false
	if err := m.setHeld(ctx, false); err != nil {
		return err
	}
	if !sleep(ctx, switchPause) {
		return ctx.Err()
	}
	return nil
}

var errTooSlow = mongoerr.New(mongoerr.LockBusy, "the last changes could not be copied in time")

// setHeld has writes held back, or not any more.
func (m *mover) setHeld(ctx context.Context, held bool) error {
	e := m.entry()
	if e == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "%s is gone", m.row.NS)
	}
	row := *e.Coll
	row.State = catalog.StateOpen
	if held && m.row.Layout != nil {
		row.State = catalog.StateFenced // reads as well: the collection is about to be replaced
	} else if held {
		row.State = catalog.StateHeld
	}
	_, err := m.r.applyVersion(ctx, catalog.Change{Locks: m.locks(), Rows: []catalog.Collection{row}})
	return err
}

// letEnd waits for all that runs now, while all goes on: a read that takes long is not to
// keep everybody waiting behind a fence.
func (m *mover) letEnd(ctx context.Context) error {
	if err := m.setHeld(ctx, false); err != nil { // a new entry, so that it can be told what is older
		return err
	}
	return m.r.await(ctx, m.r.snap.Load().Version, m.row.NS, announcePatience, oldOperations)
}

// drain waits until no write is in flight: not at a router, not lost on the way, not in a
// transaction that may be committed yet (PROTOCOL.md F2, F3). A collMod of nothing takes
// the lock that all transactions share which have touched the collection.
func (m *mover) drain(ctx context.Context) error {
	what := oldWrites
	if m.row.Layout != nil {
		what = oldOperations
	}
	if err := m.r.await(ctx, m.r.snap.Load().Version, m.row.NS, holdPatience, what); err != nil {
		return err
	}
	for _, shard := range m.donors() {
		if err := m.drainAt(ctx, shard); err != nil {
			return err
		}
	}
	return nil
}

// drainAt waits until no open transaction on a donor has touched the collection.
func (m *mover) drainAt(ctx context.Context, shard string) error {
	db, coll := catalog.SplitNS(m.row.NS)
	_, err := m.ask(ctx, shard, db, bson.D{
		{Key: "collMod", Value: coll},
		{Key: "collectionUUID", Value: binaryUUID(m.row.Collection)},
		{Key: "maxTimeMS", Value: drainPatience.Milliseconds()},
	})
	if mongoerr.CodeOf(err) == mongoerr.MaxTimeMSExpired {
		return mongoerr.Newf(mongoerr.LockBusy, "an open transaction on %s has not ended in time", m.row.NS)
	}
	return err
}

// record writes down that the recipient owns the collection: on the donor, where the first
// record decides, then on the recipient (PROTOCOL.md F12).
func (m *mover) record(ctx context.Context) error {
	out, err := m.decide(ctx, movement.OutcomeSwitched)
	if err == nil {
		m.facts.Recorded = out
	}
	if out == movement.OutcomeUndone {
		m.fail(errTokenGone)
	}
	return err
}

// switchOver makes the recipient the owner in the catalog. Its clock is past everything
// that the donor has shown, and every router's will be (PROTOCOL.md F17).
func (m *mover) switchOver(ctx context.Context) error {
	m.cause = nil // it is done, whatever failed on the way
	if m.row.Layout != nil {
		return m.swapOver(ctx)
	}
	at, err := m.closeAt(ctx, m.row.To, movement.OutcomeSwitched)
	if err != nil {
		return err
	}
	if err := m.r.Refresh(ctx); err != nil {
		return catalogError(err)
	}
	e := m.entry()
	if e == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "%s is gone", m.row.NS)
	}
	row := *e.Coll
	row.State, row.LastMod = catalog.StateHeld, time.Now()
	edit, err := m.newChunks(e, at)
	if err != nil {
		return err
	}
	next := m.row
	next.State, next.At, next.Since = catalog.MovementSwitched, at, time.Now()
	err = m.r.apply(ctx, catalog.Change{
		Locks: m.locks(), Rows: []catalog.Collection{row}, Chunks: []catalog.ChunkEdit{edit}, Movements: []catalog.Movement{next},
		Log: append([]catalog.LogEntry{m.log("commit")}, m.sides("")...),
	})
	if err == nil {
		m.row, m.facts.State = next, next.State
	}
	return err
}

// awaitSwitch waits until every router reads at the recipient: one that still read at the
// donor would miss what another has written since.
func (m *mover) awaitSwitch(ctx context.Context) error {
	err := m.r.await(ctx, m.r.snap.Load().Version, m.row.NS, m.r.opts.BarrierTimeout, oldWrites)
	m.facts.Acknowledged = err == nil
	return err
}

// release lets writes flow to the new owner.
func (m *mover) release(ctx context.Context) error {
	next := m.row
	next.State, next.Since = catalog.MovementLeaving, time.Now()
	c := catalog.Change{Locks: m.locks(), Movements: []catalog.Movement{next}}
	if e := m.entry(); e != nil && e.Coll.State == catalog.StateHeld {
		row := *e.Coll
		row.State = catalog.StateOpen
		c.Rows = []catalog.Collection{row}
	}
	err := m.r.apply(ctx, c)
	if err == nil {
		m.row, m.facts.State = next, next.State
		if !m.began.IsZero() {
			m.held = time.Since(m.began)
		}
	}
	return err
}

// undo leaves the collection where it is: unless the shards say that it has moved.
func (m *mover) undo(ctx context.Context) (over bool, err error) {
	if m.facts.Recorded == movement.OutcomeNone {
		out, err := m.decide(ctx, movement.OutcomeUndone)
		m.facts.Recorded = out
		if err != nil || out == movement.OutcomeSwitched {
			return false, err
		}
	}
	// What follows is no other router's: the lock is still ours.
	c := catalog.Change{Locks: m.locks()}
	entries := append([]catalog.LogEntry{m.log("error")}, m.sides("aborted")...)
	if err := m.r.apply(ctx, catalog.Change{Locks: m.locks(), Log: entries}); err != nil {
		return false, err
	}
	if e := m.entry(); e != nil && e.Coll.State != catalog.StateOpen {
		// Writes need not wait for the copy to go: no router goes there.
		row := *e.Coll
		row.State = catalog.StateOpen
		if err := m.r.apply(ctx, catalog.Change{Locks: m.locks(), Rows: []catalog.Collection{row}}); err != nil {
			return false, err
		}
	}
	for _, shard := range m.recipients() {
		if _, err := m.closeAt(ctx, shard, movement.OutcomeUndone); err != nil {
			return false, err
		}
		if err := m.discard(ctx, shard); err != nil {
			return false, err
		}
	}
	if m.copy != nil {
		m.copy.close(ctx)
	}
	c.DropMovements = append(c.DropMovements, m.row.ID)
	return true, m.r.apply(ctx, c)
}

// ask runs a command of the movement on a shard. When it returns, nothing of the command
// runs or may still come: what comes next would otherwise meet it.
func (m *mover) ask(ctx context.Context, shard, db string, cmd bson.D) (wire.Doc, error) {
	body, err := m.r.run(ctx, shard, db, cmd)
	return body, m.certain(ctx, shard, err)
}

func (m *mover) certain(ctx context.Context, shard string, err error) error {
	return m.r.certain(ctx, shard, err)
}
