package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// shardedDataDistribution is the stage that tells how much of each sharded collection every
// shard has.
const shardedDataDistribution = "$shardedDataDistribution"

// distributionStage refuses the stage where it has an argument, or is not asked of the
// database admin (codes of runs on mongod 6.0.5).
func (req *request) distributionStage(stage wire.Elem) error {
	spec, ok := stage.Doc()
	if _, filled := spec.First(); filled || !ok {
		return mongoerr.New(6789100, "The $shardedDataDistribution stage specification must be an empty object")
	}
	if _, named := req.Cmd.First.Str(); named || string(req.Cmd.DB) != "admin" {
		return mongoerr.New(6789102, "$shardedDataDistribution must be run against the 'admin' database with {aggregate: 1}")
	}
	return nil
}

// dataDistribution answers a pipeline that begins with $shardedDataDistribution.
func dataDistribution(ctx context.Context, req *request, stage wire.Elem, rest []wire.Doc) error {
	if err := req.distributionStage(stage); err != nil {
		return err
	}
	if err := req.stageOptions(shardedDataDistribution); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	list, err := req.h.router.DataDistribution(ctx)
	if err != nil {
		return err
	}
	docs := make([]bson.Raw, len(list))
	for i := range list {
		shards := bson.A{}
		for _, s := range list[i].Shards {
			shards = append(shards, bson.D{
				{Key: "shardName", Value: s.Shard},
				{Key: "numOrphanedDocs", Value: s.Orphaned},
				{Key: "numOwnedDocuments", Value: s.Owned},
				{Key: "orphanedSizeBytes", Value: s.OrphanedBytes},
				{Key: "ownedSizeBytes", Value: s.OwnedBytes},
			})
		}
		if docs[i], err = bson.Marshal(bson.D{{Key: "ns", Value: list[i].NS}, {Key: "shards", Value: shards}}); err != nil {
			return err
		}
	}
	return req.h.router.Virtual(ctx, req.Op, "admin.$cmd.aggregate", docs, rest, nil)
}
