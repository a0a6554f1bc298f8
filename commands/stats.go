package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// dbStats adds up what all shards say of a database (MONGOS.md §1.5). Sizes are scaled
// here, after the sum.
func dbStats(ctx context.Context, req *request) error {
	if err := req.known("scale", "freeStorage"); err != nil {
		return err
	}
	scale := int64(1)
	if e, ok := req.Lookup("scale"); ok {
		n, isNum := e.Int64()
		if !isNum {
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'dbStats.scale' must be a number")
		}
		if scale = n; scale <= 0 {
			return mongoerr.New(mongoerr.BadValue, "Scale factor must be greater than zero")
		}
	}
	cmd := bson.D{{Key: "dbStats", Value: int32(1)}}
	cmd = append(cmd, req.options("scale")...)
	replies := req.h.router.OnAllShards(ctx, string(req.Cmd.DB), cmd)
	raw, err := req.rawDocument(replies)
	if err != nil {
		return mongoerr.Wrap(mongoerr.OperationFailed, err, "failed on a shard")
	}
	counts := []string{"collections", "views", "objects", "indexes"}
	sizes := []string{"dataSize", "storageSize", "freeStorageSize", "indexSize", "indexFreeStorageSize", "totalSize", "totalFreeStorageSize", "fsUsedSize", "fsTotalSize"}
	req.Reply.Doc("raw", raw)
	req.Reply.String("db", string(req.Cmd.DB))
	for _, name := range counts {
		n, _ := sum(replies, name)
		req.Reply.Int64(name, int64(n))
	}
	objects, _ := sum(replies, "objects")
	data, _ := sum(replies, "dataSize")
	average := 0.0
	if objects > 0 {
		average = data / objects
	}
	req.Reply.Double("avgObjSize", average)
	for _, name := range sizes {
		if n, ok := sum(replies, name); ok {
			req.Reply.Double(name, n/float64(scale))
		}
	}
	req.Reply.Int64("scaleFactor", scale)
	req.Reply.OK()
	return nil
}

// sum adds up a number of all replies; ok says whether any has it.
func sum(replies []router.ShardReplies, name string) (total float64, ok bool) {
	for i := range replies {
		e, found := replies[i].Body.Lookup(name)
		if !found {
			continue
		}
		n, isNum := e.RawValue().AsFloat64OK()
		total, ok = total+n, ok || isNum
	}
	return total, ok
}

// rawDocument is every shard's reply by connection string, or the first failure.
func (req *request) rawDocument(replies []router.ShardReplies) ([]byte, error) {
	at, raw := bsoncore.AppendDocumentStart(nil)
	for i := range replies {
		if replies[i].Err != nil {
			return nil, replies[i].Err
		}
		raw = bsoncore.AppendDocumentElement(raw, replies[i].Host, stripped(replies[i].Body))
	}
	return bsoncore.AppendDocumentEnd(raw, at)
}

// collMod changes a collection on all shards that own it.
func collMod(ctx context.Context, req *request) error {
	if err := req.writable(); err != nil {
		return err
	}
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	for _, name := range []string{"viewOn", "pipeline"} {
		if _, ok := req.Lookup(name); ok {
			if err := req.h.router.ModifyView(ctx, ns, req.options()); err != nil {
				return err
			}
			req.Reply.OK()
			return nil
		}
	}
	index := wire.Elem{}
	if e, ok := req.Lookup("index"); ok {
		index = e
	}
	cmd := bson.D{{Key: "collMod", Value: req.Cmd.First.RawValue()}}
	cmd = req.withWriteConcern(append(cmd, req.options()...))
	replies, err := req.h.router.CollMod(ctx, ns, req.collectionUUID(), cmd, hides(index))
	if err != nil {
		return err
	}
	return req.rawReplies(replies)
}

// hides returns which index a collMod would hide, as a test on name and key.
func hides(index wire.Elem) func(string, bson.Raw) bool {
	d, _ := index.Doc()
	if !flagOf(d, "hidden") {
		return func(string, bson.Raw) bool { return false }
	}
	name, _ := d.Lookup("name")
	key, _ := d.Lookup("keyPattern")
	return func(n string, k bson.Raw) bool {
		s, _ := name.Str()
		return s == n || len(key.Value) > 0 && router.SameIndexKey(bson.Raw(key.Value), k)
	}
}

func flagOf(d wire.Doc, name string) bool {
	e, ok := d.Lookup(name)
	v, _ := e.Bool()
	return ok && v
}
