package router

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ShardSpec is what shardCollection asks for, options already checked for themselves.
type ShardSpec struct {
	NS            string
	Key           *shardkey.Pattern
	Unique        bool
	NumChunks     int   // 0: the default
	HasCollation  bool  // {locale: "simple"} was given
	UUID          *UUID // collectionUUID, nil: any
	ImplicitIndex bool  // make the supporting index where it is missing
	Enforce       bool  // check that unique indexes agree with the key
}

// The limits of MONGOS.md §2.3.
const (
	maxChunksPerShard = 8192
	maxInitialChunks  = 1_000_000
)

// ShardCollection shards a collection, making it if there is none, and returns its
// UUID. One that is sharded in the same way already is left as it is.
func (r *Router) ShardCollection(ctx context.Context, spec ShardSpec) (id UUID, err error) {
	err = r.withLock(ctx, spec.NS, "shardCollection", func(l catalog.Lock) error {
		s := r.snap.Load()
		if n := spec.NumChunks; n > maxInitialChunks || n > maxChunksPerShard*len(s.Shards) {
			return mongoerr.Newf(mongoerr.InvalidOptions, "numInitialChunks cannot be more than either: %d, 8192 * number of shards; or %d", maxChunksPerShard*len(s.Shards), maxInitialChunks)
		}
		e := s.Entries[spec.NS]
		if e != nil {
			if done, err := alreadySharded(e, &spec); done || err != nil {
				id = UUID(e.Coll.UUID)
				return err
			}
		} else if !spec.ImplicitIndex && !isIDKey(spec.Key) {
			return noIndex()
		} else if e, err = r.createLocked(ctx, l, spec.NS, nil); err != nil {
			return err
		}
		if spec.UUID != nil && *spec.UUID != UUID(e.Coll.UUID) {
			return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified")
		}
		id = UUID(e.Coll.UUID)
		return r.shardLocked(ctx, l, e, &spec)
	})
	return id, err
}

// alreadySharded reports whether the collection is sharded as asked; sharded in
// another way is 23 AlreadyInitialized.
func alreadySharded(e *Entry, spec *ShardSpec) (bool, error) {
	switch {
	case e.Coll.Kind == catalog.KindView:
		return false, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", e.Coll.NS)
	case !e.Sharded():
		return false, nil
	case sameKey(e.Table.Pattern(), spec.Key) && e.Coll.Unique == spec.Unique:
		return true, nil
	}
	return false, mongoerr.Newf(mongoerr.AlreadyInitialized,
		"sharding already enabled for collection %s with options { key: %s, unique: %t }",
		e.Coll.NS, e.Table.Pattern(), e.Coll.Unique)
}

// sameKey compares shard keys: {a: 1} and {a: 1.0} are the same.
func sameKey(p, q *shardkey.Pattern) bool {
	if p.Len() != q.Len() {
		return false
	}
	for i := range p.Len() {
		if p.Field(i).Name != q.Field(i).Name || p.Field(i).Hashed != q.Field(i).Hashed {
			return false
		}
	}
	return true
}

// isIDKey reports whether the key is {_id: 1}, whose index every collection has.
func isIDKey(p *shardkey.Pattern) bool {
	return p.Len() == 1 && p.Field(0).Name == "_id" && !p.Field(0).Hashed
}

func noIndex() error {
	return mongoerr.New(6373200, "Must have an index compatible with the proposed shard key")
}

// shardLocked gives an unsharded collection its key. Everything that can refuse is
// looked at before the fence and, where writes could change it, again behind it.
func (r *Router) shardLocked(ctx context.Context, l catalog.Lock, e *Entry, spec *ShardSpec) error {
	if e.isSeries() {
		return notYet("sharding a time series collection")
	}
	if len(e.Coll.Collation) > 0 && !spec.HasCollation {
		return mongoerr.New(mongoerr.BadValue, "If no collation was specified, the collection collation must be {locale: 'simple'}, but found: "+shardkey.Format(e.Coll.Collation))
	}
	if capped, _ := e.Coll.Options.Lookup("capped").BooleanOK(); capped {
		return mongoerr.New(mongoerr.InvalidOptions, "can't shard a capped collection")
	}
	if err := r.clearLeft(ctx, l, e.Coll.NS); err != nil {
		return err
	}
	if err := r.prepareIndex(ctx, e, spec); err != nil {
		return err
	}
	if err := r.fenceEntries(ctx, l, []*Entry{e}); err != nil {
		return err
	}
	open := catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{*e.Coll}}
	c, err := r.newLayout(ctx, e, spec)
	if err != nil {
		r.undo(ctx, open)
		return err
	}
	c.Locks = open.Locks
	return r.apply(context.WithoutCancel(ctx), *c) // what has begun is finished
}

// transactionPatience is how long DDL waits behind a fence for open transactions: while
// it does, all others wait for it.
const transactionPatience = 5 * time.Second

// awaitTransactions waits until no open transaction on a shard has touched the collection:
// their statements have left the gate, but what they wrote comes with their commit. A
// collMod of nothing takes the lock that all of them share.
func (r *Router) awaitTransactions(ctx context.Context, e *Entry, shard string) error {
	limit := transactionPatience
	own := false // the client's limit comes first
	if d, ok := ctx.Deadline(); ok && time.Until(d) < limit {
		limit, own = time.Until(d), true
	}
	db, coll := catalog.SplitNS(e.Coll.NS)
	_, err := r.run(ctx, shard, db, bson.D{
		{Key: "collMod", Value: coll},
		{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: e.Coll.UUID[:]}},
		{Key: "maxTimeMS", Value: max(limit.Milliseconds(), 1)},
	})
	if mongoerr.CodeOf(err) == mongoerr.MaxTimeMSExpired && !own {
		return mongoerr.Newf(mongoerr.LockBusy, "an open transaction on %s has not ended in time", e.Coll.NS)
	}
	return err
}

