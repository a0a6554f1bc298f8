package router

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Snapshot is one state of the catalog as this router acts by it. It is immutable.
type Snapshot struct {
	Version   catalog.Version
	Timeline  int64
	Cluster   string
	Shards    map[string]catalog.Shard
	Databases map[string]catalog.Database
	Entries   map[string]*Entry // by namespace
	Settings  map[string]catalog.Setting
	Movements map[string]catalog.Movement // by id

	fenced   map[string]*Entry          // those of the Entries that are not open
	released map[string]catalog.Version // by movement: in which version it was first seen released

	// switched has the movements whose data is at the recipient, by namespace.
	switched map[string][]catalog.Movement
}

// Entry is a collection's routing table with the number of operations that run by
// it. It stays the same through all snapshots in which the collection does.
type Entry struct {
	Coll  *catalog.Collection
	Table *shardkey.Table // nil for a view

	// unowned has the movements of ranges by which a shard may have documents that it does
	// not own. They may change only with the entry, so that a barrier tells who knows them.
	unowned []catalog.Movement
	moved   uint64 // see movedAt

	inflight atomic.Int64
	writing  atomic.Int64  // of those in flight, how many write
	cursors  atomic.Int64  // open cursors that read by it
	replaced chan struct{} // closed when a newer entry, or none, took its place
	since    time.Time     // when this router learned of it

	until catalog.Version // guarded by syncMu: when it was replaced, the last version seen before
}

// Sharded reports whether the collection has a shard key.
func (e *Entry) Sharded() bool { return e != nil && e.Coll.Kind == catalog.KindSharded }

// collation returns the collection's default collation, nil for the simple one or where
// there is no collection.
func (e *Entry) collation() bson.Raw {
	if e == nil {
		return nil
	}
	return e.Coll.Collation
}

// Unowned lists the ranges of which a shard may have documents that it does not own, nil
// almost always: reads and writes of many must leave those out there (PROTOCOL.md F14).
func (e *Entry) Unowned(shard string) []catalog.Range {
	if e == nil || len(e.unowned) == 0 {
		return nil
	}
	var list []catalog.Range
	for i := range e.unowned {
		if m := &e.unowned[i]; m.Unowned() == shard {
			list = append(list, *m.Range)
		}
	}
	return list
}

// again is an entry of the same state of the collection, for which others are in the way.
func (e *Entry) again() *Entry {
	return &Entry{Coll: e.Coll, Table: e.Table, moved: e.moved, replaced: make(chan struct{}), since: time.Now()}
}

// Home returns the one shard of an unsharded collection.
func (e *Entry) Home() string { return e.Table.Chunk(0).Shard }

// errDelta says that a delta does not fit what it should be a change of.
var errDelta = errors.New("a change of the catalog does not fit what was known")

// newEntry makes an entry of a collection that changed; old is what was known of it.
func newEntry(c *catalog.CollectionDelta, old *Entry) (*Entry, error) {
	e := &Entry{Coll: &c.Collection, replaced: make(chan struct{}), since: time.Now()}
	if c.Kind == catalog.KindView {
		return e, nil
	}
	var err error
	switch {
	case !c.Part:
		e.Table, err = shardkey.NewTable(c.CollectionChunks)
	case old == nil || old.Table == nil || old.Coll.UUID != c.UUID && old.Coll.UUID != uuid.Nil: // it gets its own when it is made
		err = fmt.Errorf("%w: %s is another collection", errDelta, c.NS)
	default:
		if e.Table, err = old.Table.Next(c.CollectionChunks); err != nil {
			err = fmt.Errorf("%w: %w", errDelta, err)
		}
		e.moved = old.moved
	}
	e.moved = max(lastMove(&c.Collection, c.Chunks), e.moved)
	return e, err
}

// precedes reports whether a delta can be what became of this state. A timeline that
// PostgreSQL would not tell is not compared.
func (s *Snapshot) precedes(d *catalog.Delta) bool {
	return s.Version == 0 || d.Version >= s.Version &&
		(d.Timeline == 0 || d.Timeline >= s.Timeline) && (s.Cluster == "" || d.Cluster == s.Cluster)
}

// promoted reports whether another PostgreSQL took the catalog's over since.
func (s *Snapshot) promoted(d *catalog.Delta) bool {
	return s.Timeline != 0 && d.Timeline > s.Timeline
}

