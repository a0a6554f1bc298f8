package router

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ownerOf returns the shard of a document to be inserted.
func (e *Entry) ownerOf(doc []byte) ([]string, error) {
	if !e.Sharded() {
		return e.Table.Shards(), nil
	}
	var buf [128]byte
	key, err := e.Table.Pattern().AppendKey(buf[:0], doc)
	if errors.Is(err, shardkey.ErrArray) {
		return nil, mongoerr.New(mongoerr.ShardKeyNotFound, shardkey.ErrArray.Error())
	}
	if err != nil {
		return nil, mongoerr.Wrap(mongoerr.InvalidBSON, err, "invalid document")
	}
	return e.owner(key), nil
}

func (e *Entry) owner(key []byte) []string {
	i := e.Table.ShardOf(e.Table.Find(key))
	return e.Table.Shards()[i : i+1]
}

// writeFilter reads q, multi and collation of an update or delete statement.
func writeFilter(e *Entry, doc wire.Doc) (q bson.Raw, collated bool, err error) {
	f, ok := doc.Lookup("q")
	if !ok {
		return nil, false, mongoerr.New(40414, "BSON field 'q' is missing but a required field")
	}
	d, ok := f.Doc()
	if !ok {
		return nil, false, mongoerr.New(mongoerr.TypeMismatch, "BSON field 'q' must be an object")
	}
	collated = len(e.Coll.Collation) > 0
	if c, ok := doc.Lookup("collation"); ok && !c.IsNull() {
		collated = collationIsNotSimple(c)
	}
	return bson.Raw(d), collated, nil
}

func isSet(doc wire.Doc, name string) bool {
	e, ok := doc.Lookup(name)
	v, _ := e.Bool()
	return ok && v
}

func (e *Entry) targetUpdate(_ *Op, doc wire.Doc) ([]string, error) {
	if !e.Sharded() {
		return e.Table.Shards(), nil
	}
	q, collated, err := writeFilter(e, doc)
	if err != nil {
		return nil, err
	}
	mods, ok := doc.Lookup("u")
	if !ok {
		return nil, mongoerr.New(40414, "BSON field 'update.updates.u' is missing but a required field")
	}
	u := target.Update{Filter: q, Collated: collated, Mods: mods.RawValue(), Upsert: isSet(doc, "upsert")}
	if err := e.keepsKey(u); err != nil {
		return nil, err
	}
	return e.targetWrite(q, collated, isSet(doc, "multi"), u.Upsert)
}

// keepsKey refuses an update that may change a shard key value, and one that no shard
// would run.
func (e *Entry) keepsKey(u target.Update) error {
	if why := target.Malformed(u.Mods); why != "" && !u.Replaces() {
		return mongoerr.New(mongoerr.FailedToParse, why)
	}
	if !target.MayChangeKey(e.Table.Pattern(), u) {
		return nil
	}
	return notYet("an update that may change a shard key value")
}

func (e *Entry) targetDelete(_ *Op, doc wire.Doc) ([]string, error) {
	if !e.Sharded() {
		return e.Table.Shards(), nil
	}
	q, collated, err := writeFilter(e, doc)
	if err != nil {
		return nil, err
	}
	limit, ok := doc.Lookup("limit")
	n, _ := limit.Int64()
	if !ok || n < 0 || n > 1 {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "The limit field in delete objects must be 0 or 1. Got %d", n)
	}
	return e.targetWrite(q, collated, n == 0, false)
}

// targetWrite finds the shards of an update or delete. One that changes a single
// document without pinning its key to one shard, and an upsert that does not pin it,
// are refused until they can be done exactly once.
func (e *Entry) targetWrite(q bson.Raw, collated, multi, upsert bool) ([]string, error) {
	t, err := target.Query(e.Table.Pattern(), e.Table, q, collated)
	if err != nil {
		return nil, mongoerr.Wrap(mongoerr.BadValue, err, "could not target the write")
	}
	switch {
	case upsert && t.Key == nil && multi:
		return nil, mongoerr.New(mongoerr.ShardKeyNotFound, "Failed to target upsert by query :: could not extract exact shard key")
	case upsert && t.Key == nil:
		return nil, notYet("an upsert whose filter does not hold the whole shard key")
	case t.Key != nil && (upsert || !multi):
		return e.owner(t.Key), nil
	case !multi && t.Shards.Len() > 1:
		return nil, notYet("a write of one document whose filter does not hold the shard key")
	}
	return shardList(e, &t), nil
}
