package router

import (
	"bytes"
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// CreateView makes a view. Its definition lies in the catalog only: routers resolve it.
func (r *Router) CreateView(ctx context.Context, ns string, options bson.D) error {
	return r.withViewLocks(ctx, ns, "create view", func(locks []catalog.Lock) error {
		err := r.createView(ctx, locks, ns, options)
		if errors.Is(err, catalog.ErrConflict) {
			// The database came meanwhile, with a collection of it.
			if err := r.Refresh(ctx); err != nil {
				return catalogError(err)
			}
			err = r.createView(ctx, locks, ns, options)
		}
		return err
	})
}

// withViewLocks is withLock for what defines a view. The views of a database are defined
// one after the other: two that are over each other are a cycle, which neither would see.
func (r *Router) withViewLocks(ctx context.Context, ns, why string, fn func([]catalog.Lock) error) error {
	return r.withLocks(ctx, []string{ns, "$views." + dbOf(ns)}, why, fn)
}

func (r *Router) createView(ctx context.Context, locks []catalog.Lock, ns string, options bson.D) error {
	db := dbOf(ns)
	d, fresh, err := r.database(db, "")
	if err != nil {
		return err
	}
	stored, err := r.tryView(ctx, ns, d.Primary, options)
	if err != nil {
		return err
	}
	if e := r.snap.Load().Entries[ns]; e != nil {
		if e.Coll.Kind == catalog.KindView && bytes.Equal(e.Coll.Options, stored) {
			return nil // it is what was asked for
		}
		return mongoerr.Newf(mongoerr.NamespaceExists, "namespace %s already exists, but with different options: %s", ns, shardkey.Format(orEmpty(e.Coll.Options)))
	}
	row := catalog.CollectionChunks{Collection: catalog.Collection{
		NS: ns, Kind: catalog.KindView, State: catalog.StateOpen, Options: stored, Collation: collationOf(stored),
		Epoch: bson.NewObjectID(), Timestamp: catalog.Timestamp(r.Clock.Now()), LastMod: time.Now(),
	}}
	c := catalog.Change{Locks: locks, Expect: []catalog.Expect{{NS: ns}}, Put: []catalog.CollectionChunks{row}}
	if fresh {
		c.Expect, c.Databases = append(c.Expect, catalog.Expect{NS: db}), []catalog.Database{d}
	}
	return r.announce(ctx, c)
}

// ModifyView gives a view another definition.
func (r *Router) ModifyView(ctx context.Context, ns string, options bson.D) error {
	return r.withViewLocks(ctx, ns, "collMod", func(locks []catalog.Lock) error {
		e := r.snap.Load().Entries[ns]
		raw, err := bson.Marshal(options)
		if err != nil {
			return err
		}
		_, noPipeline := bson.Raw(raw).LookupErr("pipeline")
		_, noView := bson.Raw(raw).LookupErr("viewOn")
		switch {
		case noPipeline != nil || noView != nil:
			return mongoerr.New(mongoerr.InvalidOptions, "Must specify both 'viewOn' and 'pipeline' when modifying a view")
		case e == nil:
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found %s", ns)
		case e.Coll.Kind != catalog.KindView:
			return mongoerr.New(mongoerr.InvalidOptions, "option not supported on collection: viewOn")
		}
		if len(e.Coll.Collation) > 0 {
			options = append(options, bson.E{Key: "collation", Value: e.Coll.Collation})
		}
		stored, err := r.tryView(ctx, ns, r.snap.Load().Databases[dbOf(ns)].Primary, options)
		if err != nil {
			return err
		}
		row := *e.Coll
		row.Options, row.LastMod = stored, time.Now()
		return r.announce(ctx, catalog.Change{Locks: locks, Rows: []catalog.Collection{row}})
	})
}

// tryView has a real mongod check a definition, in a database where it is in nobody's
// way, and returns it as the mongod stores it.
func (r *Router) tryView(ctx context.Context, ns, shard string, options bson.D) (bson.Raw, error) {
	if err := r.checkViewed(ns, options); err != nil {
		return nil, err
	}
	if err := r.prepareInternal(ctx, shard); err != nil {
		return nil, err
	}
	name := r.temporaryName()
	if _, err := r.run(ctx, shard, InternalDB, append(bson.D{{Key: "create", Value: name}}, options...)); err != nil {
		return nil, err
	}
	defer r.dropSpilled(ctx, shard, name)
	list, err := r.listOn(ctx, shard, InternalDB, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, mongoerr.New(mongoerr.InternalError, "a view on trial is gone")
	}
	return list[0].Options, r.checkCollation(ns, list[0].Options)
}

// checkViewed checks what the definition says of other namespaces of the cluster.
func (r *Router) checkViewed(ns string, options bson.D) error {
	raw, err := bson.Marshal(options)
	if err != nil {
		return err
	}
	on, ok := bson.Raw(raw).Lookup("viewOn").StringValueOK()
	if !ok || on == "" {
		return nil // the mongod refuses it
	}
	s := r.snap.Load()
	under := dbOf(ns) + "." + on
	if under == ns {
		return mongoerr.Newf(mongoerr.GraphContainsCycle, "View cycle detected: %s => %s", ns, ns)
	}
	if seriesOf(under) != "" {
		return notYet("views on collections that are called " + bucketsPrefix + "*") // mongod lists one as a time series without its definition
	}
	e := s.Entries[under]
	if e == nil || e.Coll.Kind != catalog.KindView {
		return nil
	}
	for i, v := 0, e; v != nil && v.Coll.Kind == catalog.KindView; i++ {
		var d definition
		if err := bson.Unmarshal(v.Coll.Options, &d); err != nil || i >= maxViewDepth {
			return mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", maxViewDepth)
		}
		next := dbOf(ns) + "." + d.ViewOn
		if next == ns {
			return mongoerr.Newf(mongoerr.GraphContainsCycle, "View cycle detected: %s => %s => %s", ns, under, ns)
		}
		v = s.Entries[next]
	}
	return nil
}

// checkCollation refuses a view over a view of another collation.
func (r *Router) checkCollation(ns string, stored bson.Raw) error {
	on, _ := stored.Lookup("viewOn").StringValueOK()
	under := dbOf(ns) + "." + on
	e := r.snap.Load().Entries[under]
	if e != nil && e.Coll.Kind == catalog.KindView && !bytes.Equal(collationOf(stored), e.Coll.Collation) {
		return mongoerr.Newf(mongoerr.OptionNotSupportedOnView, "View %s has conflicting collation with view %s", ns, under)
	}
	return nil
}
