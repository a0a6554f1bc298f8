package router

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"

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
	return r.indexesOn(ctx, e, e.Table.Shards()[0])
}

// indexesOn lists a collection's indexes as a shard has them.
func (r *Router) indexesOn(ctx context.Context, e *Entry, shard string) ([]indexInfo, error) {
	db, coll := catalog.SplitNS(e.Coll.NS)
	var list []indexInfo
	err := r.drain(ctx, shard, db, bson.D{{Key: "listIndexes", Value: coll}}, func(doc bson.Raw) error {
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
	Shard string
	Host  string
	Body  wire.Doc
	Err   error
}

// SameIndexKey compares index keys as a mongod does: 1, 1.0 and NumberLong(1) are the same
// direction.
func SameIndexKey(a, b bson.Raw) bool {
	x, err := a.Elements()
	if err != nil {
		return false
	}
	y, err := b.Elements()
	if err != nil || len(x) != len(y) {
		return false
	}
	for i := range x {
		v, w := x[i].Value(), y[i].Value()
		n, isNum := v.AsFloat64OK()
		m, both := w.AsFloat64OK()
		if x[i].Key() != y[i].Key() || isNum != both || isNum && n != m || !isNum && !v.Equal(w) {
			return false
		}
	}
	return true
}

// CreateIndexes runs createIndexes on all shards that own the collection, making it
// if there is none.
func (r *Router) CreateIndexes(ctx context.Context, ns string, want *UUID, cmd bson.D, indexes []bson.Raw) ([]ShardReplies, error) {
	var out []ShardReplies
	err := r.withLock(ctx, ns, "createIndexes", func(l catalog.Lock) error {
		if err := r.wanted(ns, want); err != nil {
			return err
		}
		if r.snap.Load().Entries[ns] == nil {
			if _, err := r.createLocked(ctx, l, ns, nil); err != nil {
				return err
			}
		}
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
// key stays: 370, but "*" means all others.
func (r *Router) DropIndexes(ctx context.Context, ns string, want *UUID, cmd bson.D, drops func(name string, key bson.Raw) bool) ([]ShardReplies, error) {
	var out []ShardReplies
	err := r.withLock(ctx, ns, "dropIndexes", func(catalog.Lock) error {
		if err := r.wanted(ns, want); err != nil {
			return err
		}
		e, err := r.existing(ns)
		if err != nil {
			return err
		}
		if e.Sharded() {
			indexes, err := r.indexesOf(ctx, e)
			if err != nil {
				return err
			}
			if at := allIndexes(cmd); at >= 0 {
				cmd[at].Value = droppable(e.Table.Pattern(), indexes)
			} else if err := keepsKeyIndex(e.Table.Pattern(), indexes, drops); err != nil {
				return err
			}
		}
		out = r.onOwners(ctx, e, cmd)
		return nil
	})
	return out, err
}

// allIndexes returns where a dropIndexes command says index: "*", -1 if it does not.
func allIndexes(cmd bson.D) int {
	for i := range cmd {
		if v, ok := cmd[i].Value.(bson.RawValue); ok && cmd[i].Key == "index" {
			if s, _ := v.StringValueOK(); s == "*" {
				return i
			}
		}
	}
	return -1
}

// droppable lists the indexes that "*" stands for: all but _id's and the last one that
// supports the shard key.
func droppable(p *shardkey.Pattern, indexes []indexInfo) bson.A {
	keep := ""
	for i := range indexes {
		if x := &indexes[i]; indexSupports(p, x.Key) && x.plain() && (keep == "" || x.isID()) {
			keep = x.Name
		}
	}
	names := bson.A{}
	for i := range indexes {
		if x := &indexes[i]; !x.isID() && x.Name != keep {
			names = append(names, x.Name)
		}
	}
	return names
}

func keepsKeyIndex(p *shardkey.Pattern, indexes []indexInfo, drops func(string, bson.Raw) bool) error {
	lost := false
	for i := range indexes {
		x := &indexes[i]
		if !indexSupports(p, x.Key) || !x.plain() {
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

// CollMod runs collMod on all owners and keeps the catalog's copy of the options true.
// hides says whether it hides an index: that of the shard key stays visible (72).
func (r *Router) CollMod(ctx context.Context, ns string, want *UUID, cmd bson.D, hides func(name string, key bson.Raw) bool) ([]ShardReplies, error) {
	var out []ShardReplies
	err := r.withLock(ctx, ns, "collMod", func(l catalog.Lock) error {
		if err := r.wanted(ns, want); err != nil {
			return err
		}
		e, err := r.existing(ns)
		if err != nil {
			return err
		}
		if e.Sharded() {
			indexes, err := r.indexesOf(ctx, e)
			if err != nil {
				return err
			}
			if keepsKeyIndex(e.Table.Pattern(), indexes, hides) != nil {
				return mongoerr.New(mongoerr.InvalidOptions, "can't hide the only index that supports the shard key")
			}
		}
		if err := r.apply(ctx, catalog.Change{Locks: []catalog.Lock{l}, Rows: rowsIn([]*Entry{e}, catalog.StateModifying)}); err != nil {
			return err
		}
		r.failpoint(ctx, "collmod-marked")
		out = r.onOwners(ctx, e, cmd)
		r.failpoint(ctx, "collmod-done")
		return r.readOptions(context.WithoutCancel(ctx), l, e) // what has begun is finished
	})
	return out, err
}

// recoverOptions ends a collMod that its router has left: whether shards did it is seen when
// what it has sent has come to its end.
func (r *Router) recoverOptions(ctx context.Context, l catalog.Lock, e *Entry) error {
	v, err := r.applyVersion(ctx, catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{*e.Coll}})
	if err == nil {
		err = r.await(ctx, v, e.Coll.NS, r.opts.BarrierTimeout, oldWrites)
	}
	if err != nil {
		return err
	}
	return r.readOptions(ctx, l, e)
}

// readOptions takes a collection's options from its first shard into the catalog, and opens
// the row.
func (r *Router) readOptions(ctx context.Context, l catalog.Lock, e *Entry) error {
	db, coll := catalog.SplitNS(e.Coll.NS)
	list, err := r.listOn(ctx, e.Table.Shards()[0], db, bson.D{{Key: "name", Value: coll}})
	if err != nil {
		return err
	}
	row := *e.Coll
	row.State = catalog.StateOpen
	if len(list) == 0 || bytes.Equal(list[0].Options, e.Coll.Options) {
		return r.apply(ctx, catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{row}}) // nobody need know
	}
	row.Options = list[0].Options
	return r.announce(ctx, catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{row}})
}

func (r *Router) existing(ns string) (*Entry, error) {
	e := r.snap.Load().Entries[ns]
	switch {
	case e == nil && r.snap.Load().named([]byte(ns)) != nil:
		return nil, ofBuckets(ns)
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
	return r.onShards(ctx, e.Table.Shards(), db, cmd)
}

// OnAllShards runs a command on every shard's primary.
func (r *Router) OnAllShards(ctx context.Context, db string, cmd bson.D) []ShardReplies {
	return r.onShards(ctx, r.snap.Load().shardIDs(), db, cmd)
}

func (r *Router) onShards(ctx context.Context, shards []string, db string, cmd bson.D) []ShardReplies {
	out := make([]ShardReplies, len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		out[i].Shard, out[i].Host = shard, r.snap.Load().Shards[shard].Host
		wg.Go(func() {
			defer r.survive(&out[i].Err)
			out[i].Body, out[i].Err = r.ask(ctx, shard, db, cmd)
		})
	}
	wg.Wait()
	return out
}
