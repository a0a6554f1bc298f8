package router

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// RenameSpec is what renameCollection asks for; the names are checked already.
type RenameSpec struct {
	From, To   string
	DropTarget bool  // a collection called To makes room
	UUID       *UUID // that the collection must have, nil: any
	TargetUUID *UUID // that the one which makes room must have, nil: any
	// Concern is the client's write concern, zero for none: it is waited for beside the majority.
	Concern bson.RawValue
}

// RenameCollection gives a collection another name in its database, on all its shards. It
// stays what it is: its UUID, key and chunks are the same (MONGOS.md §1.7). What shards could
// not confirm as the client asks is a write concern error.
func (r *Router) RenameCollection(ctx context.Context, spec *RenameSpec) (unconfirmed []byte, err error) {
	names := []string{spec.From, spec.To}
	slices.Sort(names)
	err = r.withLocks(ctx, names, "renameCollection", func(locks []catalog.Lock) error {
		if err := renamable(r.snap.Load(), spec); err != nil {
			return err
		}
		if err := r.clearLeft(ctx, locks[slices.Index(names, spec.From)], spec.From); err != nil {
			return err
		}
		s := r.snap.Load()
		m := &renaming{r: r, locks: locks, from: s.Entries[spec.From], to: s.Entries[spec.To], name: spec.To}
		if err := m.begin(ctx); err != nil || spec.Concern.IsZero() {
			return err
		}
		unconfirmed = r.confirm(ctx, m.from.Table.Shards(), spec.Concern)
		return nil
	})
	return unconfirmed, err
}

// renamable checks what the command asks for, as a mongod and a mongos do.
func renamable(s *Snapshot, spec *RenameSpec) error {
	from, to := s.Entries[spec.From], s.Entries[spec.To]
	d, isDB := s.Databases[dbOf(spec.From)]
	other, isOther := s.Databases[dbOf(spec.To)]
	across := dbOf(spec.From) != dbOf(spec.To)
	mismatch := mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified")
	switch {
	case across && (spec.UUID != nil || spec.TargetUUID != nil):
		return mongoerr.New(mongoerr.InvalidOptions, "Cannot provide an expected collection UUID when renaming between databases")
	case !isDB:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Database %s does not exist or is drop pending", dbOf(spec.From))
	case from != nil && (from.Coll.Kind == catalog.KindView || from.isSeries()):
		return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cannot rename view: %s", spec.From)
	case spec.UUID != nil && (from == nil || UUID(from.Coll.UUID) != *spec.UUID):
		return mismatch
	case from == nil:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Source collection %s does not exist", spec.From)
	case across && (from.Sharded() || to.Sharded()):
		return mongoerr.New(mongoerr.CommandFailed, "Source and target collections cannot be on different databases because one of them is sharded")
	case across && isOther && other.Primary != d.Primary:
		return mongoerr.New(mongoerr.CommandFailed, "Source and target collections must have the same primary shard")
	case across:
		return notYet("renaming a collection into another database")
	case to != nil && (to.Coll.Kind == catalog.KindView || to.isSeries()):
		return mongoerr.Newf(mongoerr.NamespaceExists, "a view already exists with that name: %s", spec.To)
	case spec.TargetUUID != nil && (to == nil || UUID(to.Coll.UUID) != *spec.TargetUUID):
		return mismatch
	case to != nil && !spec.DropTarget:
		return mongoerr.New(mongoerr.NamespaceExists, "target namespace exists")
	}
	return nil
}

// renaming is a rename at work, under the locks of both names.
type renaming struct {
	r        *Router
	locks    []catalog.Lock
	from, to *Entry // to: what has the new name, nil for nothing
	name     string // the new one
}

