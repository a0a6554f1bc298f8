package router

import (
	"context"
	"errors"
	"time"

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
			return r.compareOptions(ctx, e, options)
		}
		_, err := r.createLocked(ctx, l, ns, options)
		return err
	})
}

// compareOptions decides whether create on an existing collection is a repetition or a
// conflict (48). What the shard normalises is taken as it stored it.
func (r *Router) compareOptions(ctx context.Context, e *Entry, options bson.D) error {
	switch {
	case e.Coll.Kind == catalog.KindView:
		return mongoerr.Newf(mongoerr.NamespaceExists, "a view '%s' already exists", e.Coll.NS)
	case e.isSeries():
		return mongoerr.Newf(mongoerr.NamespaceExists, "A timeseries collection already exists. NS: %s", e.Coll.NS)
	}
	asked, err := r.normalOptions(ctx, e, options)
	if err != nil {
		return err
	}
	if sameOptions(asked, e.Coll.Options) {
		return nil
	}
	return mongoerr.Newf(mongoerr.NamespaceExists, "namespace %s already exists, but with different options: %s", e.Coll.NS, shardkey.Format(orEmpty(e.Coll.Options)))
}

// normalOptions returns options as a shard would store them: the collation with all its
// fields, which depend on the locale and are told by explain, and nothing that is the
// default anyway.
func (r *Router) normalOptions(ctx context.Context, e *Entry, options bson.D) (bson.Raw, error) {
	var kept bson.D
	for _, o := range options {
		v, ok := o.Value.(bson.RawValue)
		switch {
		case ok && o.Key == "capped" && isFalse(v):
			continue
		case o.Key == "collation":
			db, coll := catalog.SplitNS(e.Coll.NS)
			body, err := r.run(ctx, e.Home(), db, bson.D{{Key: "explain", Value: bson.D{
				{Key: "find", Value: coll}, {Key: "collation", Value: o.Value},
			}}, {Key: "verbosity", Value: "queryPlanner"}})
			if err != nil {
				return nil, err
			}
			full, err := bson.Raw(body).LookupErr("queryPlanner", "collation")
			if err != nil {
				continue // the simple one
			}
			o.Value = full
		}
		kept = append(kept, o)
	}
	return bson.Marshal(append(bson.D{}, kept...)) // nil cannot be encoded
}

func isFalse(v bson.RawValue) bool {
	b, ok := v.BooleanOK()
	n, isNum := v.AsInt64OK()
	return ok && !b || isNum && n == 0
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
// row is opened.
func (r *Router) createLocked(ctx context.Context, l catalog.Lock, ns string, options bson.D) (*Entry, error) {
	if err := ofBuckets(ns); err != nil {
		return nil, err
	}
	locks := []catalog.Lock{l}
	forget := catalog.Change{Locks: locks, Drop: []string{ns}}
	row, err := r.fenceNew(ctx, ns, catalog.Change{Locks: locks}, forget)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // what has begun is finished
	made, err := r.createAt(ctx, row.Chunks[0].Shard, ns, options)
	if err != nil {
		r.undo(ctx, forget)
		return nil, err
	}
	row.State, row.UUID, row.Options = catalog.StateOpen, made.uuid(), made.Options
	row.Collation = collationOf(made.Options)
	row.Timestamp = catalog.Timestamp(r.Clock.Now())
	if err := r.apply(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{row.Collection}}); err != nil {
		return nil, err
	}
	return r.snap.Load().Entries[ns], nil
}

// fenceNew puts the fenced row of a new unsharded collection, and of its database where
// that is new, too.
func (r *Router) fenceNew(ctx context.Context, ns string, c, forget catalog.Change) (*catalog.CollectionChunks, error) {
	db, _ := catalog.SplitNS(ns)
	for again := true; ; again = false {
		d, fresh, err := r.database(db, "")
		if err != nil {
			return nil, err
		}
		row := r.reserved(ns, r.place(&d))
		c.Expect, c.Put, c.Databases = []catalog.Expect{{NS: ns}}, []catalog.CollectionChunks{*row}, nil
		if fresh {
			c.Expect, c.Databases = append(c.Expect, catalog.Expect{NS: db}), []catalog.Database{d}
		}
		err = r.fence(ctx, c, forget)
		if err == nil || !again || !errors.Is(err, catalog.ErrConflict) {
			return row, err
		}
		// The database came meanwhile, with another collection of it.
		if err := r.Refresh(ctx); err != nil {
			return nil, catalogError(err)
		}
	}
}

// reserved is the fenced row of an unsharded collection that is yet to be made.
func (r *Router) reserved(ns, shard string) *catalog.CollectionChunks {
	at := catalog.Timestamp(r.Clock.Now())
	return &catalog.CollectionChunks{
		Collection: catalog.Collection{
			NS: ns, Kind: catalog.KindUnsharded, State: catalog.StateFenced,
			Epoch: bson.NewObjectID(), Timestamp: at, LastMod: time.Now(), Migrations: true,
		},
		Chunks: shardkey.SingleChunk(shard, at),
	}
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
