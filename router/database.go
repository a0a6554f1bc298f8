package router

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// database returns a database's row, new (and yet to be put) if the catalog has none.
// A name that differs from another's in case only is refused.
func (r *Router) database(name, primary string) (d catalog.Database, fresh bool, err error) {
	s := r.snap.Load()
	if d, ok := s.Databases[name]; ok {
		return d, false, nil
	}
	if err := CheckDB([]byte(name)); err != nil {
		return d, false, err
	}
	for other := range s.Databases {
		if strings.EqualFold(other, name) {
			return d, false, mongoerr.Newf(mongoerr.DatabaseDifferCase,
				"db already exists with different case already have: [%s] trying to create [%s]", other, name)
		}
	}
	if len(s.Shards) == 0 {
		return d, false, mongoerr.New(mongoerr.ShardNotFound, "Database "+name+" could not be created :: caused by :: No shards found")
	}
	if primary == "" {
		primary = s.leastLoaded(r.hasPrimary)
	}
	return catalog.Database{
		Name: name, Primary: primary, Placement: catalog.PlacementSpread, UUID: uuid.New(),
		Timestamp: catalog.Timestamp(r.Clock.Now()), LastMod: 1,
	}, true, nil
}

// place chooses the shard of a new unsharded collection (DESIGN.md "Words").
func (r *Router) place(d *catalog.Database) string {
	if d.Placement == catalog.PlacementDatabase {
		return d.Primary
	}
	return r.snap.Load().leastLoaded(r.hasPrimary)
}

// leastLoaded returns the shard with the fewest unsharded collections and databases
// for its weight; the first by id among equals. Draining shards get nothing new, nor
// do those that are not well while another is: one dead shard hurts only its own data.
func (s *Snapshot) leastLoaded(well func(shard string) bool) string {
	load := map[string]float64{}
	for _, e := range s.Entries {
		if e.Coll.Kind == catalog.KindUnsharded {
			load[e.Home()]++
		}
	}
	best, least, bestWell := "", 0.0, false
	for _, id := range s.shardIDs() {
		sh := s.Shards[id]
		if sh.Draining {
			continue
		}
		weight := sh.Weight
		if weight <= 0 {
			weight = 1
		}
		l, isWell := load[id]/weight, well(id)
		if best == "" || isWell && !bestWell || isWell == bestWell && l < least {
			best, least, bestWell = id, l, isWell
		}
	}
	return best
}

// hasPrimary reports whether a shard takes writes, as far as is known.
func (r *Router) hasPrimary(shard string) bool {
	b := r.Shard(shard)
	return b != nil && b.HasPrimary()
}

// EnableSharding makes a database if there is none, on the given primary or, if that
// is "", on one of the router's choice.
func (r *Router) EnableSharding(ctx context.Context, db, primary string) error {
	return r.withLock(ctx, db, "enableSharding", func(l catalog.Lock) error {
		s := r.snap.Load()
		if primary != "" {
			if sh, ok := s.Shards[primary]; !ok || sh.Draining {
				if d, exists := s.Databases[db]; exists && d.Primary != primary {
					return otherPrimary(primary)
				}
				return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", primary)
			}
		}
		d, fresh, err := r.database(db, primary)
		if err != nil {
			return err
		}
		if !fresh {
			if primary != "" && d.Primary != primary {
				return otherPrimary(primary)
			}
			return nil
		}
		return r.announce(ctx, catalog.Change{
			Locks: []catalog.Lock{l}, Expect: []catalog.Expect{{NS: db}}, Databases: []catalog.Database{d},
		})
	})
}

func otherPrimary(primary string) error {
	return mongoerr.Newf(mongoerr.NamespaceExists, "database already created on a primary which is different from: %s", primary)
}