// next returns the snapshot after a delta, and the entries that it retires.
func (s *Snapshot) next(d *catalog.Delta) (*Snapshot, []*Entry, error) {
	base := s
	if d.Full {
		base = &Snapshot{} // what the delta does not name is gone
	}
	n := &Snapshot{
		Version: d.Version, Timeline: cmp.Or(d.Timeline, s.Timeline), Cluster: cmp.Or(d.Cluster, s.Cluster),
		fenced:    map[string]*Entry{},
		Shards:    patched(base.Shards, d.ShardsGone, d.Shards, func(v catalog.Shard) string { return v.ID }),
		Databases: patched(base.Databases, d.DatabasesGone, d.Databases, func(v catalog.Database) string { return v.Name }),
		Settings:  patched(base.Settings, d.SettingsGone, d.Settings, func(v catalog.Setting) string { return v.ID }),
		Movements: patched(base.Movements, d.MovementsGone, d.Movements, func(v catalog.Movement) string { return v.ID.String() }),
	}
	fresh := make([]*Entry, 0, len(d.Collections))
	for i := range d.Collections {
		e, err := newEntry(&d.Collections[i], base.Entries[d.Collections[i].NS])
		if err != nil {
			return nil, nil, err
		}
		fresh = append(fresh, e)
	}
	fresh = append(fresh, base.affected(d)...)
	n.Entries = patched(base.Entries, d.CollectionsGone, fresh, func(e *Entry) string { return e.Coll.NS })
	for _, m := range n.Movements {
		if e := n.Entries[m.NS]; slices.Contains(fresh, e) && m.Range != nil && m.Collection == e.Coll.UUID && m.Unowned() != "" {
			e.unowned = append(e.unowned, m)
		}
	}
	for _, e := range fresh {
		if e.Coll.State != catalog.StateOpen {
			n.fenced[e.Coll.NS] = e
		}
	}
	for ns, e := range base.fenced {
		if n.Entries[ns] == e {
			n.fenced[ns] = e
		}
	}
	n.released = releasedIn(base.released, n)
	if n.switched = base.switched; d.Full || len(d.Movements)+len(d.MovementsGone) > 0 {
		n.switched = switchedBy(n.Movements)
	}
	var retired []*Entry
	for ns, old := range s.Entries {
		if n.Entries[ns] != old {
			retired = append(retired, old)
		}
	}
	return n, retired, nil
}

// affected makes entries anew of which a delta has no more than movements of ranges.
func (s *Snapshot) affected(d *catalog.Delta) []*Entry {
	names := map[string]bool{}
	for i := range d.Movements {
		if m := &d.Movements[i]; m.Range != nil {
			names[m.NS] = true
		}
	}
	for _, id := range d.MovementsGone {
		if m, known := s.Movements[id]; known && m.Range != nil {
			names[m.NS] = true
		}
	}
	for i := range d.Collections {
		delete(names, d.Collections[i].NS)
	}
	for _, ns := range d.CollectionsGone {
		delete(names, ns)
	}
	var list []*Entry
	for ns := range names {
		if e := s.Entries[ns]; e != nil {
			list = append(list, e.again())
		}
	}
	return list
}

// switchedBy sorts movements by namespace, but for those whose data is still at the donor.
func switchedBy(all map[string]catalog.Movement) map[string][]catalog.Movement {
	by := make(map[string][]catalog.Movement)
	for _, m := range all {
		if m.State != catalog.MovementCopying {
			by[m.NS] = append(by[m.NS], m)
		}
	}
	return by
}

// releasedIn returns when each movement was first seen released, from what is known of the
// state before.
func releasedIn(before map[string]catalog.Version, n *Snapshot) map[string]catalog.Version {
	if len(n.Movements) == 0 {
		return nil
	}
	released := make(map[string]catalog.Version, len(n.Movements))
	for id, m := range n.Movements {
		if v, known := before[id]; known {
			released[id] = v
		} else if m.State == catalog.MovementLeaving || m.State == catalog.MovementGone {
			released[id] = n.Version
		}
	}
	return released
}

// patched copies a map, without the gone keys and with the given values.
func patched[V any](old map[string]V, gone []string, put []V, key func(V) string) map[string]V {
	if len(gone) == 0 && len(put) == 0 && old != nil {
		return old
	}
	m := make(map[string]V, len(old)+len(put))
	for k, v := range old {
		m[k] = v
	}
	for _, k := range gone {
		delete(m, k)
	}
	for _, v := range put {
		m[key(v)] = v
	}
	return m
}
