package router

import (
	"context"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// CurrentOps lists what runs on all shards' primaries, as $currentOp with the given options
// shows it there, and reshardings. Each row says on which shard it is (MONGOS.md §1.5).
func (r *Router) CurrentOps(ctx context.Context, options bson.Raw) ([]bson.Raw, error) {
	shards := r.Latest(ctx).shardIDs()
	rows := make([][]bson.Raw, len(shards))
	errs := make([]error, len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		wg.Go(func() {
			errs[i] = r.drain(ctx, shard, "admin", bson.D{
				{Key: "aggregate", Value: int32(1)},
				{Key: "pipeline", Value: bson.A{bson.D{{Key: "$currentOp", Value: options}}}},
				{Key: "cursor", Value: bson.D{}},
			}, func(doc bson.Raw) error {
				rows[i] = append(rows[i], onShard(shard, doc))
				return nil
			})
		})
	}
	wg.Wait()
	var all []bson.Raw
	for i := range shards {
		if errs[i] != nil {
			return nil, mongoerr.Wrap(mongoerr.CodeOf(errs[i]), errs[i], "$currentOp on shard "+shards[i])
		}
		all = append(all, rows[i]...)
	}
	more, err := r.reshardingOps(ctx)
	return append(all, more...), err
}

// onShard is a shard's row as a mongos shows it.
func onShard(shard string, doc bson.Raw) bson.Raw {
	at, b := wire.AppendDocStart(make([]byte, 0, len(doc)+64))
	b = bsoncore.AppendStringElement(b, "shard", shard)
	it := wire.Doc(doc).Iter()
	var e wire.Elem
	for it.Next(&e) {
		switch string(e.Name) {
		case "shard":
		case "opid":
			n, _ := e.Int64()
			b = bsoncore.AppendStringElement(b, "opid", fmt.Sprintf("%s:%d", shard, n))
		case "client":
			b = append(bsoncore.AppendHeader(b, bsoncore.Type(e.Type), "client_s"), e.Value...)
		default:
			b = append(b, e.Raw...)
		}
	}
	return wire.AppendDocEnd(b, at)
}
