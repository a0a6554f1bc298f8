package router

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Drop removes a collection everywhere; want, if not nil, must be its UUID. It
// reports whether the database exists.
func (r *Router) Drop(ctx context.Context, ns string, want *UUID) (dbExists bool, err error) {
	db, _ := catalog.SplitNS(ns)
	if series := seriesOf(ns); series != "" && r.Latest(ctx).Entries[series].isSeries() {
		ns = series // who drops the buckets drops both
	}
	err = r.withLock(ctx, ns, "drop", func(l catalog.Lock) error {
		s := r.snap.Load()
		_, dbExists = s.Databases[db]
		e := s.Entries[ns]
		if e == nil {
			return nil
		}
		if want != nil && UUID(e.Coll.UUID) != *want {
			return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified")
		}
		if want != nil && e.isSeries() {
			return mongoerr.New(mongoerr.InvalidOptions, "The collectionUUID parameter cannot be passed when dropping a time-series collection")
		}
		return r.dropEntries(ctx, l, []*Entry{e}, nothingElse, func(ctx context.Context) error { return r.dropFenced(ctx, l, e) })
	})
	return dbExists, err
}

// dropEntries fences collections of one database, has look find what else is to go, and
// then drops all by finish, in which nothing is waited for or refused any more that can be
// known before. From its beginning the rows say that they go: whoever finds them left
// finishes it. By then somebody else may have the lock, and the names another life: what
// goes is known by its UUID from when the lock was certainly ours.
func (r *Router) dropEntries(ctx context.Context, l catalog.Lock, entries []*Entry, look, finish func(context.Context) error) error {
	if err := r.droppable(ctx, entries); err != nil {
		return err
	}
	if len(entries) > 0 {
		if err := r.fenceEntries(ctx, l, entries); err != nil {
			return err
		}
	}
	dropping := catalog.Change{Locks: []catalog.Lock{l}, Rows: rowsIn(entries, catalog.StateDropping)}
	err := look(ctx)
	ctx = context.WithoutCancel(ctx) // what has begun is finished
	if err == nil {
		err = r.apply(ctx, dropping)
	}
	if err != nil {
		if len(entries) > 0 {
			r.undo(ctx, catalog.Change{Locks: dropping.Locks, Rows: rowsIn(entries, catalog.StateOpen)})
		}
		return err
	}
	return finish(ctx)
}

// nothingElse is what Drop has dropEntries look for.
func nothingElse(context.Context) error { return nil }

// droppable asks all owners before anything is done: a drop that must fail, because a
// shard is dead or has another collection in the place, is not to be half done.
func (r *Router) droppable(ctx context.Context, entries []*Entry) error {
	seen := map[string]map[string]*collInfo{} // by shard and name
	for _, e := range entries {
		if e.Table == nil {
			continue
		}
		db, coll := catalog.SplitNS(e.stored())
		for _, shard := range e.Table.Shards() {
			if seen[shard] == nil {
				list, err := r.listOn(ctx, shard, db, bson.D{})
				if err != nil {
					return err
				}
				seen[shard] = map[string]*collInfo{}
				for i := range list {
					seen[shard][list[i].Name] = &list[i]
				}
			}
			if found := seen[shard][coll]; found != nil && found.uuid() != e.Coll.UUID {
				return mongoerr.Newf(mongoerr.CollectionUUIDMismatch, "shard %s holds another collection in the place of %s", shard, e.Coll.NS)
			}
		}
	}
	return nil
}

// dropFenced drops a collection whose row says so on all shards and then from the
// catalog. A shard that cannot be reached leaves it so for recoverFenced, and fails the
// command.
func (r *Router) dropFenced(ctx context.Context, l catalog.Lock, e *Entry) error {
	if err := r.dropOnShards(ctx, e); err != nil {
		return err
	}
	return r.apply(ctx, catalog.Change{Locks: []catalog.Lock{l}, Drop: []string{e.Coll.NS}})
}

