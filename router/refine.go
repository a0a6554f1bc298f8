package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// RefineShardKey adds fields to a collection's shard key. No document changes its owner: the
// bounds of chunks get MinKey in the new fields, so each chunk has the same documents as
// before. But what a write may change, and what may be inserted, is another matter, so all
// routers go over to the new key at one time, behind a fence.
func (r *Router) RefineShardKey(ctx context.Context, ns string, key *shardkey.Pattern, want *UUID, enforce bool) error {
	return r.withLock(ctx, ns, "refineCollectionShardKey", func(l catalog.Lock) error {
		e, err := r.existing(ns)
		if err != nil {
			return err
		}
		if _, err := r.sharded(ns); err != nil {
			return err
		}
		old := e.Table.Pattern()
		switch {
		case want != nil && UUID(e.Coll.UUID) != *want:
			return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified")
		case sameKey(old, key):
			return nil
		case !extends(key, old):
			return mongoerr.Newf(mongoerr.InvalidOptions, "refineCollectionShardKey shard key %s does not extend the current shard key %s", key, old)
		case len(e.unowned) > 0:
			// Ranges on their way are told by bounds of the old key.
			return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "chunks of %s were moved lately, and what their former shards have of them is not removed yet", ns)
		}
		if err := r.refinable(ctx, e, key, enforce); err != nil {
			return err
		}
		return r.refineLocked(ctx, l, e, key)
	})
}

// extends reports whether a key has the fields of another, and more behind them.
func extends(key, old *shardkey.Pattern) bool {
	if key.Len() <= old.Len() {
		return false
	}
	for i := range old.Len() {
		if f, g := key.Field(i), old.Field(i); f.Name != g.Name || f.Hashed != g.Hashed {
			return false
		}
	}
	return true
}

// refinable checks on every shard that an index supports the new key, and that unique
// indexes agree with it (MONGOS.md §1.8).
func (r *Router) refinable(ctx context.Context, e *Entry, key *shardkey.Pattern, enforce bool) error {
	for _, shard := range e.Table.Shards() {
		indexes, err := r.indexesOn(ctx, e, shard)
		if err != nil {
			return err
		}
		supported, unique := false, false
		for i := range indexes {
			x := &indexes[i]
			if enforce && x.Unique && !x.isID() && !keyPrefixes(key, x.Key) {
				return mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key %s. Uniqueness can't be maintained unless shard key is a prefix", e.Coll.NS, shardkey.Format(x.Key), key)
			}
			if !x.Hidden && x.plain() && indexSupports(key, x.Key) {
				supported = true
				unique = unique || x.Unique && sameFields(key, x.Key)
			}
		}
		if !supported || enforce && e.Coll.Unique && !unique {
			return mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before refining the shard key of the collection")
		}
	}
	return nil
}

// refineLocked fences the collection and gives it the new key. Behind the fence nothing is
// written any more that the old key would let in: arrays in the new fields.
func (r *Router) refineLocked(ctx context.Context, l catalog.Lock, e *Entry, key *shardkey.Pattern) error {
	for _, shard := range e.Table.Shards() { // before anybody is kept waiting
		if err := r.refuseArrays(ctx, e, shard, key); err != nil {
			return err
		}
	}
	if err := r.fenceEntries(ctx, l, []*Entry{e}); err != nil {
		return err
	}
	c, err := r.refined(ctx, e, key)
	if err != nil {
		r.undo(ctx, catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{*e.Coll}})
		return err
	}
	c.Locks = []catalog.Lock{l}
	return r.apply(context.WithoutCancel(ctx), *c)
}

// refined makes the change to the new key.
func (r *Router) refined(ctx context.Context, e *Entry, key *shardkey.Pattern) (*catalog.Change, error) {
	for _, shard := range e.Table.Shards() {
		if err := r.awaitTransactions(ctx, e, shard); err != nil {
			return nil, err
		}
		if err := r.refuseArrays(ctx, e, shard, key); err != nil {
			return nil, err
		}
	}
	row := *e.Coll
	// The timestamp stays: it is the same life of the collection, and moves of its chunks are
	// told by it (movedAt).
	row.Key, row.State, row.Epoch = key.Raw(), catalog.StateOpen, bson.NewObjectID()
	row.LastMod = time.Now()
	chunks := make([]catalog.Chunk, e.Table.Len())
	for i := range chunks {
		chunks[i] = *e.Table.Chunk(i)
		c := &chunks[i]
		var err error
		if c.Min, err = key.ExtendBound(c.Min); err != nil {
			return nil, err
		}
		if c.Max, err = key.ExtendBound(c.Max); err != nil {
			return nil, err
		}
	}
	chunks[len(chunks)-1].Max = key.MaxBound()
	if err := shardkey.FillBounds(key, chunks); err != nil {
		return nil, err
	}
	detail := func(what string) catalog.LogEntry {
		return r.logEntry("refineCollectionShardKey."+what, e.Coll.NS, "", bson.D{
			{Key: "oldKey", Value: e.Coll.Key},
			{Key: "newKey", Value: row.Key},
			{Key: "oldEpoch", Value: e.Coll.Epoch},
			{Key: "newEpoch", Value: row.Epoch},
		})
	}
	return &catalog.Change{
		Put: []catalog.CollectionChunks{{Collection: row, Chunks: chunks}},
		Log: []catalog.LogEntry{detail("start"), detail("end")},
	}, nil
}
