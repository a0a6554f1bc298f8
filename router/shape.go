package router

import (
	"bytes"
	"context"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// createAt makes a collection on a shard and returns what became of it. An empty one
// of the same name, which the catalog does not know, is what an earlier attempt left:
// it makes room. It is not taken over: a drop of it may still be under way.
func (r *Router) createAt(ctx context.Context, shard, ns string, options bson.D) (*collInfo, error) {
	db, coll := catalog.SplitNS(ns)
	cmd := append(bson.D{{Key: "create", Value: coll}}, options...)
	cmd = append(cmd, bson.E{Key: "writeConcern", Value: majorityWrites})
	if err := r.dropGuard(ctx, shard, ns); err != nil {
		return nil, err
	}
	_, err := r.run(ctx, shard, db, cmd)
	if !isUnsure(err) && mongoerr.CodeOf(err) == mongoerr.NamespaceExists {
		if err = r.dropStranger(ctx, shard, ns); err == nil {
			_, err = r.run(ctx, shard, db, cmd)
		}
	}
	if err != nil {
		return nil, err
	}
	made, err := r.find(ctx, shard, ns)
	held := made
	if err == nil && made != nil && made.Type == "timeseries" {
		if held, err = r.find(ctx, shard, bucketsOf(ns)); err == nil && held != nil {
			made.Info.UUID = held.Info.UUID // it has none of its own
		}
	}
	if err == nil && held == nil {
		err = mongoerr.Newf(mongoerr.NamespaceNotFound, "the new collection %s is gone from shard %s", ns, shard)
	}
	return made, err
}

// dropStranger drops what a shard holds under a name that the catalog gives to another
// collection, if it is an empty collection; else the name is taken there: 48.
func (r *Router) dropStranger(ctx context.Context, shard, ns string) error {
	found, err := r.find(ctx, shard, ns)
	if err != nil || found == nil || found.Type == "timeseries" {
		if err == nil {
			err = r.dropStrangeSeries(ctx, shard, ns)
		}
		return err
	}
	empty := false
	if found.Type == "collection" {
		if empty, err = r.isEmpty(ctx, shard, ns); err != nil {
			return err
		}
	}
	if !empty {
		return mongoerr.Newf(mongoerr.NamespaceExists, "shard %s holds a %s %s that the cluster does not know", shard, found.Type, ns)
	}
	return r.dropAt(ctx, shard, ns, found.uuid())
}

// copyShape makes a collection as its home has it (UUID, options, indexes) on the
// other shards. What an earlier attempt made there is completed.
func (r *Router) copyShape(ctx context.Context, ns string, like *collInfo, home string, shards []string) error {
	db, coll := catalog.SplitNS(ns)
	var indexes bson.A
	err := r.drain(ctx, home, db, bson.D{{Key: "listIndexes", Value: coll}}, func(doc bson.Raw) error {
		if name, _ := doc.Lookup("name").StringValueOK(); name != "_id_" {
			indexes = append(indexes, spelledOut(doc, like))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if shard == home {
			continue
		}
		if err := r.copyTo(ctx, shard, ns, like); err != nil {
			return err
		}
		if len(indexes) == 0 {
			continue
		}
		_, err = r.run(ctx, shard, db, bson.D{
			{Key: "createIndexes", Value: coll},
			{Key: "indexes", Value: indexes},
			{Key: "collectionUUID", Value: like.Info.UUID},
			{Key: "writeConcern", Value: majorityWrites},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// spelledOut is an index as it is to be made elsewhere: listIndexes leaves the simple
// collation out, where createIndexes would take the collection's own.
func spelledOut(index bson.Raw, like *collInfo) bson.Raw {
	out := append(bson.Raw(nil), index...)
	if _, err := index.LookupErr("collation"); err == nil || len(collationOf(like.Options)) == 0 {
		return out
	}
	out = bsoncore.AppendDocumentElement(out[:len(out)-1], "collation", simpleCollation())
	return wire.AppendDocEnd(out, 0)
}

// copyTo makes a collection on a shard where it has no data yet. One of the same UUID is
// kept, not made anew: a drop by a UUID in use could arrive late.
func (r *Router) copyTo(ctx context.Context, shard, ns string, like *collInfo) error {
	if err := r.dropGuard(ctx, shard, ns); err != nil {
		return err
	}
	found, err := r.find(ctx, shard, ns)
	switch {
	case err != nil:
		return err
	case found == nil:
	case found.uuid() != like.uuid():
		if err := r.dropStranger(ctx, shard, ns); err != nil {
			return err
		}
	case !bytes.Equal(found.Options, like.Options):
		return mongoerr.Newf(mongoerr.NamespaceExists, "shard %s holds %s with other options: %s", shard, ns, found.Options)
	default:
		return r.settle(ctx, shard)
	}
	return r.createWithUUID(ctx, shard, ns, like)
}

// dropAt drops a collection on one shard by its UUID. That it is not there is no error,
// another one in its place is: 361.
func (r *Router) dropAt(ctx context.Context, shard, ns string, id uuid.UUID) error {
	if series := seriesOf(ns); series != "" {
		return r.dropSeries(ctx, shard, series, id)
	}
	db, coll := catalog.SplitNS(ns)
	drop := bson.D{{Key: "drop", Value: coll}, {Key: "writeConcern", Value: majorityWrites}}
	_, err := r.run(ctx, shard, db, append(drop[:2:2], bson.E{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: id[:]}}))
	if c := mongoerr.CodeOf(err); c != mongoerr.NamespaceNotFound && c != mongoerr.CollectionUUIDMismatch {
		return err
	}
	found, ferr := r.find(ctx, shard, ns)
	switch {
	case ferr != nil:
		return ferr
	case found == nil:
		return r.settle(ctx, shard) // that it is gone must not be undone either
	}
	return err
}

// dropView drops a view on one shard. It takes the view's definition away, as drop with
// a mere name could arrive late and hit a collection.
func (r *Router) dropView(ctx context.Context, shard, ns string) error {
	db, _ := catalog.SplitNS(ns)
	found, err := r.find(ctx, shard, ns)
	if err != nil || found == nil || found.Type != "view" {
		return err
	}
	views, err := r.find(ctx, shard, db+".system.views")
	if err != nil || views == nil {
		return err
	}
	return r.applyOps(ctx, shard, bson.D{
		{Key: "op", Value: "d"},
		{Key: "ns", Value: db + ".system.views"},
		{Key: "ui", Value: views.Info.UUID},
		{Key: "o", Value: bson.D{{Key: "_id", Value: ns}}},
	})
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

// simpleCollation compares strings byte by byte.
func simpleCollation() []byte {
	return bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "locale", "simple"))
}