// dropOnShards drops on the owners, a view wherever it is.
func (r *Router) dropOnShards(ctx context.Context, e *Entry) error {
	if e.Table != nil {
		shards := append(r.snap.Load().leftOn(e), e.Table.Shards()...)
		slices.Sort(shards)
		for _, shard := range slices.Compact(shards) {
			if err := r.dropAt(ctx, shard, e.stored(), e.Coll.UUID); err != nil {
				return err
			}
		}
		return nil
	}
	for _, shard := range r.wellShards() {
		if err := r.dropView(ctx, shard, e.Coll.NS); err != nil {
			return err
		}
	}
	return nil
}

// wellShards lists the shards that take writes, as far as is known.
func (r *Router) wellShards() []string {
	var list []string
	for _, shard := range r.snap.Load().shardIDs() {
		if r.hasPrimary(shard) {
			list = append(list, shard)
		}
	}
	return list
}

// DropDatabase removes a database with all its collections.
func (r *Router) DropDatabase(ctx context.Context, db string) error {
	return r.withLock(ctx, db, "dropDatabase", func(l catalog.Lock) error {
		if err := r.recoverDatabase(ctx, l, db); err != nil {
			return err
		}
		s := r.snap.Load()
		if _, ok := s.Databases[db]; !ok {
			return nil
		}
		var entries []*Entry
		for ns, e := range s.Entries {
			if strings.HasPrefix(ns, db+".") {
				entries = append(entries, e)
			}
		}
		var rest []stray
		look := func(ctx context.Context) (err error) {
			rest, err = r.strays(ctx, db)
			return err
		}
		return r.dropEntries(ctx, l, entries, look, func(ctx context.Context) error {
			for _, e := range entries {
				if err := r.dropOnShards(ctx, e); err != nil {
					return err
				}
			}
			for i := range rest {
				if err := r.dropStray(ctx, &rest[i]); err != nil {
					return err
				}
			}
			return r.apply(ctx, catalog.Change{Locks: []catalog.Lock{l}, DropDatabases: []string{db}})
		})
	})
}

// recoverDatabase is recoverEntry for all collections of a database.
func (r *Router) recoverDatabase(ctx context.Context, l catalog.Lock, db string) error {
	for ns := range r.snap.Load().Entries {
		if strings.HasPrefix(ns, db+".") {
			if err := r.recoverEntry(ctx, l, ns); err != nil {
				return err
			}
		}
	}
	return nil
}

// stray is a collection that a shard holds and the catalog does not have there.
type stray struct {
	shard, ns string
	id        uuid.UUID
}

// rank says in which order strays are dropped.
func (s stray) rank() int {
	if strings.HasSuffix(s.ns, ".system.views") {
		return 1
	}
	return 0
}

// strays lists what else the shards hold of a database: views that the catalog does not
// know, which lie in system.views, and what failed attempts left. A dropDatabase would
// take all at once, but if it arrived late it would hit the next database of the name.
func (r *Router) strays(ctx context.Context, db string) ([]stray, error) {
	var list []stray
	for _, shard := range r.wellShards() {
		held, err := r.listOn(ctx, shard, db, bson.D{{Key: "type", Value: "collection"}})
		if err != nil {
			return nil, err
		}
		for i := range held {
			ns := db + "." + held[i].Name
			if e := r.snap.Load().Entries[ns]; e == nil || e.Table == nil || !slices.Contains(e.Table.Shards(), shard) {
				list = append(list, stray{shard: shard, ns: ns, id: held[i].uuid()})
			}
		}
	}
	// Views over buckets that are there keep theirs from being dropped.
	slices.SortStableFunc(list, func(a, b stray) int { return cmp.Compare(a.rank(), b.rank()) })
	return list, nil
}

// dropStray drops what strays found.
func (r *Router) dropStray(ctx context.Context, s *stray) error {
	err := r.dropAt(ctx, s.shard, s.ns, s.id)
	if _, coll := catalog.SplitNS(s.ns); err != nil && !isUnsure(err) && strings.HasPrefix(coll, "system.") {
		r.log.Warn().Err(err).Str("shard", s.shard).Str("ns", s.ns).Msg("drop the rest of a database")
		return nil
	}
	return err
}
