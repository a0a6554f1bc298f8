package router

import (
	"context"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// indexInfo is what listIndexes says of an index, as far as the shard key is
// concerned.
type indexInfo struct {
	Name      string   `bson:"name"`
	Key       bson.Raw `bson:"key"`
	Unique    bool     `bson:"unique"`
	Sparse    bool     `bson:"sparse"`
	Hidden    bool     `bson:"hidden"`
	Partial   bson.Raw `bson:"partialFilterExpression"`
	Collation bson.Raw `bson:"collation"`
}

func (x *indexInfo) isID() bool { return x.Name == "_id_" }

// plain reports whether the index holds every document in simple order.
func (x *indexInfo) plain() bool {
	return !x.Sparse && x.Partial == nil && (x.Collation == nil || x.isID())
}

// indexesOf lists a collection's indexes as its first shard has them.
func (r *Router) indexesOf(ctx context.Context, e *Entry) ([]indexInfo, error) {
	db, coll := catalog.SplitNS(e.Coll.NS)
	var list []indexInfo
	err := r.drain(ctx, e.Table.Shards()[0], db, bson.D{{Key: "listIndexes", Value: coll}}, func(doc bson.Raw) error {
		var x indexInfo
		if err := bson.Unmarshal(doc, &x); err != nil {
			return err
		}
		list = append(list, x)
		return nil
	})
	return list, err
}

// indexSupports reports whether an index begins with the shard key: the same fields
// in order, hashed where the key is hashed.
func indexSupports(p *shardkey.Pattern, index bson.Raw) bool {
	elems, err := index.Elements()
	if err != nil || len(elems) < p.Len() {
		return false
	}
	for i := range p.Len() {
		f := p.Field(i)
		s, hashed := elems[i].Value().StringValueOK()
		hashed = hashed && s == "hashed"
		n, number := elems[i].Value().AsInt64OK()
		if elems[i].Key() != f.Name || hashed != f.Hashed || (!hashed && (!number || n != 1)) {
			return false
		}
	}
	return true
}

// keyPrefixes reports whether the shard key's fields are the first of a unique index
// (MONGOS.md §2.7: only names and order count).
func keyPrefixes(p *shardkey.Pattern, index bson.Raw) bool {
	elems, err := index.Elements()
	if err != nil || len(elems) < p.Len() {
		return false
	}
	for i := range p.Len() {
		if elems[i].Key() != p.Field(i).Name {
			return false
		}
	}
	return true
}

func sameFields(p *shardkey.Pattern, index bson.Raw) bool {
	elems, err := index.Elements()
	return err == nil && len(elems) == p.Len() && keyPrefixes(p, index)
}

func indexName(key bson.Raw) string {
	elems, err := key.Elements()
	if err != nil {
		return "key"
	}
	var parts []string
	for _, e := range elems {
		v := "1"
		if s, ok := e.Value().StringValueOK(); ok {
			v = s
		} else if n, ok := e.Value().AsInt64OK(); ok {
			v = strconv.FormatInt(n, 10)
		}
		parts = append(parts, e.Key()+"_"+v)
	}
	return strings.Join(parts, "_")
}

// ShardReplies are the replies of several shards to one DDL command, by connection
// string, as the raw field of a mongos shows them.
type ShardReplies struct {
	Host string
	Body wire.Doc
	Err  error
}

// CreateIndexes runs createIndexes on all shards that own the collection, making it
// if there is none.
func (r *Router) CreateIndexes(ctx context.Context, ns string, cmd bson.D, indexes []bson.Raw) ([]ShardReplies, error) {
	if r.snap.Load().Entries[ns] == nil {
		if err := r.CreateImplicitly(ctx, ns); err != nil {
			return nil, err
		}
	}
	var out []ShardReplies
	err := r.withLock(ctx, ns, "createIndexes", func(catalog.Lock) error {
		e, err := r.existing(ns)
		if err != nil {
			return err
		}
		if err := uniqueAgrees(e, indexes); err != nil {
			return err
		}
		out = r.onOwners(ctx, e, cmd)
		return nil
	})
	return out, err
}

// uniqueAgrees refuses unique indexes that a sharded collection cannot keep.
func uniqueAgrees(e *Entry, indexes []bson.Raw) error {
	if !e.Sharded() {
		return nil
	}
	for _, x := range indexes {
		u, _ := x.Lookup("unique").BooleanOK()
		if n, ok := x.Lookup("unique").AsInt64OK(); ok {
			u = n != 0
		}
		key, ok := x.Lookup("key").DocumentOK()
		if !u || !ok {
			continue
		}
		first, err := key.IndexErr(0)
		if err == nil && first.Key() == "_id" || keyPrefixes(e.Table.Pattern(), key) {
			continue
		}
		return mongoerr.Newf(mongoerr.CannotCreateIndex, "cannot create unique index over %s with shard key pattern %s", shardkey.Format(key), e.Table.Pattern())
	}
	return nil
}

// DropIndexes runs dropIndexes on all owners. The last index that supports the shard
// key stays: 370.
func (r *Router) DropIndexes(ctx context.Context, ns string, cmd bson.D, drops func(name string, key bson.Raw) bool) ([]ShardReplies, error) {
	var out []ShardReplies
	err := r.withLock(ctx, ns, "dropIndexes", func(catalog.Lock) error {
		e, err := r.existing(ns)
		if err != nil {
			return err
		}
		if e.Sharded() {
			if err := r.keepsKeyIndex(ctx, e, drops); err != nil {
				return err
			}
		}
		out = r.onOwners(ctx, e, cmd)
		return nil
	})
	return out, err
}

func (r *Router) keepsKeyIndex(ctx context.Context, e *Entry, drops func(string, bson.Raw) bool) error {
	indexes, err := r.indexesOf(ctx, e)
	if err != nil {
		return err
	}
	lost := false
	for i := range indexes {
		x := &indexes[i]
		if !indexSupports(e.Table.Pattern(), x.Key) || !x.plain() {
			continue
		}
		if x.isID() || !drops(x.Name, x.Key) {
			return nil
		}
		lost = true
	}
	if !lost {
		return nil
	}
	return mongoerr.New(mongoerr.CannotDropShardKeyIndex, "Cannot drop the only compatible index for this collection's shard key")
}

func (r *Router) existing(ns string) (*Entry, error) {
	e := r.snap.Load().Entries[ns]
	switch {
	case e == nil:
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found %s", ns)
	case e.Coll.Kind == catalog.KindView:
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
	}
	return e, nil
}

// onOwners runs a command, with the collection's UUID, on every owning shard.
func (r *Router) onOwners(ctx context.Context, e *Entry, cmd bson.D) []ShardReplies {
	db, _ := catalog.SplitNS(e.Coll.NS)
	cmd = append(cmd, bson.E{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: e.Coll.UUID[:]}})
	shards := e.Table.Shards()
	out := make([]ShardReplies, len(shards))
	done := make(chan int)
	for i, shard := range shards {
		go func() {
			out[i].Host = r.snap.Load().Shards[shard].Host
			out[i].Body, out[i].Err = r.run(ctx, shard, db, cmd)
			done <- i
		}()
	}
	for range shards {
		<-done
	}
	return out
}