// begin fences both names, looks at everything that can refuse, and marks the rows: from
// then on whoever finds them finishes it, as some shards may have done it.
func (m *renaming) begin(ctx context.Context) error {
	fenced, undo := m.change(), m.change()
	fenced.Rows, undo.Rows = rowsIn(m.entries(), catalog.StateFenced), rowsIn(m.entries(), catalog.StateOpen)
	marked := m.change()
	marked.Rows = rowsIn(m.entries(), catalog.StateRenaming)
	marked.Rows[0].RenamedTo = m.name
	if m.to == nil {
		// A row of a collection that is yet to be made, so that nobody makes one.
		place := m.r.reserved(m.name, m.from.Table.Shards()[0])
		fenced.Expect, fenced.Put, undo.Drop = []catalog.Expect{{NS: m.name}}, []catalog.CollectionChunks{*place}, []string{m.name}
		place.State = catalog.StateRenaming
		marked.Rows = append(marked.Rows, place.Collection)
	}
	if err := m.ready(ctx); err != nil {
		return err
	}
	if err := m.r.fence(ctx, fenced, undo); err != nil {
		return err
	}
	m.r.failpoint(ctx, "rename-fenced")
	err := m.quiet(ctx)
	ctx = context.WithoutCancel(ctx) // what has begun is finished
	if err == nil {
		marked.Log = []catalog.LogEntry{m.log("start")}
		err = m.r.apply(ctx, marked)
	}
	if err != nil {
		m.r.undo(ctx, undo)
		return err
	}
	m.r.failpoint(ctx, "rename-marked")
	return m.finish(ctx)
}

func (m *renaming) change() catalog.Change { return catalog.Change{Locks: m.locks} }

// entries are the collections that are there, that which is renamed first.
func (m *renaming) entries() []*Entry {
	if m.to == nil {
		return []*Entry{m.from}
	}
	return []*Entry{m.from, m.to}
}

