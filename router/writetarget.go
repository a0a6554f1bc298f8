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

// writeFilter reads q and collation of an update or delete statement.
func writeFilter(e *Entry, doc wire.Doc) (q bson.Raw, collated bool) {
	f, _ := doc.Lookup("q")
	d, _ := f.Doc()
	collated = len(e.Coll.Collation) > 0
	if c, ok := doc.Lookup("collation"); ok && !c.IsNull() {
		collated = collationIsNotSimple(c)
	}
	return bson.Raw(d), collated
}

func isSet(doc wire.Doc, name string) bool {
	e, ok := doc.Lookup(name)
	v, _ := e.Bool()
	return ok && v
}

// targetUpdate finds the shards of an update statement.
func (e *Entry) targetUpdate(doc wire.Doc) (aim, error) {
	if !e.Sharded() {
		return aim{shards: e.Table.Shards()}, nil
	}
	q, collated := writeFilter(e, doc)
	mods, _ := doc.Lookup("u")
	u := target.Update{Filter: q, Collated: collated, Mods: mods.RawValue(), Upsert: isSet(doc, "upsert")}
	return e.targetMods(u, isSet(doc, "multi"))
}

// targetMods finds the shards of an update. It refuses one that no shard would run.
func (e *Entry) targetMods(u target.Update, multi bool) (aim, error) {
	if why := target.Malformed(u.Mods); why != "" && !u.Replaces() {
		return aim{}, mongoerr.New(mongoerr.FailedToParse, why)
	}
	a, err := e.targetWrite(u.Filter, u.Collated, multi, u.Upsert)
	if err != nil {
		return aim{}, err
	}
	if a.way == waySingle {
		u.Upsert = false // its document goes where its key says
	}
	switch {
	case !target.MayChangeKey(e.Table.Pattern(), u):
		return a, nil
	case multi:
		return aim{}, mongoerr.New(mongoerr.InvalidOptions, "Multi-update operations are not allowed when updating the shard key field.")
	}
	a.way = wayRekey
	return a, nil
}

// targetDelete finds the shards of a delete statement.
func (e *Entry) targetDelete(doc wire.Doc) (aim, error) {
	if !e.Sharded() {
		return aim{shards: e.Table.Shards()}, nil
	}
	q, collated := writeFilter(e, doc)
	limit, _ := doc.Lookup("limit")
	n, _ := limit.Int64()
	return e.targetWrite(q, collated, n == 0, false)
}

// way is how a statement is carried out.
type way int

const (
	wayDirect way = iota // by the shards that its filter needs
	waySingle            // on one document that must first be looked for, or inserted where its key says
	wayRekey             // as single, in a transaction: its shard key may change
)

// aim is where a statement goes.
type aim struct {
	shards []string
	way    way
	why    target.Why // these shards; "" for an unsharded collection
	exact  bool       // all that it can match lies in one chunk, which its shard owns
	key    []byte     // the filter's, if it holds a whole one
}

// keyRoom is what most keys fit in, in bytes.
const keyRoom = 32

// targetWrite finds the shards of an update or delete.
func (e *Entry) targetWrite(q bson.Raw, collated, multi, upsert bool) (aim, error) {
	if key, ok := target.OnlyKey(e.Table.Pattern(), make([]byte, 0, keyRoom), q, collated); ok {
		a := aim{shards: e.owner(key), why: target.WhyKey, exact: true}
		if upsert || !multi {
			a.key = key
		}
		return a, nil
	}
	t, err := target.Query(e.Table.Pattern(), e.Table, q, collated)
	if err != nil {
		return aim{}, mongoerr.Wrap(mongoerr.BadValue, err, "could not target the write")
	}
	switch {
	case upsert && t.Key == nil && multi:
		return aim{}, mongoerr.New(mongoerr.ShardKeyNotFound, "Failed to target upsert by query :: could not extract exact shard key")
	case t.Key != nil && (upsert || !multi):
		return aim{shards: e.owner(t.Key), why: t.Why, exact: t.Exact, key: t.Key}, nil
	}
	a := aim{shards: shardList(e, &t), why: t.Why, exact: t.Exact}
	if !multi && (upsert || t.Shards.Len() > 1) {
		a.way = waySingle
	}
	return a, nil
}
