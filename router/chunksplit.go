package router

import (
	"bytes"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Splits and merges need neither fence nor barrier. They change where the borders of chunks
// are and not whose a key is: an operation that began by an older table has sent its parts
// to the same shards as it would by the new one, and finds the same documents there. Moves,
// which do change owners, keep out by the collection's lock.

// ChunkSpec says which chunk of a collection is meant: that of a document (Find), that with
// these two bounds, or, for a split, that around the key at which to cut (Middle). One is
// given.
type ChunkSpec struct {
	NS           string
	Find, Middle bson.Raw
	Bounds       []bson.Raw
}

// sharded returns the entry of a sharded collection: 118 if it is not one.
func (r *Router) sharded(ns string) (*Entry, error) {
	e := r.snap.Load().Entries[ns]
	if !e.Sharded() {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	return e, nil
}

// freshSharded is sharded by the newest state of the catalog.
func (r *Router) freshSharded(ctx context.Context, ns string) (*Entry, error) {
	if err := r.Refresh(ctx); err != nil {
		return nil, expired(catalogError(err))
	}
	return r.sharded(ns)
}

// changeSharded makes a change of a sharded collection under its lock. decide may find that
// there is nothing to do, and then returns nil.
func (r *Router) changeSharded(ctx context.Context, ns, why string, decide func(*Entry) (*catalog.Change, error)) error {
	return r.withLock(ctx, ns, why, func(l catalog.Lock) error {
		e, err := r.sharded(ns)
		if err != nil {
			return err
		}
		c, err := decide(e)
		if c == nil || err != nil {
			return err
		}
		c.Locks = []catalog.Lock{l}
		return r.apply(context.WithoutCancel(ctx), *c)
	})
}

// Split cuts a chunk in two: at the given key, or else at the median of its documents.
func (r *Router) Split(ctx context.Context, spec ChunkSpec) error {
	e, err := r.freshSharded(ctx, spec.NS)
	if err != nil {
		return err
	}
	at := spec.Middle
	var of *catalog.Chunk
	if at == nil {
		if of, err = e.chunkOf(&spec); err != nil {
			return err
		}
		// The shard may have to read all of the chunk's index: nobody is kept waiting for that.
		if at, err = r.median(ctx, e, of); err != nil {
			return expired(err)
		}
	}
	return r.changeSharded(ctx, spec.NS, "split", func(e *Entry) (*catalog.Change, error) {
		return r.cut(e, of, at)
	})
}

// cut makes the change that splits a chunk; of is the one that is meant, nil for whichever
// the key lies in.
func (r *Router) cut(e *Entry, of *catalog.Chunk, at bson.Raw) (*catalog.Change, error) {
	p := e.Table.Pattern()
	bound, key, err := p.Bound(at)
	if err != nil {
		return nil, mongoerr.Newf(0, "new split key %s is not valid for shard key pattern %s", shardkey.Format(at), p)
	}
	c := e.Table.Chunk(e.Table.Find(key))
	if of != nil && (of.ID != c.ID || !bytes.Equal(of.MinKey, c.MinKey) || !bytes.Equal(of.MaxKey, c.MaxKey)) {
		return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the chunk %s changed while its median was looked for", bracket(of))
	}
	if bytes.Compare(key, c.MinKey) <= 0 || bytes.Compare(key, c.MaxKey) >= 0 {
		return nil, mongoerr.Newf(0, "new split key %s is a boundary key of existing chunk %s", shardkey.Format(bound), bracket(c))
	}
	left, right := *c, *c
	version := e.Newest()
	left.Max, left.MaxKey, left.LastMod, left.Jumbo = bound, key, version+1, false
	right.Min, right.MinKey, right.LastMod, right.Jumbo = bound, key, version+2, false
	right.ID, right.History = bson.NewObjectID(), slices.Clone(c.History)
	before := append(rangeDetail(c), bson.E{Key: "lastmod", Value: version.BSON()}, bson.E{Key: "lastmodEpoch", Value: e.Coll.Epoch})
	return &catalog.Change{
		Chunks: []catalog.ChunkEdit{{NS: e.Coll.NS, Remove: []bson.ObjectID{c.ID}, Put: []catalog.Chunk{left, right}}},
		Log: []catalog.LogEntry{r.logEntry("split", e.Coll.NS, c.Shard, bson.D{
			{Key: "before", Value: before},
			{Key: "left", Value: chunkDetail(e, &left)},
			{Key: "right", Value: chunkDetail(e, &right)},
			{Key: "owningShard", Value: c.Shard},
		})},
	}, nil
}

// chunkOf finds the chunk that a command means by a document or by bounds.
func (e *Entry) chunkOf(spec *ChunkSpec) (*catalog.Chunk, error) {
	p := e.Table.Pattern()
	if spec.Find != nil {
		t, err := target.Query(p, e.Table, spec.Find, false)
		if err != nil {
			return nil, err
		}
		if t.Key == nil {
			return nil, mongoerr.Newf(0, "no shard key found in chunk query %s", shardkey.Format(spec.Find))
		}
		return e.Table.Chunk(e.Table.Find(t.Key)), nil
	}
	least, minKey, err := p.Bound(spec.Bounds[0])
	greatest, maxKey, err2 := p.Bound(spec.Bounds[1])
	if err != nil || err2 != nil {
		return nil, mongoerr.Newf(0, "shard key bounds [%s,%s) are not valid for shard key pattern %s",
			shardkey.Format(spec.Bounds[0]), shardkey.Format(spec.Bounds[1]), p)
	}
	c := e.Table.Chunk(e.Table.Find(minKey))
	if !bytes.Equal(c.MinKey, minKey) || !bytes.Equal(c.MaxKey, maxKey) {
		return nil, mongoerr.Newf(0, "no chunk found with the shard key bounds [%s, %s)", shardkey.Format(least), shardkey.Format(greatest))
	}
	return c, nil
}

// median asks a chunk's shard for the key in the middle of its documents. A mongod knows
// how, by the index of the shard key, also a hashed one.
func (r *Router) median(ctx context.Context, e *Entry, c *catalog.Chunk) (bson.Raw, error) {
	body, err := r.run(ctx, c.Shard, "admin", bson.D{
		{Key: "splitVector", Value: e.Coll.NS},
		{Key: "keyPattern", Value: e.Coll.Key},
		{Key: "min", Value: c.Min},
		{Key: "max", Value: c.Max},
		{Key: "force", Value: true},
	})
	if err != nil {
		return nil, err
	}
	if keys, ok := bson.Raw(body).Lookup("splitKeys").ArrayOK(); ok {
		if v, err := keys.IndexErr(0); err == nil {
			if d, ok := v.DocumentOK(); ok {
				return d, nil
			}
		}
	}
	return nil, mongoerr.New(mongoerr.CannotSplit, "Unable to find median in chunk because chunk is indivisible.")
}

// Newest is the greatest version of a collection's chunks, major<<32 | minor.
func (e *Entry) Newest() catalog.Timestamp {
	var v catalog.Timestamp
	for i := range e.Table.Len() {
		v = max(v, e.Table.Chunk(i).LastMod)
	}
	return v
}

// bracket prints a chunk's range.
func bracket(c *catalog.Chunk) string {
	return "[" + shardkey.Format(c.Min) + "," + shardkey.Format(c.Max) + ")"
}

// rangeDetail and chunkDetail are what the changelog says of a chunk.
func rangeDetail(c *catalog.Chunk) bson.D {
	return bson.D{{Key: "min", Value: c.Min}, {Key: "max", Value: c.Max}}
}

func chunkDetail(e *Entry, c *catalog.Chunk) bson.D {
	return append(rangeDetail(c), bson.E{Key: "lastmod", Value: c.LastMod.BSON()}, bson.E{Key: "lastmodEpoch", Value: e.Coll.Epoch})
}

// CheckSharded refuses, with 118, what is not a sharded collection by the newest state of
// the catalog.
func (r *Router) CheckSharded(ctx context.Context, ns string) error {
	_, err := r.freshSharded(ctx, ns)
	return err
}
