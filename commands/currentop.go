package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// currentOp is the stage that shows what runs.
const currentOp = "$currentOp"

// currentOps answers a pipeline that begins with $currentOp: what runs on all shards, and
// reshardings. Options are the shards' to check; what runs at the router alone (localOps) it
// does not say yet.
func currentOps(ctx context.Context, req *request, first wire.Elem, rest []wire.Doc) error {
	if string(req.Cmd.DB) != "admin" {
		return mongoerr.New(mongoerr.InvalidNamespace, "$currentOp must be run against the 'admin' database with {aggregate: 1}")
	}
	spec, ok := first.Doc()
	if !ok {
		return mongoerr.Newf(mongoerr.TypeMismatch, "$currentOp options must be specified in an object, but found: %s", router.TypeName(first.Type))
	}
	options := bson.D{}
	it := spec.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if string(e.Name) != "localOps" {
			options = append(options, bson.E{Key: string(e.Name), Value: e.RawValue()})
			continue
		}
		local, isBool := e.Bool()
		switch {
		case !isBool || e.Type != bson.TypeBoolean:
			return mongoerr.Newf(mongoerr.TypeMismatch, "The 'localOps' parameter of the $currentOp stage must be a boolean value, but found: %s", router.TypeName(e.Type))
		case local:
			return mongoerr.New(mongoerr.NotImplemented, "shardgate does not do localOps of $currentOp yet")
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	if err := req.stageOptions(currentOp); err != nil {
		return err
	}
	raw, err := bson.Marshal(options)
	if err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	docs, err := req.h.router.CurrentOps(ctx, raw)
	if err != nil {
		return err
	}
	return req.h.router.Virtual(ctx, req.Op, "admin.$cmd.aggregate", docs, rest, nil)
}
