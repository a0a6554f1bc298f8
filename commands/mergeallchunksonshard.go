package commands

import (
	"context"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func mergeAllChunksOnShard(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known("shard", "maxNumberOfChunksToMerge"); err != nil {
		return err
	}
	shard, err := req.stringArg("shard")
	if err != nil {
		return err
	}
	limit := int64(0)
	if e, ok := req.Lookup("maxNumberOfChunksToMerge"); ok {
		if limit, ok = e.Int64(); !ok {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'mergeAllChunksOnShard.maxNumberOfChunksToMerge' is the wrong type '%s', expected type 'int'", router.TypeName(e.Type))
		}
		if limit < 2 {
			return mongoerr.Newf(mongoerr.BadValue, "BSON field 'maxNumberOfChunksToMerge' value must be > 1, actual value '%d'", limit)
		}
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.MergeAllChunks(ctx, ns, shard, int(limit)); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}
