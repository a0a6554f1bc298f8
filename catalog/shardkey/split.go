package shardkey

import (
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// HashedSplitPoints returns the n-1 hashes at which mongos cuts a new hashed
// collection into n chunks, ascending.
func HashedSplitPoints(n int) []int64 {
	if n < 2 {
		return nil
	}
	interval := math.MaxInt64 / int64(n) * 2
	points := make([]int64, 0, n-1)
	at := interval
	if n%2 == 1 {
		at = interval / 2
	} else {
		points = append(points, 0)
	}
	for ; len(points) < n-1; at += interval {
		points = append(points, -at, at)
	}
	slices.Sort(points)
	return points
}

// InitialChunks makes the chunks of a newly sharded collection. A key whose first
// field is hashed gets n, dealt out in contiguous groups to the shards in order of
// their ids; the primary gets the first if there are fewer chunks than shards.
// Any other key gets one chunk, on the primary. The owners' history begins at at.
func InitialChunks(p *Pattern, n int, shardIDs []string, primary string, at catalog.Timestamp) []catalog.Chunk {
	if p.hashed != 0 || n < 2 || len(shardIDs) == 0 {
		return []catalog.Chunk{newChunk(p, p.MinBound(), p.MaxBound(), primary, at)}
	}
	shards := slices.Sorted(slices.Values(shardIDs))
	group := max(n/len(shards), 1)
	points := HashedSplitPoints(n)
	chunks := make([]catalog.Chunk, 0, n)
	lower := p.MinBound()
	for i := range n {
		upper := p.MaxBound()
		if i < len(points) {
			upper = p.hashBound(points[i])
		}
		shard := shards[i/group%len(shards)]
		if i == 0 && n < len(shards) {
			shard = primary
		}
		c := newChunk(p, lower, upper, shard, at)
		c.LastMod |= catalog.Timestamp(i)
		chunks = append(chunks, c)
		lower = upper
	}
	return chunks
}

// SingleChunk makes the one chunk of an unsharded collection.
func SingleChunk(shard string, at catalog.Timestamp) []catalog.Chunk {
	p := byID()
	return []catalog.Chunk{newChunk(p, p.MinBound(), p.MaxBound(), shard, at)}
}

// byID is the key {_id: 1}, by which unsharded collections have their chunk.
func byID() *Pattern {
	b := newBuilder()
	b.value("_id", bson.TypeInt32, []byte{1, 0, 0, 0})
	return &Pattern{raw: b.done(), fields: []Field{{Name: "_id", parts: []string{"_id"}}}, hashed: -1}
}

// hashBound is the bound {h: hash, b: MinKey, …} of a key that begins with a
// hashed field.
func (p *Pattern) hashBound(hash int64) bson.Raw {
	b := newBuilder()
	b.int64(p.fields[0].Name, hash)
	for _, f := range p.fields[1:] {
		b.value(f.Name, bson.TypeMinKey, nil)
	}
	return b.done()
}

// newChunk makes a chunk of version 1|0 between bounds that belong to p.
func newChunk(p *Pattern, lower, upper bson.Raw, shard string, at catalog.Timestamp) catalog.Chunk {
	c := catalog.Chunk{
		ID: bson.NewObjectID(), Min: lower, Max: upper, Shard: shard,
		LastMod: 1 << 32, OnShardSince: at,
		History: []catalog.Owner{{Shard: shard, ValidAfter: at}},
	}
	_, c.MinKey, _ = p.appendBound(nil, lower)
	_, c.MaxKey, _ = p.appendBound(nil, upper)
	return c
}
