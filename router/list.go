package router

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ListIndexes runs listIndexes on one owner of the collection: all have the same.
func (r *Router) ListIndexes(ctx context.Context, op *Op) error {
	s, err := r.admit(ctx, op)
	if err != nil {
		return err
	}
	if s.entry == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns does not exist: %s", s.ns)
	}
	defer r.leave(s.entry)
	s.shards = s.entry.Table.Shards()[:1]
	return r.passCursor(ctx, op, &s, &patch{})
}

// OnAnyShard forwards a command that needs no collection, such as a pipeline that
// begins with $documents, to whichever shard is there.
func (r *Router) OnAnyShard(ctx context.Context, op *Op) error {
	shards := r.anyShards()
	if len(shards) == 0 {
		return mongoerr.New(mongoerr.ShardNotFound, "no shard is there to run the command: add one with addShard")
	}
	s := scope{ns: string(op.Cmd.DB) + ".$cmd.aggregate", shards: shards[:1]}
	return r.passCursor(ctx, op, &s, &patch{})
}

// DatabaseSizes returns sizeOnDisk in bytes by database and shard, of the shards that
// answer.
func (r *Router) DatabaseSizes(ctx context.Context, op *Op) map[string]map[string]int64 {
	ctx, cancel := op.Context(ctx)
	defer cancel()
	out := map[string]map[string]int64{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for id, shard := range r.Shards() {
		if !shard.HasPrimary() {
			continue
		}
		wg.Go(func() {
			var failed error // a panic, which is logged
			defer r.survive(&failed)
			dbs := r.shardDatabases(ctx, shard)
			mu.Lock()
			defer mu.Unlock()
			for name, size := range dbs {
				if out[name] == nil {
					out[name] = map[string]int64{}
				}
				out[name][id] = size
			}
		})
	}
	wg.Wait()
	return out
}

func (r *Router) shardDatabases(ctx context.Context, shard *backend.Shard) map[string]int64 {
	body, err := r.run(ctx, shard.ID, "admin", bson.D{{Key: "listDatabases", Value: int32(1)}})
	if err != nil {
		r.log.Debug().Err(err).Str("shard", shard.ID).Msg("list databases")
		return nil
	}
	var reply struct {
		Databases []struct {
			Name string `bson:"name"`
			Size int64  `bson:"sizeOnDisk"`
		} `bson:"databases"`
	}
	if err := bson.Unmarshal(bson.Raw(body), &reply); err != nil {
		return nil
	}
	out := map[string]int64{}
	for _, d := range reply.Databases {
		out[d.Name] = d.Size
	}
	return out
}
