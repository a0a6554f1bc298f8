package router

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// The codes of moveChunk (MONGOS.md §1.8).
const (
	errNoKeyInFind mongoerr.Code = 656450
	errNoBounds    mongoerr.Code = 656451
	errNoChunk     mongoerr.Code = 656452
)

// resolve finds the shard and the range that are meant.
func (spec *MoveSpec) resolve(e *Entry) (shard string, part *catalog.Range, err error) {
	switch {
	case spec.Part:
		return spec.part(e)
	case spec.Find != nil:
		t, err := target.Query(e.Table.Pattern(), e.Table, spec.Find, false)
		if err != nil || t.Key == nil {
			return "", nil, mongoerr.Newf(errNoKeyInFind, "no shard key found in chunk query %s", shardkey.Format(spec.Find))
		}
		shard, part = whole(e.Table.Chunk(e.Table.Find(t.Key)))
		return shard, part, nil
	}
	p := e.Table.Pattern()
	lower, err := p.AppendBound(nil, spec.Min)
	upper, uerr := p.AppendBound(nil, spec.Max)
	if err != nil || uerr != nil {
		return "", nil, mongoerr.Newf(errNoBounds, "shard key bounds [%s, %s) are not valid for shard key pattern %s", shardkey.Format(spec.Min), shardkey.Format(spec.Max), p)
	}
	c := e.Table.Chunk(e.Table.Find(lower))
	if !bytes.Equal(c.MinKey, lower) || !bytes.Equal(c.MaxKey, upper) {
		return "", nil, mongoerr.Newf(errNoChunk, "no chunk found with the shard key bounds [%s, %s)", shardkey.Format(spec.Min), shardkey.Format(spec.Max))
	}
	shard, part = whole(c)
	return shard, part, nil
}

// whole is a chunk's shard and range.
func whole(c *catalog.Chunk) (shard string, part *catalog.Range) {
	return c.Shard, &catalog.Range{Min: c.Min, Max: c.Max, MinKey: c.MinKey, MaxKey: c.MaxKey}
}

// part finds what moveRange is to move: from one bound to the other, or to the chunk's where
// one is not given.
func (spec *MoveSpec) part(e *Entry) (shard string, part *catalog.Range, err error) {
	p := e.Table.Pattern()
	bound := func(doc bson.Raw) ([]byte, error) {
		key, err := p.AppendBound(nil, doc)
		if err != nil {
			err = mongoerr.Newf(mongoerr.BadValue, "the bound %s is not valid for shard key pattern %s", shardkey.Format(doc), p)
		}
		return key, err
	}
	var lower, upper []byte
	if spec.Min != nil {
		if lower, err = bound(spec.Min); err != nil {
			return "", nil, err
		}
	}
	if spec.Max != nil {
		if upper, err = bound(spec.Max); err != nil {
			return "", nil, err
		}
	}
	i := e.Table.Find(lower)
	if lower == nil {
		// The chunk that ends at the upper bound, or in which that lies.
		if i = e.Table.Find(upper); i > 0 && bytes.Equal(e.Table.Chunk(i).MinKey, upper) {
			i--
		}
	}
	shard, part = whole(e.Table.Chunk(i))
	if lower != nil {
		part.Min, part.MinKey = spec.Min, lower
	}
	if upper != nil {
		if bytes.Compare(upper, part.MaxKey) > 0 {
			return "", nil, mongoerr.New(mongoerr.InvalidOptions, "the range is not within one chunk")
		}
		part.Max, part.MaxKey = spec.Max, upper
	}
	if bytes.Compare(part.MinKey, part.MaxKey) >= 0 {
		return "", nil, mongoerr.Newf(mongoerr.InvalidOptions, "the range [%s, %s) is empty", shardkey.Format(part.Min), shardkey.Format(part.Max))
	}
	return shard, part, nil
}
