package router

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// CreateImplicitly makes a collection that a write or an index names for the first
// time. One that exists by then is no error.
func (r *Router) CreateImplicitly(ctx context.Context, ns string) error {
	return r.Create(ctx, ns, nil, true)
}

// Create makes an unsharded collection with the options of the create command, on the
// shard that the database's placement chooses. One that exists is 48 unless ifMissing
// or its options are the same.
func (r *Router) Create(ctx context.Context, ns string, options bson.D, ifMissing bool) error {
	if r.snap.Load().Entries[ns] != nil && ifMissing {
		return nil
	}
	return r.withLock(ctx, ns, "create", func(l catalog.Lock) error {
		if e := r.snap.Load().Entries[ns]; e != nil {
			if ifMissing {
				return nil
			}
			return compareOptions(e, options)
		}
		_, err := r.createLocked(ctx, l, ns, "", options)
		return err
	})
}

// compareOptions decides whether create on an existing collection is a repetition or a
// conflict (48). What the shard normalises is taken as it stored it.
func compareOptions(e *Entry, options bson.D) error {
	if e.Coll.Kind == catalog.KindView {
		return mongoerr.Newf(mongoerr.NamespaceExists, "a view '%s' already exists", e.Coll.NS)
	}
	asked, err := bson.Marshal(append(bson.D{}, options...)) // nil cannot be encoded
	if err != nil {
		return err
	}
	if sameOptions(asked, e.Coll.Options) {
		return nil
	}
	return mongoerr.Newf(mongoerr.NamespaceExists, "namespace %s already exists, but with different options: %s", e.Coll.NS, shardkey.Format(orEmpty(e.Coll.Options)))
}

func orEmpty(d bson.Raw) bson.Raw {
	if len(d) == 0 {
		return emptyDoc
	}
	return d
}

// sameOptions compares what create is asked with what a collection has, without regard
// to order. A capped collection's size is stored rounded up to 256 bytes.
func sameOptions(asked, have bson.Raw) bool {
	a, err := asked.Elements()
	if err != nil {
		return false
	}
	h, err := orEmpty(have).Elements()
	if err != nil || len(a) != len(h) {
		return false
	}
	for _, e := range a {
		v, w := e.Value(), have.Lookup(e.Key())
		if v.Equal(w) {
			continue
		}
		n, ok := v.AsInt64OK()
		m, ok2 := w.AsInt64OK()
		if !ok || !ok2 || n != m && (e.Key() != "size" || (n+255)/256*256 != m) {
			return false
		}
	}
	return true
}

// createLocked makes a collection under its lock: first its row, fenced, so that every
// router knows of it before it can be used; then the collection on its shard; then the
// row is opened. home "" lets the placement choose.
func (r *Router) createLocked(ctx context.Context, l catalog.Lock, ns, home string, options bson.D) (*Entry, error) {
	db, coll := catalog.SplitNS(ns)
	d, fresh, err := r.database(ctx, db, "")
	if err != nil {
		return nil, err
	}
	if home == "" {
		home = r.place(&d)
	}
	at := catalog.Timestamp(r.Clock.Now())
	row := catalog.CollectionChunks{
		Collection: catalog.Collection{
			NS: ns, Kind: catalog.KindUnsharded, State: catalog.StateFenced,
			Epoch: bson.NewObjectID(), Timestamp: at, LastMod: time.Now(), Migrations: true,
		},
		Chunks: shardkey.SingleChunk(home, at),
	}
	locks := []catalog.Lock{l}
	c := catalog.Change{Locks: locks, Expect: []catalog.Expect{{NS: ns}}, Put: []catalog.CollectionChunks{row}}
	if fresh {
		c.Databases = []catalog.Database{d}
	}
	forget := catalog.Change{Locks: locks, Drop: []string{ns}}
	if err := r.fence(ctx, c, forget); err != nil {
		return nil, err
	}
	cmd := append(bson.D{{Key: "create", Value: coll}}, options...)
	cmd = append(cmd, bson.E{Key: "writeConcern", Value: majorityWrites})
	if _, err := r.run(ctx, home, db, cmd); err != nil {
		if !isUnreachable(err) && mongoerr.CodeOf(err) != mongoerr.NamespaceExists {
			r.undo(ctx, forget)
			return nil, err
		}
		if isUnreachable(err) {
			return nil, err // whether it exists is found out by recoverFenced
		}
	}
	list, err := r.listOn(ctx, home, db, bson.D{{Key: "name", Value: coll}})
	if err != nil || len(list) == 0 {
		return nil, fmt.Errorf("read back the new collection %s: %d found: %w", ns, len(list), err)
	}
	row.State, row.UUID, row.Options = catalog.StateOpen, list[0].uuid(), list[0].Options
	row.Collation = collationOf(list[0].Options)
	row.Timestamp = catalog.Timestamp(r.Clock.Now())
	if err := r.apply(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{row.Collection}}); err != nil {
		return nil, err
	}
	return r.snap.Load().Entries[ns], nil
}

