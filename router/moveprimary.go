package router

import (
	"context"
	"maps"
	"slices"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// MovePrimary makes another shard the primary of a database, and moves the unsharded
// collections there that are on the former one and that nobody has put there by hand
// (MONGOS.md §1.8; DESIGN.md "Words"). Each moves by itself and stays in use; the primary
// changes when all have. Where one cannot be moved, those before it stay where they have
// gone, the primary does not change, and the command can be given again. The shard is named
// by its id or its connection string.
func (r *Router) MovePrimary(ctx context.Context, db, to string) error {
	s := r.Latest(ctx)
	from, to, err := s.primaryMove(db, to)
	if err != nil || from == to {
		return err
	}
	list := s.ledBy(db, from)
	for _, e := range list {
		if err := unsuited(e); err != nil {
			return err
		}
	}
	for _, e := range list {
		err := r.withLock(ctx, e.Coll.NS, "movePrimary", func(l catalog.Lock) error {
			now := r.snap.Load().Entries[e.Coll.NS]
			if now == nil || now.Coll.Kind != catalog.KindUnsharded || now.Coll.Pinned || now.Home() != from {
				return nil // it has changed meanwhile
			}
			return r.moveWhole(ctx, l, now, to)
		})
		if err != nil {
			return err
		}
	}
	return r.withLock(ctx, db, "movePrimary", func(l catalog.Lock) error {
		s := r.snap.Load()
		now, to, err := s.primaryMove(db, to)
		if err != nil || now == to {
			return err
		}
		if now != from || len(s.ledBy(db, from)) > 0 {
			return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s has changed meanwhile: it has another primary shard, or new collections on it", db)
		}
		d := s.Databases[db]
		d.ClaimsShard = d.Claims()
		d.Primary = to
		d.Timestamp = catalog.Timestamp(r.Clock.Now())
		d.LastMod++
		return r.announce(ctx, catalog.Change{Locks: []catalog.Lock{l}, Databases: []catalog.Database{d}})
	})
}

// primaryMove says from which shard to which a database's primary is to go.
func (s *Snapshot) primaryMove(db, to string) (from, target string, err error) {
	d, known := s.Databases[db]
	if !known {
		return "", "", mongoerr.Newf(mongoerr.NamespaceNotFound, "database %s not found", db)
	}
	for _, id := range s.shardIDs() {
		if id == to || s.Shards[id].Host == to {
			if s.Shards[id].Draining && d.Primary != id {
				return "", "", mongoerr.Newf(mongoerr.ShardNotFound, "shard %s is draining", id)
			}
			return d.Primary, id, nil
		}
	}
	return "", "", mongoerr.Newf(mongoerr.ShardNotFound, "Could not find shard: %s", to)
}

// ledBy lists a database's unsharded collections on a shard that may leave it, by name.
func (s *Snapshot) ledBy(db, shard string) []*Entry {
	var list []*Entry
	for _, ns := range slices.Sorted(maps.Keys(s.Entries)) {
		e := s.Entries[ns]
		if dbOf(ns) == db && e.Coll.Kind == catalog.KindUnsharded && !e.Coll.Pinned && e.Home() == shard {
			list = append(list, e)
		}
	}
	return list
}
