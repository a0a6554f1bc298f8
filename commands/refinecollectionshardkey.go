package commands

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func refineCollectionShardKey(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known("key", "enforceUniquenessCheck"); err != nil {
		return err
	}
	key, ok := req.Lookup("key")
	if !ok {
		return mongoerr.New(40414, "BSON field 'refineCollectionShardKey.key' is missing but a required field")
	}
	d, ok := key.Doc()
	if !ok {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'refineCollectionShardKey.key' is the wrong type '%s', expected type 'object'", router.TypeName(key.Type))
	}
	pattern, err := shardkey.ParsePattern(append(bson.Raw(nil), d...))
	if err != nil {
		return mongoerr.New(mongoerr.BadValue, err.Error())
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if strings.HasPrefix(ns, configDB+".") {
		return mongoerr.Newf(mongoerr.NoShardingEnabled, "the shard keys of the %s database cannot be refined", configDB)
	}
	if err := req.h.router.RefineShardKey(ctx, ns, pattern, req.collectionUUID(), req.boolOption("enforceUniquenessCheck", true)); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}