// ready asks all owners before anything is done: each must have the collection, and nothing
// else under the new name.
func (m *renaming) ready(ctx context.Context) error {
	if err := m.r.droppable(ctx, m.entries()); err != nil {
		return err
	}
	for _, shard := range m.from.Table.Shards() {
		found, err := m.r.find(ctx, shard, m.from.Coll.NS)
		if err != nil {
			return err
		}
		if found == nil {
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "shard %s has lost its part of %s", shard, m.from.Coll.NS)
		}
		if m.to == nil || !slices.Contains(m.to.Table.Shards(), shard) && !slices.Contains(m.r.snap.Load().leftOn(m.to), shard) {
			if err := m.r.dropStranger(ctx, shard, m.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// quiet waits, behind the fence, for open transactions, and sees to it that what failed
// attempts to make a collection of either name may yet send does nothing.
func (m *renaming) quiet(ctx context.Context) error {
	for _, e := range m.entries() {
		for _, shard := range e.Table.Shards() {
			if err := m.r.awaitTransactions(ctx, e, shard); err != nil {
				return err
			}
		}
	}
	for _, shard := range m.from.Table.Shards() {
		for _, ns := range []string{m.from.Coll.NS, m.name} {
			if err := m.r.dropGuard(ctx, shard, ns); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish does what is marked: what has the new name goes, all owners rename, and the
// catalog says so. Each step can be repeated. A shard that cannot be reached leaves it so
// for recoverFenced, and fails the command.
func (m *renaming) finish(ctx context.Context) error {
	if m.to != nil && m.to.Coll.UUID != uuid.Nil {
		shards := append(m.r.snap.Load().leftOn(m.to), m.to.Table.Shards()...)
		slices.Sort(shards)
		for _, shard := range slices.Compact(shards) {
			if err := m.persist(ctx, shard, m.dropTarget); err != nil {
				return err
			}
		}
	}
	for _, shard := range m.from.Table.Shards() {
		m.r.failpoint(ctx, "rename-shard")
		if err := m.persist(ctx, shard, m.renameOn); err != nil {
			return err
		}
	}
	m.r.failpoint(ctx, "rename-done")
	row := catalog.CollectionChunks{Collection: *m.from.Coll}
	row.NS, row.State, row.RenamedTo = m.name, catalog.StateOpen, ""
	row.Epoch, row.LastMod = bson.NewObjectID(), time.Now()
	for i := range m.from.Table.Len() {
		row.Chunks = append(row.Chunks, *m.from.Table.Chunk(i))
	}
	c := m.change()
	c.Drop, c.Put = []string{m.from.Coll.NS}, []catalog.CollectionChunks{row}
	c.Log = []catalog.LogEntry{m.log("end")}
	for _, shard := range m.from.Table.Shards() {
		c.Movements = append(c.Movements, catalog.Movement{
			ID: uuid.New(), NS: m.from.Coll.NS, Collection: m.from.Coll.UUID, From: shard, To: shard, State: catalog.MovementGone, Since: time.Now(),
		})
	}
	return m.r.apply(ctx, c)
}

// persist does a step on a shard, again while it fails, for a time: everybody waits for it.
// When it returns, nothing of it runs or may still come: the name may be given back next.
func (m *renaming) persist(ctx context.Context, shard string, step func(context.Context, string) error) error {
	for tries := 0; ; tries++ {
		err := m.r.certain(ctx, shard, step(ctx, shard))
		if err == nil || tries > moveTries || lostLock(err) || m.r.isStopped() || !sleep(ctx, moveRetry) {
			return err
		}
		m.r.log.Warn().Err(err).Str("ns", m.from.Coll.NS).Str("to", m.name).Str("shard", shard).Msg("rename a collection")
	}
}

// dropTarget drops what has the new name on a shard, if it has not made room yet.
func (m *renaming) dropTarget(ctx context.Context, shard string) error {
	found, err := m.r.find(ctx, shard, m.name)
	if err != nil || found != nil && found.uuid() == m.from.Coll.UUID {
		return err
	}
	return m.r.dropAt(ctx, shard, m.name, m.to.Coll.UUID)
}

// renameOn renames on a shard. That it is done is no error, nor that the shard has lost its
// part by then: nobody could ever use the names again.
func (m *renaming) renameOn(ctx context.Context, shard string) error {
	_, err := m.r.run(ctx, shard, "admin", bson.D{
		{Key: "renameCollection", Value: m.from.Coll.NS},
		{Key: "to", Value: m.name},
		{Key: "collectionUUID", Value: binaryUUID(m.from.Coll.UUID)},
		{Key: "writeConcern", Value: majorityWrites},
	})
	if c := mongoerr.CodeOf(err); c != mongoerr.NamespaceNotFound && c != mongoerr.CollectionUUIDMismatch {
		return err
	}
	found, ferr := m.r.find(ctx, shard, m.from.Coll.NS)
	if ferr != nil || found != nil && found.uuid() == m.from.Coll.UUID {
		return errors.Join(ferr, err)
	}
	return m.r.settle(ctx, shard)
}

// log is an entry of the changelog.
func (m *renaming) log(what string) catalog.LogEntry {
	return m.r.logEntry("renameCollection."+what, m.from.Coll.NS, "", bson.D{{Key: "source", Value: m.from.Coll.NS}, {Key: "destination", Value: m.name}})
}

// renamed returns the rename at work that concerns a namespace; nil where there is none.
func (s *Snapshot) renamed(ns string) *renaming {
	for _, e := range s.fenced {
		if name := e.Coll.RenamedTo; name != "" && (name == ns || e.Coll.NS == ns) {
			return &renaming{from: e, to: s.Entries[name], name: name}
		}
	}
	return nil
}

// recoverRename finishes what a dead router has left of a rename, of which the lock of one
// name is held. Who has that of the collection waits for the other, who has the other does
// not: ErrLocked, and it must let go.
func (r *Router) recoverRename(ctx context.Context, lock catalog.Lock, ns string) error {
	m := r.snap.Load().renamed(ns)
	if m == nil {
		return nil
	}
	locks := []catalog.Lock{lock}
	other, take := m.name, r.awaitLock
	if ns == m.name {
		other, take = m.from.Coll.NS, r.acquire
	}
	if !catalog.LocksConflict(lock.Name, other) {
		l, err := take(ctx, other, "recovery")
		if err != nil {
			return err
		}
		defer r.unlock(ctx, l)
		locks = append(locks, l)
		if err := r.Refresh(ctx); err != nil {
			return err
		}
		if m = r.snap.Load().renamed(ns); m == nil {
			return nil
		}
	}
	m.r, m.locks = r, locks
	// What the dead router has sent must have come to its end, or never come.
	if err := r.announce(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{*m.from.Coll}}); err != nil {
		return err
	}
	if m = r.snap.Load().renamed(ns); m == nil {
		return nil // others broke the lock meanwhile, and have finished it
	}
	m.r, m.locks = r, locks
	return m.finish(context.WithoutCancel(ctx))
}
