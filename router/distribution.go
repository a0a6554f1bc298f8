package router

import (
	"context"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/owned"
)

// ShardData is what a shard has of a sharded collection; sizes are of uncompressed
// documents, in bytes. Orphaned are those that the shard does not own: copies that a
// movement brings, and what one has left behind.
type ShardData struct {
	Shard                     string
	Owned, Orphaned           int64 // documents
	OwnedBytes, OrphanedBytes int64
}

// CollectionData is what the shards have of a sharded collection, by the shards' ids.
type CollectionData struct {
	NS     string
	Shards []ShardData
}

// DataDistribution tells how the documents of all sharded collections are spread, by
// namespace ($shardedDataDistribution, MONGOS.md §1.6). Every shard is asked once for its
// own figures; where a shard may have what it does not own, that is counted, which reads
// all of the collection there. A shard that cannot be reached is an error.
func (r *Router) DataDistribution(ctx context.Context) ([]CollectionData, error) {
	s := r.Latest(ctx)
	stats := make(map[string]map[string]ShardData) // by shard and namespace
	for _, id := range s.shardIDs() {
		var err error
		if stats[id], err = r.collectionSizes(ctx, id); err != nil {
			return nil, err
		}
	}
	var list []CollectionData
	for _, ns := range slices.Sorted(maps.Keys(s.Entries)) {
		e := s.Entries[ns]
		if !e.Sharded() {
			continue
		}
		data := CollectionData{NS: ns}
		for _, id := range s.shardIDs() {
			if !slices.Contains(e.Table.Shards(), id) && !e.hasUnowned(id) {
				continue
			}
			on := stats[id][ns]
			on.Shard = id
			if e.hasUnowned(id) {
				n, size, err := r.orphans(ctx, e, id)
				if err != nil {
					return nil, err
				}
				// The shard's figures are of a moment before.
				on.Orphaned, on.OrphanedBytes = n, size
				on.Owned, on.OwnedBytes = max(on.Owned-n, 0), max(on.OwnedBytes-size, 0)
			}
			data.Shards = append(data.Shards, on)
		}
		list = append(list, data)
	}
	return list, nil
}

// collectionSizes is what a shard's collections have, as if the shard owned all of it.
func (r *Router) collectionSizes(ctx context.Context, shard string) (map[string]ShardData, error) {
	sizes := make(map[string]ShardData)
	err := r.drain(ctx, shard, "admin", bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$_internalAllCollectionStats", Value: bson.D{{Key: "stats", Value: bson.D{{Key: "storageStats", Value: bson.D{}}}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "ns", Value: 1}, {Key: "n", Value: "$storageStats.count"}, {Key: "size", Value: "$storageStats.size"}}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	}, func(doc bson.Raw) error {
		ns, _ := doc.Lookup("ns").StringValueOK()
		n, _ := doc.Lookup("n").AsInt64OK()
		size, _ := doc.Lookup("size").AsInt64OK()
		sizes[ns] = ShardData{Owned: n, OwnedBytes: size}
		return nil
	})
	return sizes, err
}

// orphans counts what a shard has of a collection and does not own.
func (r *Router) orphans(ctx context.Context, e *Entry, shard string) (n, size int64, err error) {
	cond, err := owned.In(e.Table.Pattern(), e.Unowned(shard))
	if err != nil {
		return 0, 0, err
	}
	db, coll := catalog.SplitNS(e.Coll.NS)
	err = r.drain(ctx, shard, db, bson.D{
		{Key: "aggregate", Value: coll},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$match", Value: cond.Match()}},
			bson.D{{Key: "$group", Value: bson.D{
				{Key: "_id", Value: nil},
				{Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
				{Key: "size", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}}}},
			}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	}, func(doc bson.Raw) error {
		n, _ = doc.Lookup("n").AsInt64OK()
		size, _ = doc.Lookup("size").AsInt64OK()
		return nil
	})
	return n, size, err
}
