package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// defaultChunkSize is that of a range in MB where config.settings does not say.
const defaultChunkSize = 128

// SetBalancer says whether the balancer is to run. There is none yet; the setting is kept.
func (r *Router) SetBalancer(ctx context.Context, on bool) error {
	mode := "off"
	if on {
		mode = "full"
	}
	raw, err := bson.Marshal(bson.D{{Key: "stopped", Value: !on}, {Key: "mode", Value: mode}})
	if err != nil {
		return err
	}
	set, err := bson.Raw(raw).Elements()
	if err != nil {
		return err
	}
	u := configUpdate{id: "balancer", set: set, upsert: true}
	return r.changeSetting(ctx, u.id, func(old bson.Raw) (bson.Raw, error) { return u.applied(old), nil })
}

// ChunkSize is the size of a range in MB that the balancer aims at.
func (s *Snapshot) ChunkSize() int64 {
	if n, ok := s.Settings["chunksize"].Doc.Lookup("value").AsInt64OK(); ok {
		return n
	}
	return defaultChunkSize
}

// The ways in which a collection may lie otherwise than a balancer would have it.
const (
	violationDraining  = "draining"
	violationImbalance = "chunksImbalance"
)

// Violation says why a collection does not lie as a balancer would have it: "" where it
// does, and the chunk size by which that is judged.
func (r *Router) Violation(ctx context.Context, ns string) (why string, chunkSize int64, err error) {
	e, err := r.freshSharded(ctx, ns)
	if err != nil {
		return "", 0, err
	}
	s := r.snap.Load()
	chunkSize = s.ChunkSize()
	for _, id := range e.Table.Shards() {
		if s.Shards[id].Draining {
			return violationDraining, chunkSize, nil
		}
	}
	least, greatest, err := r.spread(ctx, e, s)
	if greatest-least >= 3*chunkSize<<20 {
		why = violationImbalance
	}
	return why, chunkSize, err
}

// spread returns how much the shard with the least and that with the most data of a
// collection have.
func (r *Router) spread(ctx context.Context, e *Entry, s *Snapshot) (least, greatest int64, err error) {
	db, coll := catalog.SplitNS(e.Coll.NS)
	for i, reply := range r.onShards(ctx, e.Table.Shards(), db, bson.D{{Key: "collStats", Value: coll}}) {
		if reply.Err != nil {
			return 0, 0, reply.Err
		}
		n, ok := bson.Raw(reply.Body).Lookup("size").AsInt64OK()
		if !ok {
			return 0, 0, mongoerr.Newf(mongoerr.OperationFailed, "shard %s does not say how large %s is", reply.Shard, e.Coll.NS)
		}
		if i == 0 || n < least {
			least = n
		}
		greatest = max(greatest, n)
	}
	if len(e.Table.Shards()) < len(s.Shards) {
		least = 0
	}
	return least, greatest, nil
}
