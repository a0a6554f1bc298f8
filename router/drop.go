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
		if err := r.reachable(ctx, []*Entry{e}); err != nil {
			return err
		}
		ctx := context.WithoutCancel(ctx) // what has begun is finished
		if err := r.fenceEntry(ctx, l, e); err != nil {
			return err
		}
		return r.dropFenced(ctx, []catalog.Lock{l}, []*Entry{e}, catalog.Change{})
	})
	return dbExists, err
}

// reachable asks all owners for an answer before anything is done: a drop that must
// fail because a shard is dead is not to be half done.
func (r *Router) reachable(ctx context.Context, entries []*Entry) error {
	asked := map[string]bool{}
	for _, e := range entries {
		if e.Table == nil {
			continue
		}
		for _, shard := range e.Table.Shards() {
			if asked[shard] {
				continue
			}
			asked[shard] = true
			if _, err := r.run(ctx, shard, "admin", bson.D{{Key: "ping", Value: int32(1)}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropFenced drops fenced collections on all shards and then from the catalog. A shard
// that cannot be reached leaves them fenced for recoverFenced, and fails the command.
func (r *Router) dropFenced(ctx context.Context, locks []catalog.Lock, entries []*Entry, c catalog.Change) error {
	c.Locks = locks
	for _, e := range entries {
		if e.Table != nil {
			if err := r.dropOn(ctx, e, e.Table.Shards()); err != nil {
				return err
			}
		}
		c.Drop = append(c.Drop, e.Coll.NS)
	}
	if len(c.DropDatabases) > 0 {
		c.Drop = nil // they go with their database
	}
	return r.apply(ctx, c)
}

func (r *Router) dropOn(ctx context.Context, e *Entry, shards []string) error {
	db, coll := catalog.SplitNS(e.Coll.NS)
	for _, shard := range shards {
		_, err := r.run(ctx, shard, db, bson.D{
			{Key: "drop", Value: coll},
			{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: e.Coll.UUID[:]}},
			{Key: "writeConcern", Value: majorityWrites},
		})
		switch mongoerr.CodeOf(err) {
		case 0:
			if err != nil {
				return err
			}
		case mongoerr.NamespaceNotFound:
		case mongoerr.CollectionUUIDMismatch:
			// Not our collection: it is not ours to drop.
		default:
			return err
		}
	}
	return nil
}

// DropDatabase removes a database with all its collections.
func (r *Router) DropDatabase(ctx context.Context, db string) error {
	return r.withLock(ctx, db, "dropDatabase", func(l catalog.Lock) error {
		s := r.snap.Load()
		if _, ok := s.Databases[db]; !ok {
			return nil
		}
		var entries []*Entry
		var fenced, open []catalog.Collection
		for ns, e := range s.Entries {
			if !strings.HasPrefix(ns, db+".") {
				continue
			}
			entries = append(entries, e)
			open = append(open, *e.Coll)
			row := *e.Coll
			row.State = catalog.StateFenced
			fenced = append(fenced, row)
		}
		if err := r.reachable(ctx, entries); err != nil {
			return err
		}
		ctx := context.WithoutCancel(ctx) // what has begun is finished
		locks := []catalog.Lock{l}
		if len(fenced) > 0 {
			err := r.fence(ctx, catalog.Change{Locks: locks, Rows: fenced}, catalog.Change{Locks: locks, Rows: open})
			if err != nil {
				return err
			}
		}
		if err := r.dropFenced(ctx, locks, entries, catalog.Change{DropDatabases: []string{db}}); err != nil {
			return err
		}
		// What is left on the shards (an empty database, views of older days) goes too.
		for _, shard := range s.shardIDs() {
			if !r.hasPrimary(shard) {
				continue // it owned nothing of it
			}
			_, err := r.run(ctx, shard, db, bson.D{{Key: "dropDatabase", Value: int32(1)}, {Key: "writeConcern", Value: majorityWrites}})
			if err != nil {
				r.log.Warn().Err(err).Str("shard", shard).Str("db", db).Msg("drop the rest of a database")
			}
		}
		return nil
	})
}
