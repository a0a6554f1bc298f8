package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// validate has all owning shards check the collection: it is valid where all say so
// (MONGOS.md §1.5).
func validate(ctx context.Context, req *request) error {
	if string(req.Cmd.DB) == configDB {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not validate the config database: its documents are made from the catalog")
	}
	replies, err := req.h.router.Validate(ctx, req.Op)
	if err != nil {
		return err
	}
	at, raw := bsoncore.AppendDocumentStart(nil)
	valid := true
	for i := range replies {
		valid = valid && flagOf(replies[i].Body, "valid")
		raw = bsoncore.AppendDocumentElement(raw, replies[i].Shard, stripped(replies[i].Body))
	}
	raw, err = bsoncore.AppendDocumentEnd(raw, at)
	if err != nil {
		return err
	}
	req.Reply.Doc("raw", raw)
	req.Reply.Bool("valid", valid)
	req.Reply.OK()
	return nil
}

// fsync has all shards write what they hold to their disks. A mongos of this version takes
// no lock (MONGOS.md §1.2).
func fsync(ctx context.Context, req *request) error {
	if flagOf(req.Cmd.Body, "lock") {
		return mongoerr.New(0, "can't do lock through mongos")
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	replies := req.h.router.OnAllShards(ctx, "admin", append(bson.D{{Key: "fsync", Value: int32(1)}}, req.options("lock")...))
	at, all := bsoncore.AppendDocumentStart(nil)
	for i := range replies {
		if replies[i].Err != nil {
			return replies[i].Err
		}
		all = bsoncore.AppendDocumentElement(all, replies[i].Shard, stripped(replies[i].Body))
	}
	all, err := bsoncore.AppendDocumentEnd(all, at)
	if err != nil {
		return err
	}
	req.Reply.Int32("numFiles", 1)
	req.Reply.Doc("all", all)
	req.Reply.OK()
	return nil
}
