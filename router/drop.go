package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Drop removes a collection everywhere; want, if not nil, must be its UUID. It
// reports whether the database exists.
func (r *Router) Drop(ctx context.Context, ns string, want *UUID) (dbExists bool, err error) {
	db, _ := catalog.SplitNS(ns)
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
		return r.dropEntries(ctx, l, []*Entry{e}, func(ctx context.Context) error { return r.dropFenced(ctx, l, e) })
	})
	return dbExists, err
}

// dropEntries fences collections of one database and then drops them by finish, in
// which nothing is waited for or refused any more that can be known before. From its
// beginning the rows say that they go: whoever finds them left finishes it.
func (r *Router) dropEntries(ctx context.Context, l catalog.Lock, entries []*Entry, finish func(context.Context) error) error {
	if err := r.droppable(ctx, entries); err != nil {
		return err
	}
	if len(entries) == 0 {
		return finish(context.WithoutCancel(ctx))
	}
	if err := r.fenceEntries(ctx, l, entries); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // what has begun is finished
	dropping := catalog.Change{Locks: []catalog.Lock{l}, Rows: rowsIn(entries, catalog.StateDropping)}
	if err := r.apply(ctx, dropping); err != nil {
		r.undo(ctx, catalog.Change{Locks: dropping.Locks, Rows: rowsIn(entries, catalog.StateOpen)})
		return err
	}
	return finish(ctx)
}

// droppable asks all owners before anything is done: a drop that must fail, because a
// shard is dead or has another collection in the place, is not to be half done.
func (r *Router) droppable(ctx context.Context, entries []*Entry) error {
	seen := map[string]map[string]*collInfo{} // by shard and name
	for _, e := range entries {
		if e.Table == nil {
			continue
		}
		db, coll := catalog.SplitNS(e.Coll.NS)
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
		for _, shard := range e.Table.Shards() {
			if err := r.dropAt(ctx, shard, e.Coll.NS, e.Coll.UUID); err != nil {
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
		return r.dropEntries(ctx, l, entries, func(ctx context.Context) error {
			for _, e := range entries {
				if err := r.dropOnShards(ctx, e); err != nil {
					return err
				}
			}
			for _, shard := range r.wellShards() {
				if err := r.dropRest(ctx, shard, db); err != nil {
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

// dropRest drops what a shard still holds of a database: views that the catalog does
// not know, which lie in system.views, and what failed attempts left. A dropDatabase
// would do all at once, but if it arrived late it would hit the next database of the name.
func (r *Router) dropRest(ctx context.Context, shard, db string) error {
	list, err := r.listOn(ctx, shard, db, bson.D{{Key: "type", Value: "collection"}})
	if err != nil {
		return err
	}
	for i := range list {
		ns := db + "." + list[i].Name
		err := r.dropAt(ctx, shard, ns, list[i].uuid())
		if err != nil && !isUnsure(err) && strings.HasPrefix(list[i].Name, "system.") {
			r.log.Warn().Err(err).Str("shard", shard).Str("ns", ns).Msg("drop the rest of a database")
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
