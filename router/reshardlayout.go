package router

import (
	"bytes"
	"context"
	"slices"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

const (
	// reshardChunks is how many chunks a resharding makes, if nothing is said of it.
	reshardChunks = 90
	// samplesPerChunk is how many documents are looked at for each.
	samplesPerChunk = 10

	errTooFewValues mongoerr.Code = 4952606
)

// makeLayout decides which shard is to have what.
func (r *Router) makeLayout(ctx context.Context, e *Entry, spec *ReshardSpec) (*catalog.Layout, error) {
	l := &catalog.Layout{UUID: uuid.New()}
	if spec.Key == nil {
		to := spec.To
		if to == "" {
			to = r.snap.Load().leastLoaded(r.hasPrimary)
		}
		l.Chunks = shardkey.SingleChunk(to, 0)
		return l, nil
	}
	l.Key = spec.Key.Raw()
	cuts, err := r.cuts(ctx, e, spec)
	if err != nil {
		return nil, err
	}
	s := r.snap.Load()
	leaves := func(id string) bool { return s.Shards[id].Draining }
	l.Chunks, err = spec.deal(cuts, slices.DeleteFunc(s.shardIDs(), leaves))
	return l, err
}

// cut is a bound between two chunks.
type cut struct {
	bound bson.Raw
	key   []byte
}

// cuts finds the bounds between the new chunks: for a key that begins with a hashed field
// they are equal parts of all hashes, else quantiles of a sample.
func (r *Router) cuts(ctx context.Context, e *Entry, spec *ReshardSpec) ([]cut, error) {
	n := spec.NumChunks
	if n == 0 {
		n = reshardChunks
	}
	p := spec.Key
	switch {
	case spec.Chunks != nil:
		return nil, nil
	case p.HashedField() == 0:
		chunks := shardkey.InitialChunks(p, n, []string{"any"}, "any", 0)
		var list []cut
		for i := range chunks[1:] {
			list = append(list, cut{chunks[i+1].Min, chunks[i+1].MinKey})
		}
		return list, nil
	case n == 1:
		return nil, nil
	}
	values, err := r.sampleKeys(ctx, e, p, n*samplesPerChunk)
	if err != nil {
		return nil, err
	}
	distinct := slices.CompactFunc(slices.Clone(values), func(a, b cut) bool { return bytes.Equal(a.key, b.key) })
	if len(distinct)+1 < n && spec.NumChunks > 0 {
		return nil, mongoerr.Newf(errTooFewValues, "The shard key provided does not have enough cardinality to make the required number of chunks of %d, it can only make up to %d chunks", n, len(distinct)+1)
	}
	list := quantiles(values, n)
	if spec.NumChunks > 0 && len(list)+1 < n {
		list = quantiles(distinct, n) // some values are so frequent that others come too short
	}
	return list, nil
}

// quantiles picks at most n-1 values that cut sorted ones into parts alike, each once.
func quantiles(values []cut, n int) []cut {
	var list []cut
	for i := 1; i < n && len(values) > 0; i++ {
		v := values[i*len(values)/n]
		if len(list) == 0 || bytes.Compare(list[len(list)-1].key, v.key) < 0 {
			list = append(list, v)
		}
	}
	return list
}

// sampleKeys returns values of a key, sorted, of about n documents: from each owner as many
// as it has of all. A value at the end of all keys is no bound and left out.
func (r *Router) sampleKeys(ctx context.Context, e *Entry, p *shardkey.Pattern, n int) ([]cut, error) {
	db, coll := catalog.SplitNS(e.Coll.NS)
	sizes, total := map[string]int64{}, int64(0)
	for _, shard := range e.Table.Shards() {
		body, err := r.run(ctx, shard, db, bson.D{{Key: "count", Value: coll}})
		if err != nil {
			return nil, err
		}
		sizes[shard], _ = bson.Raw(body).Lookup("n").AsInt64OK()
		total += sizes[shard]
	}
	var list []cut
	lowest, _ := p.AppendBound(nil, p.MinBound())
	highest, _ := p.AppendBound(nil, p.MaxBound())
	for shard, size := range sizes {
		if size == 0 {
			continue
		}
		err := r.drain(ctx, shard, db, bson.D{
			{Key: "aggregate", Value: coll},
			{Key: "pipeline", Value: bson.A{
				bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: int64(n)*size/total + 1}}}},
				bson.D{{Key: "$project", Value: keysOf(e.Table.Pattern(), p)}},
			}},
			{Key: "cursor", Value: bson.D{}},
		}, func(doc bson.Raw) error {
			if owner, err := ownerBy(e.Table, doc); err != nil || owner != shard {
				return err
			}
			bound, err := p.KeyDocument(doc, true)
			if err != nil {
				return mongoerr.Newf(mongoerr.ShardKeyNotFound, "Shard key cannot contain array values or array descendants: a document of %s has one in %s", e.Coll.NS, p)
			}
			key, err := p.AppendBound(nil, bound)
			if err == nil && bytes.Compare(key, lowest) > 0 && bytes.Compare(key, highest) < 0 {
				list = append(list, cut{bound, key})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(list, func(a, b cut) int { return bytes.Compare(a.key, b.key) })
	return list, nil
}

// keysOf is a projection of the fields of keys, of which one may lie within another's.
func keysOf(keys ...*shardkey.Pattern) bson.D {
	var fields bson.D
	seen := map[string]bool{}
	for _, p := range keys {
		for i := range p.Len() {
			if name := p.Field(i).Path()[0]; !seen[name] {
				seen[name] = true
				fields = append(fields, bson.E{Key: name, Value: int32(1)})
			}
		}
	}
	return fields
}

// deal makes the chunks between cuts and gives them to shards: as shardDistribution says,
// else in contiguous groups of the same size.
func (spec *ReshardSpec) deal(cuts []cut, all []string) ([]catalog.Chunk, error) {
	p := spec.Key
	if spec.Chunks != nil {
		return exactly(p, spec.Chunks)
	}
	owner := func(i int, _ []byte) string { return all[i*len(all)/(len(cuts)+1)] }
	if len(spec.Shares) > 0 {
		ranges, shards, err := spec.shares()
		if err != nil {
			return nil, err
		}
		if ranges == nil {
			owner = func(i int, _ []byte) string { return shards[i*len(shards)/(len(cuts)+1)] }
		} else {
			for i := range ranges[1:] {
				cuts = append(cuts, cut{ranges[i+1].Min, ranges[i+1].MinKey})
			}
			slices.SortFunc(cuts, func(a, b cut) int { return bytes.Compare(a.key, b.key) })
			cuts = slices.CompactFunc(cuts, func(a, b cut) bool { return bytes.Equal(a.key, b.key) })
			owner = func(_ int, lower []byte) string {
				i, found := slices.BinarySearchFunc(ranges, lower, func(c catalog.Chunk, k []byte) int { return bytes.Compare(c.MinKey, k) })
				if !found {
					i--
				}
				return ranges[i].Shard
			}
		}
	}
	lower := cut{bound: p.MinBound()}
	lower.key, _ = p.AppendBound(nil, lower.bound)
	var list []catalog.Chunk
	for i := range len(cuts) + 1 {
		upper := cut{bound: p.MaxBound()}
		if i < len(cuts) {
			upper = cuts[i]
		} else {
			upper.key, _ = p.AppendBound(nil, upper.bound)
		}
		list = append(list, catalog.Chunk{
			ID: bson.NewObjectID(), Min: lower.bound, Max: upper.bound, MinKey: lower.key, MaxKey: upper.key, Shard: owner(i, lower.key),
		})
		lower = upper
	}
	return list, nil
}

// shares reads shardDistribution: either shards alone, or with ranges that cover all keys.
func (spec *ReshardSpec) shares() (ranges []catalog.Chunk, shards []string, err error) {
	bounded := 0
	for _, s := range spec.Shares {
		if s.Min != nil {
			bounded++
		} else if slices.Contains(shards, s.Shard) {
			return nil, nil, mongoerr.Newf(mongoerr.InvalidOptions, "shardDistribution names shard %s twice", s.Shard)
		}
		shards = append(shards, s.Shard)
	}
	switch bounded {
	case 0:
		return nil, shards, nil
	case len(spec.Shares):
		ranges, err = exactly(spec.Key, spec.Shares)
		return ranges, shards, err
	default:
		return nil, nil, mongoerr.New(mongoerr.InvalidOptions, "either all or none of shardDistribution must have min and max")
	}
}

// exactly makes chunks of ranges, which must cover all keys without overlap.
func exactly(p *shardkey.Pattern, parts []Share) ([]catalog.Chunk, error) {
	var list []catalog.Chunk
	for _, part := range parts {
		c := catalog.Chunk{ID: bson.NewObjectID(), Min: part.Min, Max: part.Max, Shard: part.Shard}
		var err error
		if c.MinKey, err = p.AppendBound(nil, c.Min); err == nil {
			c.MaxKey, err = p.AppendBound(nil, c.Max)
		}
		if err != nil {
			return nil, mongoerr.Newf(mongoerr.BadValue, "[%s, %s) is no range of the shard key %s", shardkey.Format(part.Min), shardkey.Format(part.Max), p)
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b catalog.Chunk) int { return bytes.Compare(a.MinKey, b.MinKey) })
	if _, err := shardkey.NewTable(catalog.CollectionChunks{Collection: catalog.Collection{Key: p.Raw()}, Chunks: list}); err != nil {
		return nil, mongoerr.Newf(mongoerr.BadValue, "the given ranges do not cover all values of the shard key %s once", p)
	}
	return list, nil
}
