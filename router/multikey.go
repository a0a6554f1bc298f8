package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// refuseArrays refuses a shard key in whose fields some document has, or had, an array:
// it would belong in no chunk, or in several. The shard's indexes that support the key know.
func (r *Router) refuseArrays(ctx context.Context, e *Entry, shard string, key *shardkey.Pattern) error {
	if isIDKey(key) {
		return nil
	}
	indexes, err := r.indexesOn(ctx, e, shard)
	if err != nil {
		return err
	}
	for i := range indexes {
		x := &indexes[i]
		if x.Hidden || !x.plain() || !indexSupports(key, x.Key) {
			continue
		}
		many, err := r.multikey(ctx, e, shard, x.Name, key)
		if err != nil || !many {
			return err
		}
	}
	return mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before sharding the collection: "+
		"documents have arrays in its fields, so that the existing ones are multikey")
}

// multikey reports whether an index of a shard has several entries for one document because
// of the fields of a key. Only explain tells.
func (r *Router) multikey(ctx context.Context, e *Entry, shard, index string, key *shardkey.Pattern) (bool, error) {
	db, coll := catalog.SplitNS(e.Coll.NS)
	body, err := r.run(ctx, shard, db, bson.D{{Key: "explain", Value: bson.D{
		{Key: "find", Value: coll}, {Key: "hint", Value: index},
	}}, {Key: "verbosity", Value: "queryPlanner"}})
	if err != nil {
		return false, err
	}
	plan, ok := bson.Raw(body).Lookup("queryPlanner", "winningPlan").DocumentOK()
	for ; ok; plan, ok = inner(plan) {
		many, err := plan.LookupErr("isMultiKey")
		if err != nil {
			continue
		}
		if b, _ := many.BooleanOK(); !b {
			return false, nil
		}
		paths, ok := plan.Lookup("multiKeyPaths").DocumentOK()
		if !ok {
			return true, nil // it is not known by which
		}
		for i := range key.Len() {
			list, ok := paths.Lookup(key.Field(i).Name).ArrayOK()
			if !ok || len(list) > len(emptyDoc) {
				return true, nil
			}
		}
		return false, nil
	}
	return false, wire.ErrMalformed
}

// inner returns the stage below one of a plan.
func inner(plan bson.Raw) (bson.Raw, bool) {
	if d, ok := plan.Lookup("queryPlan").DocumentOK(); ok {
		return d, true
	}
	return plan.Lookup("inputStage").DocumentOK()
}
