package router

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// syncPart makes the recipients' copies of a donor's documents what the donor has. A copy of
// another donor may be in the way, by _id or another unique value: that donor is asked what
// has become of its document, and its copy brought up to date. If it stays, the two cannot be
// on one shard.
func (re *resharding) syncPart(ctx context.Context, c *copier, ids []bson.RawValue, docs []bson.Raw) (moved []bson.RawValue, err error) {
	for round := range twinRounds {
		more, foreign, err := re.syncOnce(ctx, c, ids, docs)
		moved = append(moved, more...)
		if err != nil || len(foreign) == 0 {
			return moved, err
		}
		if re.nested {
			c.stream.ids = append(c.stream.ids, ids...) // in its turn: who is asked does not ask back
			return moved, nil
		}
		for other, theirs := range foreign {
			if err := re.askOther(ctx, other, theirs); err != nil {
				return nil, err
			}
		}
		if !sleep(ctx, time.Duration(round)*20*time.Millisecond) {
			return nil, ctx.Err()
		}
		if c.readAt, err = c.note(ctx, true); err != nil {
			return nil, err
		}
		var whole bool
		if docs, whole, err = c.current(ctx, ids); err != nil || !whole {
			return append(moved, ids...), err // they have grown: not so many at once
		}
	}
	return nil, mongoerr.Newf(mongoerr.DuplicateKey, "documents of %s with the same _id, or another unique value, which are on several shards would come together on one", re.m.row.NS)
}

// askOther brings documents of another donor up to date, as their copies are in the way.
func (re *resharding) askOther(ctx context.Context, other *copier, ids []bson.RawValue) (err error) {
	if other.readAt, err = other.note(ctx, true); err != nil {
		return err
	}
	re.nested = true
	defer func() { re.nested = false }()
	return other.sync(ctx, ids)
}

// catchUpRest brings up to date what had to wait for other donors' documents.
func (re *resharding) catchUpRest(ctx context.Context) error {
	for range twinRounds {
		left := 0
		for _, c := range re.donors {
			ids := c.stream.ids
			c.stream.ids = nil
			if err := c.sync(ctx, ids); err != nil {
				return err
			}
			left += len(c.stream.ids)
		}
		if left == 0 {
			return nil
		}
	}
	return mongoerr.Newf(mongoerr.DuplicateKey, "documents of %s on several shards are in each other's way", re.m.row.NS)
}

// syncOnce is syncPart, but for what copies of others are in the way of.
func (re *resharding) syncOnce(ctx context.Context, c *copier, ids []bson.RawValue, docs []bson.Raw) (moved []bson.RawValue, foreign map[*copier][]bson.RawValue, err error) {
	parts, err := re.byOwner(docs)
	if err != nil {
		return nil, nil, err
	}
	shards := re.m.recipients()
	all := make([]replaced, len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		wg.Go(func() { all[i] = re.syncAt(ctx, c, shard, ids, parts[shard]) })
	}
	wg.Wait()
	for i := range all {
		if all[i].err != nil {
			return nil, nil, all[i].err
		}
		moved = append(moved, all[i].moved...)
		for other, theirs := range all[i].foreign {
			if foreign == nil {
				foreign = map[*copier][]bson.RawValue{}
			}
			foreign[other] = append(foreign[other], theirs...)
		}
	}
	return moved, foreign, nil
}

// replaced is what came of replace.
type replaced struct {
	moved   []bson.RawValue
	foreign map[*copier][]bson.RawValue
	err     error
}

// syncAt is syncOnce for one recipient.
func (re *resharding) syncAt(ctx context.Context, c *copier, shard string, ids []bson.RawValue, docs []bson.Raw) (res replaced) {
	if len(docs) == 0 {
		// Nobody else writes there.
		left, err := re.copiesOf(re.m.at(ctx, shard), c.from, ids)
		if err != nil || len(left) == 0 {
			return replaced{err: err}
		}
	}
	res.moved, res.foreign, res.err = re.replace(ctx, c, shard, ids, docs)
	return res
}

// replace puts documents on a recipient in the place of the donor's copies with the given
// ids. It returns the ids of others of the donor that had to make room, or what copies of
// other donors are in the way, in which case nothing is done.
func (re *resharding) replace(ctx context.Context, c *copier, shard string, ids []bson.RawValue, docs []bson.Raw) (moved []bson.RawValue, foreign map[*copier][]bson.RawValue, err error) {
	for range copyRounds {
		var inTheWay *insertError
		err := re.to[shard].inTxn(ctx, func(run txnRun) error {
			if err := re.remove(run, c.from, append(ids[:len(ids):len(ids)], moved...)); err != nil || len(docs) == 0 {
				return err
			}
			err := re.insert(run, docs)
			if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
				errors.As(err, &inTheWay)
			}
			return err
		})
		if inTheWay == nil || mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
			return moved, nil, err
		}
		own, others, err := re.blockers(ctx, c, shard, inTheWay, docs)
		if err != nil {
			return nil, nil, err
		}
		fresh := false
		for _, id := range own {
			same := func(v bson.RawValue) bool { return v.Equal(id) }
			if !slices.ContainsFunc(ids, same) && !slices.ContainsFunc(moved, same) {
				moved, fresh = append(moved, id), true
			}
		}
		if len(others) > 0 && !fresh {
			return nil, others, nil
		}
	}
	return nil, nil, mongoerr.Newf(mongoerr.DuplicateKey, "documents of %s are in each other's way on shard %s", re.m.row.NS, shard)
}

// blockers lists the copies on a recipient that have what documents must have alone: the
// donor's own, and those of others.
func (re *resharding) blockers(ctx context.Context, c *copier, shard string, refused *insertError, docs []bson.Raw) (own []bson.RawValue, others map[*copier][]bson.RawValue, err error) {
	filters, collation := refused.filters(docs)
	if len(filters) == 0 {
		return nil, nil, refused
	}
	db, coll := re.m.tempNames()
	cmd := bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "$or", Value: filters}}}, {Key: "projection", Value: re.copyFields()}}
	if collation != nil {
		cmd = append(cmd, bson.E{Key: "collation", Value: collation})
	}
	others = map[*copier][]bson.RawValue{}
	err = re.m.r.drain(ctx, shard, db, cmd, func(doc bson.Raw) error {
		origin, err := ownerBy(re.old, doc)
		if err != nil {
			return err
		}
		id := append(bson.Raw(nil), doc...).Lookup("_id")
		if origin == c.from {
			own = append(own, id)
			return nil
		}
		for _, d := range re.donors {
			if d.from == origin {
				others[d] = append(others[d], id)
			}
		}
		return nil
	})
	if err == nil && len(own)+len(others) == 0 {
		err = refused
	}
	return own, others, err
}
