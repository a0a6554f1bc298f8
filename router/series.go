package router

import (
	"bytes"
	"context"
	"strings"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// A time series collection is unsharded, and lies on one shard as a view of its name over
// a collection of buckets. The catalog has one row for both: the series' name and options,
// with the UUID of the buckets, as the view has none. Commands pass whole to the shard.

// bucketsPrefix is what the name of a buckets collection begins with, after the database.
const bucketsPrefix = "system.buckets."

// isSeries reports whether it is a time series collection.
func (e *Entry) isSeries() bool {
	if e == nil || e.Table == nil {
		return false
	}
	_, err := e.Coll.Options.LookupErr("timeseries")
	return err == nil
}

// stored is the namespace under which shards hold the collection's UUID.
func (e *Entry) stored() string {
	if e.isSeries() {
		return bucketsOf(e.Coll.NS)
	}
	return e.Coll.NS
}

// bucketsOf names the buckets of a time series collection.
func bucketsOf(ns string) string {
	db, coll := catalog.SplitNS(ns)
	return db + "." + bucketsPrefix + coll
}

// seriesOf names the time series collection of which ns may be the buckets, "" if its name
// is none of buckets.
func seriesOf(ns string) string {
	db, coll := catalog.SplitNS(ns)
	if name, is := strings.CutPrefix(coll, bucketsPrefix); is {
		return db + "." + name
	}
	return ""
}

// named returns what a namespace names; who names buckets means their series.
func (s *Snapshot) named(ns []byte) *Entry {
	if e := s.Entries[string(ns)]; e != nil || !bytes.Contains(ns, []byte("."+bucketsPrefix)) {
		return e
	}
	if e := s.Entries[seriesOf(string(ns))]; e.isSeries() {
		return e
	}
	return nil
}

// ofBuckets refuses to make, or change, buckets by their own name.
func ofBuckets(ns string) error {
	if seriesOf(ns) == "" {
		return nil
	}
	return notYet("metadata operations on collections that are called " + bucketsPrefix + "*")
}

// dropStrangeSeries is dropStranger for a time series collection, or what is left of one.
func (r *Router) dropStrangeSeries(ctx context.Context, shard, ns string) error {
	buckets, err := r.find(ctx, shard, bucketsOf(ns))
	if err != nil {
		return err
	}
	if buckets == nil {
		return r.dropSeries(ctx, shard, ns, uuid.Nil)
	}
	empty, err := r.isEmpty(ctx, shard, bucketsOf(ns))
	if err != nil {
		return err
	}
	if !empty {
		return mongoerr.Newf(mongoerr.NamespaceExists, "shard %s holds a timeseries %s that the cluster does not know", shard, ns)
	}
	return r.dropSeries(ctx, shard, ns, buckets.uuid())
}

// dropSeries drops buckets by their UUID, and the view over them. The drop command takes no
// UUID here, so it is done by operations that need a guard: arriving late, they do nothing.
func (r *Router) dropSeries(ctx context.Context, shard, ns string, id uuid.UUID) error {
	db, _ := catalog.SplitNS(ns)
	buckets, err := r.find(ctx, shard, bucketsOf(ns))
	if err != nil {
		return err
	}
	var ops []bson.D
	switch {
	case buckets == nil:
	case buckets.uuid() != id:
		return mongoerr.Newf(mongoerr.CollectionUUIDMismatch, "shard %s holds another collection in the place of %s", shard, bucketsOf(ns))
	default:
		_, name := catalog.SplitNS(bucketsOf(ns))
		ops = append(ops, bson.D{
			{Key: "op", Value: "c"},
			{Key: "ns", Value: db + ".$cmd"},
			{Key: "ui", Value: binaryUUID(id)},
			{Key: "o", Value: bson.D{{Key: "drop", Value: name}}},
		})
	}
	view, err := r.find(ctx, shard, ns)
	if err != nil {
		return err
	}
	if view != nil && view.Type == "timeseries" {
		views, err := r.find(ctx, shard, db+".system.views")
		if err != nil || views == nil {
			return err
		}
		ops = append(ops, bson.D{
			{Key: "op", Value: "d"},
			{Key: "ns", Value: db + ".system.views"},
			{Key: "ui", Value: views.Info.UUID},
			{Key: "o", Value: bson.D{{Key: "_id", Value: ns}}},
		})
	}
	if len(ops) == 0 {
		return r.settle(ctx, shard) // that it is gone must not be undone either
	}
	if err := r.dropGuard(ctx, shard, ns); err != nil {
		return err
	}
	return r.applyGuarded(ctx, shard, ns, ops...)
}
