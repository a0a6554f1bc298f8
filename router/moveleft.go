package router

import (
	"bytes"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/movement"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

const (
	// retriesUntil is how long after a switch a client may repeat a write of before it:
	// sessions end after 30 minutes.
	retriesUntil = 31 * time.Minute
	// unreadPatience is how long those who read by an older table are waited for at once.
	unreadPatience = 200 * time.Millisecond
	// clearPatience is how long DDL waits for those who still read what has lately moved.
	clearPatience = 10 * time.Second
)

// found is a movement that another router has begun, or this one in another life.
func (r *Router) found(lock catalog.Lock, row catalog.Movement) *mover {
	m := &mover{r: r, lock: lock, row: row, facts: movement.Facts{State: row.State}}
	if e := m.entry(); e != nil {
		m.facts.Held = e.Coll.State != catalog.StateOpen
	}
	return m
}

// recoverMovements undoes or finishes what dead routers have left under way of what the
// lock covers. The snapshot was loaded under it.
func (r *Router) recoverMovements(ctx context.Context, lock catalog.Lock) error {
	for _, row := range r.snap.Load().movementsOf(lock.Name, catalog.MovementCopying, catalog.MovementSwitched) {
		m := r.found(lock, row)
		r.log.Info().Str("ns", row.NS).Str("state", string(row.State)).Msg("a movement that its router has left")
		if m.carryOn(ctx); m.cause != nil {
			return m.cause
		}
	}
	return nil
}

// tidyMovements takes up what no living router works on: movements under way, copies that
// can go, rows that can be forgotten.
func (r *Router) tidyMovements(ctx context.Context) {
	if time.Since(r.tidied) < recoverAfter {
		return
	}
	r.tidied = time.Now()
	for _, row := range r.snap.Load().Movements {
		if r.isStopped() || !r.due(&row) {
			continue
		}
		lock, err := r.acquire(ctx, row.NS, "a movement's end")
		if err != nil {
			continue // somebody is at work
		}
		if err = r.Refresh(ctx); err == nil {
			err = r.recoverEntry(ctx, lock, row.NS)
		}
		if now, there := r.snap.Load().Movements[row.ID.String()]; err == nil && there {
			m := r.found(lock, now)
			m.facts.Unread = now.State == catalog.MovementLeaving && m.unread(ctx)
			m.facts.Forgotten = time.Since(now.Since) > retriesUntil
			m.carryOn(ctx)
			err = m.cause
		}
		if err != nil {
			r.log.Warn().Err(err).Str("ns", row.NS).Str("state", string(row.State)).Msg("carry a movement on")
		}
		r.unlock(ctx, lock)
	}
}

// due reports whether it is time to look after a movement.
func (r *Router) due(m *catalog.Movement) bool {
	if m.State == catalog.MovementGone {
		return time.Since(m.Since) > retriesUntil
	}
	return time.Since(m.Since) > recoverAfter
}

// clearLeft removes what movements have left of a collection on its former shards, or fails
// if that is still read.
func (r *Router) clearLeft(ctx context.Context, lock catalog.Lock, ns string) error {
	return r.clear(ctx, lock, r.snap.Load().movementsOf(ns, catalog.MovementLeaving))
}

// clear ends movements that are left to leave.
func (r *Router) clear(ctx context.Context, lock catalog.Lock, rows []catalog.Movement) error {
	until := time.Now().Add(clearPatience)
	for _, row := range rows {
		m := r.found(lock, row)
		for !m.unread(ctx) {
			if time.Now().After(until) {
				return mongoerr.Newf(mongoerr.LockBusy, "%s has lately moved away from shard %s and is still read there", row.NS, row.From)
			}
			if !sleep(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		}
		if _, err := m.clean(ctx, forever); err != nil {
			return err
		}
	}
	return nil
}

// leftOn lists the shards on which movements have left a copy of the collection.
func (s *Snapshot) leftOn(e *Entry) []string {
	var shards []string
	for _, m := range s.movementsOf(e.Coll.NS, catalog.MovementLeaving) {
		if m.Collection == e.Coll.UUID {
			shards = append(shards, m.From)
		}
	}
	return shards
}

// clean removes the donor's copy; it reports false if that is not done within a limit.
func (m *mover) clean(ctx context.Context, limit time.Duration) (done bool, err error) {
	if done, err := m.cleanShard(ctx, m.row.From, m.donorID(), limit); !done || err != nil {
		return false, err
	}
	next := m.row
	next.State = catalog.MovementGone
	err = m.r.apply(ctx, catalog.Change{Locks: m.locks(), Movements: []catalog.Movement{next}})
	if err == nil {
		m.row, m.facts.State = next, next.State
	}
	return err == nil, err
}

// cleanShard removes what a shard has of the movement: the whole collection, if there is
// nothing else of it.
func (m *mover) cleanShard(ctx context.Context, shard, document string, limit time.Duration) (done bool, err error) {
	if m.row.Range == nil {
		return true, m.dropCopy(ctx, shard)
	}
	if m.hasElse(shard) {
		if done, err := m.sweep(ctx, shard, document, limit); !done || err != nil {
			return false, err
		}
		return true, m.endSweeps(ctx, shard, document)
	}
	if err := m.endSweeps(ctx, shard, document); err != nil {
		return false, err
	}
	return true, m.dropCopy(ctx, shard)
}

// hasElse reports whether a shard has other parts of the collection than this movement's:
// some that it owns, or what other movements have there.
func (m *mover) hasElse(shard string) bool {
	e := m.entry()
	if m.row.Range == nil || e == nil || e.Table == nil {
		return false
	}
	if slices.Contains(e.Table.Shards(), shard) {
		return true
	}
	return slices.ContainsFunc(e.unowned, func(o catalog.Movement) bool { return o.ID != m.row.ID && o.Unowned() == shard })
}

// unread reports whether nothing reads the donor's copy any more: no operation of an older
// table, no cursor on any member, no transaction. After a time it may go all the same.
//
// Of a range no transaction is waited for: its snapshot keeps what it sees, and what it
// would see of the range is refused since the switch.
func (m *mover) unread(ctx context.Context) bool {
	if time.Since(m.row.Since) > m.r.opts.OrphanDelay {
		return true
	}
	if m.row.Range != nil {
		s := m.r.snap.Load()
		v, seen := s.released[m.row.ID.String()]
		if !seen {
			v = s.Version
		}
		return m.r.await(ctx, v, m.row.NS, unreadPatience, oldCursors) == nil
	}
	if m.r.await(ctx, m.r.snap.Load().Version, m.row.NS, unreadPatience, oldOperations) != nil {
		return false
	}
	if read, err := m.isRead(ctx); read || err != nil {
		return false
	}
	found, err := m.r.find(ctx, m.row.From, m.row.NS)
	if err != nil || found == nil || found.uuid() != m.row.Collection {
		return err == nil
	}
	db, coll := catalog.SplitNS(m.row.NS)
	_, err = m.ask(ctx, m.row.From, db, bson.D{
		{Key: "collMod", Value: coll},
		{Key: "collectionUUID", Value: binaryUUID(m.row.Collection)},
		{Key: "maxTimeMS", Value: drainPatience.Milliseconds()},
	})
	return err == nil
}

// isRead looks for operations and cursors on the donor's members that read the collection,
// under its name or in a stage of another's pipeline. Change streams read the log.
func (m *mover) isRead(ctx context.Context) (bool, error) {
	b := m.r.Shard(m.row.From)
	if b == nil {
		return false, nil
	}
	db, coll := catalog.SplitNS(m.row.NS)
	inDB := bson.D{{Key: "ns", Value: bson.Regex{Pattern: "^" + quoteRegex(db) + `\.`}}}
	elems, err := bson.Marshal(bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleCursors", Value: true}}}},
			bson.D{{Key: "$match", Value: inDB}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: int32(10000)}}},
		{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "secondaryPreferred"}}},
	})
	if err != nil {
		return true, err
	}
	name := append(append([]byte{0, 0, 0, 0}, coll...), 0) // as a BSON string has it
	name[0], name[1] = byte(len(coll)+1), byte((len(coll)+1)>>8)
	for _, addr := range b.Members() {
		ctx, cancel := withTimeout(ctx)
		body, err := b.RunAt(ctx, addr, "admin", elems[4:len(elems)-1])
		cancel()
		if err != nil {
			return true, err
		}
		batch, err := bson.Raw(body).LookupErr("cursor", "firstBatch")
		if err != nil {
			return true, err
		}
		ops, err := batch.Array().Values()
		if err != nil {
			return true, err
		}
		for _, op := range ops {
			if ns, _ := op.Document().Lookup("ns").StringValueOK(); ns != m.row.NS && !bytes.Contains(op.Value, name) {
				continue
			}
			if !bytes.Contains(op.Value, []byte("$changeStream\x00")) {
				return true, nil
			}
		}
	}
	return false, nil
}