// newLayout decides the first chunks and makes the collection on their shards.
func (r *Router) newLayout(ctx context.Context, e *Entry, spec *ShardSpec) (*catalog.Change, error) {
	home := e.Home()
	if err := r.awaitTransactions(ctx, e, home); err != nil {
		return nil, err
	}
	empty, err := r.isEmpty(ctx, home, e.Coll.NS)
	if err != nil {
		return nil, err
	}
	if !empty {
		if err := r.refuseArrays(ctx, e, home, spec.Key); err != nil {
			return nil, err
		}
	}
	s := r.snap.Load()
	at := catalog.Timestamp(r.Clock.Now())
	hashed := spec.Key.HashedField() == 0
	if spec.NumChunks > 0 && (!empty || spec.Key.HashedField() < 0) {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks is only supported when the collection is empty and has a hashed field in the shard key pattern")
	}
	n, shards := 1, []string{home}
	if hashed && empty {
		shards = s.shardIDs()
		if n = spec.NumChunks; n == 0 {
			n = 2 * len(shards)
		}
	}
	chunks := shardkey.InitialChunks(spec.Key, n, shards, home, at)
	row := *e.Coll
	row.Kind, row.State, row.Key, row.Unique = catalog.KindSharded, catalog.StateOpen, spec.Key.Raw(), spec.Unique
	row.LastMod, row.Epoch, row.Migrations = time.Now(), bson.NewObjectID(), true
	if len(s.switched[e.Coll.NS]) == 0 {
		// Else it stays: claims of before have it, and what was seen when is told by it (movedAt).
		row.Timestamp = at
	}
	like, err := r.find(ctx, home, e.Coll.NS)
	if err != nil {
		return nil, err
	}
	if like == nil || like.uuid() != e.Coll.UUID {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found on its shard: %s", e.Coll.NS)
	}
	if err := r.copyShape(ctx, e.Coll.NS, like, home, owners(chunks)); err != nil {
		return nil, err
	}
	return &catalog.Change{
		Put: []catalog.CollectionChunks{{Collection: row, Chunks: chunks}},
		Log: []catalog.LogEntry{r.logEntry("shardCollection.end", e.Coll.NS, home, bson.D{{Key: "numChunks", Value: int32(len(chunks))}})},
	}, nil
}

// owners lists the shards of chunks.
func owners(chunks []catalog.Chunk) []string {
	var list []string
	for i := range chunks {
		if !slices.Contains(list, chunks[i].Shard) {
			list = append(list, chunks[i].Shard)
		}
	}
	return list
}

// prepareIndex checks that an index supports the key, or makes it where it may
// (MONGOS.md §1.8, shardCollection; §2.7).
func (r *Router) prepareIndex(ctx context.Context, e *Entry, spec *ShardSpec) error {
	indexes, err := r.indexesOf(ctx, e)
	if err != nil {
		return err
	}
	supported, unique, usable := false, false, false
	for i := range indexes {
		x := &indexes[i]
		if spec.Enforce && x.Unique && !x.isID() && !keyPrefixes(spec.Key, x.Key) {
			return mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key %s. Uniqueness can't be maintained unless shard key is a prefix", e.Coll.NS, shardkey.Format(x.Key), spec.Key)
		}
		if !indexSupports(spec.Key, x.Key) {
			continue
		}
		usable = true
		supported = supported || x.plain()
		unique = unique || ((x.Unique || x.isID()) && sameFields(spec.Key, x.Key))
	}
	empty, err := r.isEmpty(ctx, e.Home(), e.Coll.NS)
	if err != nil {
		return err
	}
	switch {
	case supported && (!spec.Unique || unique || !spec.Enforce):
		return nil
	case !empty && spec.Unique && supported:
		return mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection %s with unique key: no unique index on %s", e.Coll.NS, spec.Key)
	case !empty && usable && !supported:
		return mongoerr.New(mongoerr.InvalidOptions, "The existing index on the shard key is sparse, partial or has a collation and cannot support it")
	case !empty:
		return mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before sharding the collection")
	case !spec.ImplicitIndex:
		return noIndex()
	}
	return r.makeKeyIndex(ctx, e, spec)
}

func (r *Router) makeKeyIndex(ctx context.Context, e *Entry, spec *ShardSpec) error {
	db, coll := catalog.SplitNS(e.Coll.NS)
	index := bson.D{{Key: "key", Value: spec.Key.Raw()}, {Key: "name", Value: indexName(spec.Key.Raw())}}
	if spec.Unique {
		index = append(index, bson.E{Key: "unique", Value: true})
	}
	if len(e.Coll.Collation) > 0 {
		index = append(index, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}})
	}
	_, err := r.run(ctx, e.Home(), db, bson.D{
		{Key: "createIndexes", Value: coll},
		{Key: "indexes", Value: bson.A{index}},
		{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: e.Coll.UUID[:]}},
		{Key: "writeConcern", Value: majorityWrites},
	})
	return err
}

func (r *Router) logEntry(what, ns, shard string, details bson.D) catalog.LogEntry {
	raw, err := bson.Marshal(details)
	if err != nil {
		raw = emptyDoc
	}
	now := time.Now()
	return catalog.LogEntry{
		ID:     r.opts.Name + "-" + now.UTC().Format("2006-01-02T15:04:05.000-07:00") + "-" + bson.NewObjectID().Hex(),
		Server: r.opts.Name, Shard: shard, Time: now, What: what, NS: ns, Details: raw,
	}
}
