package router

import (
	"bytes"
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// historyWindow is how long ago a chunk must have been moved before MergeAllChunks forgets
// about it: the time for which a mongod serves reads of the past.
const historyWindow = 300 * time.Second

// MergeChunks makes one chunk of those that fill a range. They must all be on one shard.
func (r *Router) MergeChunks(ctx context.Context, ns string, least, greatest bson.Raw) error {
	return r.changeSharded(ctx, ns, "mergeChunks", func(e *Entry) (*catalog.Change, error) {
		p := e.Table.Pattern()
		_, minKey, err := p.Bound(least)
		_, maxKey, err2 := p.Bound(greatest)
		if err != nil || err2 != nil {
			return nil, mongoerr.Newf(0, "shard key bounds [%s,%s) are not valid for shard key pattern %s", shardkey.Format(least), shardkey.Format(greatest), p)
		}
		first := e.Table.Find(minKey)
		shard, end := e.Table.Chunk(first).Shard, first
		for end < e.Table.Len() && e.Table.Chunk(end).Shard == shard && bytes.Compare(e.Table.Chunk(end).MaxKey, maxKey) <= 0 {
			end++
		}
		if end == first || !bytes.Equal(e.Table.Chunk(first).MinKey, minKey) || !bytes.Equal(e.Table.Chunk(end-1).MaxKey, maxKey) {
			return nil, mongoerr.Newf(mongoerr.IllegalOperation, "could not merge chunks, shard %s does not contain a sequence of chunks that exactly fills the range [%s, %s)",
				shard, shardkey.Format(least), shardkey.Format(greatest))
		}
		return r.merge(e, [][2]int{{first, end}}), nil
	})
}

// MergeAllChunks merges all neighbours on a shard, at most limit chunks in all (0: no
// limit). Chunks that have lately been moved there are left alone, and jumbo ones.
func (r *Router) MergeAllChunks(ctx context.Context, ns, shard string, limit int) error {
	return r.changeSharded(ctx, ns, "mergeAllChunksOnShard", func(e *Entry) (*catalog.Change, error) {
		if _, known := r.snap.Load().Shards[shard]; !known {
			return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", shard)
		}
		before := catalog.Timestamp(time.Now().Add(-historyWindow).Unix()) << 32
		return r.merge(e, mergeable(e.Table, shard, before, limit)), nil
	})
}

// mergeable finds the runs [first, end) of chunks of a shard that may be merged: none of
// them jumbo, or moved there at or after a time.
func mergeable(t *shardkey.Table, shard string, before catalog.Timestamp, limit int) [][2]int {
	var runs [][2]int
	first, merged := 0, 0
	for i := range t.Len() + 1 {
		if i < t.Len() && (limit == 0 || merged+i-first < limit) {
			if c := t.Chunk(i); c.Shard == shard && !c.Jumbo && (len(c.History) < 2 || c.OnShardSince < before) {
				continue
			}
		}
		if i-first > 1 {
			runs = append(runs, [2]int{first, i})
			merged += i - first
		}
		if limit > 0 && merged >= limit-1 { // one chunk more makes no pair
			break
		}
		first = i + 1
	}
	return runs
}

// merge makes the change that makes one chunk of each run [first, end); nil where there is
// nothing to merge.
func (r *Router) merge(e *Entry, runs [][2]int) *catalog.Change {
	edit := catalog.ChunkEdit{NS: e.Coll.NS}
	var log []catalog.LogEntry
	version := e.Newest()
	for _, run := range runs {
		if run[1]-run[0] < 2 {
			continue
		}
		whole := *e.Table.Chunk(run[0])
		whole.History = nil
		for i := run[0]; i < run[1]; i++ {
			c := e.Table.Chunk(i)
			edit.Remove = append(edit.Remove, c.ID)
			whole.Max, whole.MaxKey = c.Max, c.MaxKey
			whole.OnShardSince, whole.Jumbo = max(whole.OnShardSince, c.OnShardSince), whole.Jumbo || c.Jumbo
		}
		// Of the past it is only certain that the shard has all of it since it got the last part.
		whole.History = []catalog.Owner{{Shard: whole.Shard, ValidAfter: whole.OnShardSince}}
		whole.LastMod = version + 1
		edit.Put = append(edit.Put, whole)
		log = append(log, r.logEntry("merge", e.Coll.NS, whole.Shard, append(bson.D{
			{Key: "prevPlacementVersion", Value: version.BSON()},
			{Key: "mergedVersion", Value: whole.LastMod.BSON()},
			{Key: "owningShard", Value: whole.Shard},
		}, append(rangeDetail(&whole), bson.E{Key: "numChunks", Value: int32(run[1] - run[0])})...)))
		version = whole.LastMod
	}
	if len(edit.Remove) == 0 {
		return nil
	}
	return &catalog.Change{Chunks: []catalog.ChunkEdit{edit}, Log: log}
}

// ClearJumbo takes the mark from a chunk that says that it is too large to move.
func (r *Router) ClearJumbo(ctx context.Context, spec ChunkSpec) error {
	return r.changeSharded(ctx, spec.NS, "clearJumboFlag", func(e *Entry) (*catalog.Change, error) {
		found, err := e.chunkOf(&spec)
		if err != nil {
			code := mongoerr.Code(51260)
			if spec.Find == nil {
				code = 51261
			}
			return nil, mongoerr.New(code, err.Error())
		}
		if !found.Jumbo {
			return nil, nil //nolint:nilnil // there is nothing to do
		}
		c := *found
		c.Jumbo, c.LastMod = false, (e.Newest()>>32+1)<<32
		return &catalog.Change{Chunks: []catalog.ChunkEdit{{NS: spec.NS, Remove: []bson.ObjectID{c.ID}, Put: []catalog.Chunk{c}}}}, nil
	})
}

// SetAllowMigrations allows or forbids moving chunks of a collection.
func (r *Router) SetAllowMigrations(ctx context.Context, ns string, allow bool) error {
	return r.changeSharded(ctx, ns, "setAllowMigrations", func(e *Entry) (*catalog.Change, error) {
		if e.Coll.Migrations == allow {
			return nil, nil //nolint:nilnil // there is nothing to do
		}
		row := *e.Coll
		row.Migrations = allow
		return &catalog.Change{Rows: []catalog.Collection{row}}, nil
	})
}
