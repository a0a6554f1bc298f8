package router

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/movement"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// tempNS is the collection into which a resharding copies. A random UUID is in its name, so
// that none is ever made again; the catalog does not know it, so that no client sees it.
func (m *mover) tempNS() string { return m.row.TempNS() }

func (m *mover) tempNames() (db, coll string) { return catalog.SplitNS(m.tempNS()) }

// shape makes the temporary collections, with all options and indexes of the present one,
// and one that supports the new key.
func (re *resharding) shape(ctx context.Context) error {
	m := re.m
	if err := re.tables(); err != nil {
		return err
	}
	if err := m.r.prepareInternal(ctx, m.row.From); err != nil {
		return err
	}
	home := re.old.Shards()[0]
	like, err := m.r.find(ctx, home, m.row.NS)
	if err != nil {
		return err
	}
	if like == nil || like.uuid() != m.row.Collection {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found on its shard: %s", m.row.NS)
	}
	indexes, err := re.indexes(ctx, home, like)
	if err != nil {
		return err
	}
	like.Info.UUID = binaryUUID(m.row.Layout.UUID)
	for _, shard := range m.recipients() {
		if err := m.openAt(ctx, shard); err != nil {
			return err
		}
		if err := m.certain(ctx, shard, m.r.copyTo(ctx, shard, m.tempNS(), like)); err != nil {
			return err
		}
		if len(indexes) == 0 {
			continue
		}
		db, coll := m.tempNames()
		if _, err := m.ask(ctx, shard, db, bson.D{
			{Key: "createIndexes", Value: coll},
			{Key: "indexes", Value: indexes},
			{Key: "collectionUUID", Value: binaryUUID(m.row.Layout.UUID)},
			{Key: "writeConcern", Value: majorityWrites},
		}); err != nil {
			return err
		}
	}
	return nil
}

// ready asks all recipients before anything is done: each must be there, and have nothing
// else under the collection's name.
func (m *mover) ready(ctx context.Context) error {
	for _, shard := range m.recipients() {
		found, err := m.r.find(ctx, shard, m.row.NS)
		if err == nil && found != nil && found.uuid() != m.row.Collection {
			err = m.r.dropStranger(ctx, shard, m.row.NS)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tables makes the routing table of the layout.
func (re *resharding) tables() (err error) {
	l := re.m.row.Layout
	if l.Key == nil {
		return nil
	}
	re.next, err = shardkey.NewTable(catalog.CollectionChunks{Collection: catalog.Collection{NS: re.m.row.NS, Key: l.Key}, Chunks: l.Chunks})
	return err
}

// indexes are those of the collection as they are to be made in its copies.
func (re *resharding) indexes(ctx context.Context, home string, like *collInfo) (list bson.A, err error) {
	db, coll := catalog.SplitNS(re.m.row.NS)
	supported := re.next == nil || isIDKey(re.next.Pattern())
	err = re.m.r.drain(ctx, home, db, bson.D{{Key: "listIndexes", Value: coll}}, func(doc bson.Raw) error {
		if _, err := doc.LookupErr("expireAfterSeconds"); err == nil {
			re.ttl = true
		}
		var x indexInfo
		if err := bson.Unmarshal(doc, &x); err != nil {
			return err
		}
		supported = supported || x.plain() && !x.Hidden && indexSupports(re.next.Pattern(), x.Key)
		if !x.isID() {
			list = append(list, spelledOut(doc, like))
		}
		return nil
	})
	if !supported {
		list = append(list, keyIndexOf(re.next.Pattern(), len(collationOf(like.Options)) > 0))
	}
	return list, err
}

// keyIndexOf is the index of a shard key.
func keyIndexOf(p *shardkey.Pattern, collated bool) bson.D {
	index := bson.D{{Key: "key", Value: p.Raw()}, {Key: "name", Value: indexName(p.Raw())}}
	if collated {
		index = append(index, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}})
	}
	return index
}

// swapOver puts the copies in the collection's place on all shards, then the new layout in
// the catalog. Nothing reads or writes the collection meanwhile, and the outcome is on
// record: whoever comes to it goes on from wherever it was left.
func (m *mover) swapOver(ctx context.Context) error {
	if err := m.r.Refresh(ctx); err != nil {
		return catalogError(err)
	}
	l := m.row.Layout
	if e := m.r.snap.Load().Entries[m.row.NS]; e != nil && e.Coll.UUID == l.UUID {
		m.row.State, m.facts.State = catalog.MovementGone, catalog.MovementGone // it is done, and the answer was lost
		return nil
	}
	e := m.entry()
	if e == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "%s is gone", m.row.NS)
	}
	for _, shard := range m.recipients() {
		if _, err := m.closeAt(ctx, shard, movement.OutcomeSwitched); err != nil {
			return err
		}
	}
	m.r.failpoint(ctx, "move-swap")
	for _, shard := range m.recipients() {
		if err := m.swapAt(ctx, shard); err != nil {
			return err
		}
		m.r.failpoint(ctx, "move-swapped")
	}
	for _, shard := range append(m.donors(), m.r.snap.Load().leftOn(e)...) {
		if slices.Contains(m.recipients(), shard) {
			continue
		}
		if err := m.certain(ctx, shard, m.r.dropAt(ctx, shard, m.row.NS, m.row.Collection)); err != nil {
			return err
		}
	}
	at, err := m.switchTime(ctx)
	if err != nil {
		return err
	}
	err = m.r.apply(ctx, m.newLayout(e, at))
	if err == nil {
		m.row.State, m.facts.State = catalog.MovementGone, catalog.MovementGone
		if !m.began.IsZero() {
			m.held = time.Since(m.began)
		}
		if m.copy != nil {
			m.copy.close(ctx)
		}
	}
	return err
}