// collationOf returns a collection's default collation, nil for the simple one.
func collationOf(options bson.Raw) bson.Raw {
	c, ok := options.Lookup("collation").DocumentOK()
	if !ok {
		return nil
	}
	if l, _ := c.Lookup("locale").StringValueOK(); l == "simple" {
		return nil
	}
	return c
}

// database returns a database's row, new (and yet to be put) if the catalog has none.
// A name that differs from another's in case only is refused.
func (r *Router) database(_ context.Context, name, primary string) (d catalog.Database, fresh bool, err error) {
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
		d, fresh, err := r.database(ctx, db, primary)
		if err != nil {
			return err
		}
		if !fresh {
			if primary != "" && d.Primary != primary {
				return otherPrimary(primary)
			}
			return nil
		}
		return r.announce(ctx, catalog.Change{Locks: []catalog.Lock{l}, Databases: []catalog.Database{d}})
	})
}

func otherPrimary(primary string) error {
	return mongoerr.Newf(mongoerr.NamespaceExists, "database already created on a primary which is different from: %s", primary)
}

// announce applies a change that needs no fence and waits until every router knows.
func (r *Router) announce(ctx context.Context, c catalog.Change) error {
	v, err := r.applyVersion(ctx, c)
	if err != nil {
		return err
	}
	return r.barrier(ctx, v, c.Locks[0].Name)
}

// copyShape makes the collection, with its UUID, options and indexes, on those of the
// shards that do not have it.
func (r *Router) copyShape(ctx context.Context, ns string, like *collInfo, shards []string) error {
	db, coll := catalog.SplitNS(ns)
	var from string
	var missing []string
	for _, shard := range shards {
		list, err := r.listOn(ctx, shard, db, bson.D{{Key: "name", Value: coll}})
		switch {
		case err != nil:
			return err
		case len(list) == 0:
			missing = append(missing, shard)
		case list[0].uuid() != like.uuid():
			return mongoerr.Newf(mongoerr.NamespaceExists, "shard %s holds another collection %s", shard, ns)
		case from == "":
			from = shard
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var indexes bson.A
	if from != "" {
		err := r.drain(ctx, from, db, bson.D{{Key: "listIndexes", Value: coll}}, func(doc bson.Raw) error {
			if name, _ := doc.Lookup("name").StringValueOK(); name != "_id_" {
				indexes = append(indexes, append(bson.Raw(nil), doc...))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, shard := range missing {
		if err := r.createWithUUID(ctx, shard, ns, like, indexes); err != nil {
			return err
		}
	}
	return nil
}

// createWithUUID makes a collection of a given UUID by applyOps (MONGOD.md "Versions
// and names"): one logical collection has one UUID everywhere.
func (r *Router) createWithUUID(ctx context.Context, shard, ns string, like *collInfo, indexes bson.A) error {
	db, coll := catalog.SplitNS(ns)
	o := bson.D{{Key: "create", Value: coll}}
	if err := appendElements(&o, like.Options); err != nil {
		return err
	}
	if like.IDIndex != nil {
		o = append(o, bson.E{Key: "idIndex", Value: like.IDIndex})
	}
	u := like.uuid()
	_, err := r.run(ctx, shard, "admin", bson.D{
		{Key: "applyOps", Value: bson.A{bson.D{
			{Key: "op", Value: "c"},
			{Key: "ns", Value: db + ".$cmd"},
			{Key: "ui", Value: bson.Binary{Subtype: 4, Data: u[:]}},
			{Key: "o", Value: o},
		}}},
		{Key: "writeConcern", Value: majorityWrites},
	})
	if err != nil {
		return err
	}
	if len(indexes) == 0 {
		return nil
	}
	_, err = r.run(ctx, shard, db, bson.D{
		{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: indexes}, {Key: "writeConcern", Value: majorityWrites},
	})
	return err
}

func appendElements(d *bson.D, raw bson.Raw) error {
	if len(raw) == 0 {
		return nil
	}
	elems, err := raw.Elements()
	if err != nil {
		return err
	}
	for _, e := range elems {
		*d = append(*d, bson.E{Key: e.Key(), Value: e.Value()})
	}
	return nil
}