// swapAt gives a recipient's copy the collection's name. The temporary name never comes
// again, so that a command of this that is late does nothing.
func (m *mover) swapAt(ctx context.Context, shard string) error {
	found, err := m.r.find(ctx, shard, m.row.NS)
	switch {
	case err != nil:
		return err
	case found != nil && found.uuid() == m.row.Layout.UUID:
		return m.r.settle(ctx, shard)
	case found != nil && found.uuid() != m.row.Collection:
		// A failed attempt to make a collection of the name may be late.
		if err := m.r.dropStranger(ctx, shard, m.row.NS); err != nil {
			return err
		}
	}
	_, err = m.ask(ctx, shard, "admin", bson.D{
		{Key: "renameCollection", Value: m.tempNS()},
		{Key: "to", Value: m.row.NS},
		{Key: "dropTarget", Value: true},
		{Key: "writeConcern", Value: majorityWrites},
	})
	return err
}

// switchTime is a cluster time at which all recipients have the collection in its new form,
// and after everything that the donors have shown (PROTOCOL.md F17).
func (m *mover) switchTime(ctx context.Context) (at catalog.Timestamp, err error) {
	for _, shard := range m.recipients() {
		body, err := m.note(ctx, shard, m.tokenID(), bson.D{{Key: "swapped", Value: true}})
		if err != nil {
			return 0, err
		}
		info, err := wire.Inspect(body)
		if err != nil {
			return 0, err
		}
		at = max(at, catalog.Timestamp(info.OperationTime))
	}
	return at, nil
}

// stillOpen fails when somebody has ended the movement.
func (m *mover) stillOpen(ctx context.Context) error {
	out, err := m.recordedAt(ctx, m.row.To)
	if err == nil && out != "" {
		err = errTokenGone
	}
	return err
}

// newLayout is the change of the catalog: the collection in its new form, open again, and
// for each shard that it leaves a row by which that one is asked about repeated writes.
func (m *mover) newLayout(e *Entry, at catalog.Timestamp) catalog.Change {
	l := m.row.Layout
	row := *e.Coll
	// The timestamp stays: it is the same life of the collection (movedAt, claims).
	row.UUID, row.State, row.Key, row.Epoch, row.LastMod = l.UUID, catalog.StateOpen, l.Key, bson.NewObjectID(), time.Now()
	row.Kind, row.Unique, row.Pinned = catalog.KindSharded, false, false
	history := []catalog.Owner{{ValidAfter: at}}
	if l.Key == nil {
		row.Kind, row.Pinned = catalog.KindUnsharded, true
		history = append(history, catalog.Owner{Shard: m.row.From, ValidAfter: e.Coll.Timestamp})
	}
	chunks := slices.Clone(l.Chunks)
	for i := range chunks {
		c := &chunks[i]
		c.OnShardSince, c.LastMod = at, catalog.Timestamp(1<<32|uint64(i))
		c.History = slices.Clone(history)
		c.History[0].Shard = c.Shard
	}
	return catalog.Change{
		Locks:         m.locks(),
		Put:           []catalog.CollectionChunks{{Collection: row, Chunks: chunks}},
		Movements:     m.former(e, at),
		DropMovements: []uuid.UUID{m.row.ID},
		Log:           []catalog.LogEntry{m.log("commit")},
	}
}

// former are the rows of all shards that had the collection up to a time and may be asked
// about repeated writes: those of before as well, whose copies are gone now.
func (m *mover) former(e *Entry, at catalog.Timestamp) []catalog.Movement {
	var rows []catalog.Movement
	for _, old := range m.r.snap.Load().Movements {
		if old.NS == m.row.NS && old.Collection == m.row.Collection && old.ID != m.row.ID {
			old.Collection, old.Range, old.State = m.row.Layout.UUID, nil, catalog.MovementGone
			rows = append(rows, old)
		}
	}
	for _, shard := range m.donors() {
		to := shard // it may be the only one
		for _, r := range m.recipients() {
			if r != shard {
				to = r
			}
		}
		rows = append(rows, catalog.Movement{
			ID: uuid.New(), NS: m.row.NS, Collection: m.row.Layout.UUID, From: shard, To: to,
			State: catalog.MovementGone, At: at, Since: time.Now(), Layout: &catalog.Layout{UUID: m.row.Layout.UUID, Key: m.row.Layout.Key},
		})
	}
	return rows
}

// discard drops a recipient's copy of a movement that is undone.
func (m *mover) discard(ctx context.Context, shard string) error {
	if m.row.Layout == nil {
		_, err := m.cleanShard(ctx, shard, m.tokenID(), forever)
		return err
	}
	temp := m.tempNS()
	if err := m.certain(ctx, shard, m.r.dropGuard(ctx, shard, temp)); err != nil {
		return err
	}
	return m.certain(ctx, shard, m.r.dropAt(ctx, shard, temp, m.row.Layout.UUID))
}
