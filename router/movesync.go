package router

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// sync makes documents of the recipient what the donor has of them now: one read of the
// donor, one transaction on the recipient, in which all of them go and those that exist
// come again. What is in the way of them there by a unique index is of another time: it
// goes, too, and is brought up to date in its turn. All is read at one time, at which no
// document is in another's way, so each has its turn once.
//
// What does not belong to the range that moves is left out on both sides. In the way of the
// range on the recipient may also be a document of its own, of the same _id: see syncPart.
func (c *copier) sync(ctx context.Context, ids []bson.RawValue) error {
	for len(ids) > 0 {
		part := ids[:min(syncBatch, len(ids))]
		docs, whole, err := c.current(ctx, part)
		for err == nil && !whole {
			part = part[:(len(part)+1)/2]
			docs, whole, err = c.current(ctx, part)
		}
		if err != nil {
			return err
		}
		moved, err := c.bringUp(ctx, part, docs)
		if err != nil {
			return err
		}
		ids = append(ids[len(part):len(ids):len(ids)], moved...)
	}
	return nil
}

// bringUp is sync for what is read at once; moved has to be brought up to date as well.
func (c *copier) bringUp(ctx context.Context, ids []bson.RawValue, docs []bson.Raw) (moved []bson.RawValue, err error) {
	if c.re != nil {
		return c.re.syncPart(ctx, c, ids, docs)
	}
	return c.syncPart(ctx, ids, docs)
}

// put inserts documents of a scan.
func (c *copier) put(ctx context.Context, docs []bson.Raw) error {
	if c.re != nil {
		return c.re.put(ctx, docs)
	}
	return c.to.inTxn(ctx, func(run txnRun) error { return c.insert(run, docs) })
}

// within reports whether a document of the donor belongs to what moves.
func (c *copier) within(doc []byte) (bool, error) {
	if c.re != nil {
		return c.re.isOf(doc, c.from)
	}
	return c.m.within(doc)
}

// keepUp takes what has changed while a scan went on.
func (c *copier) keepUp(ctx context.Context) error {
	if c.re != nil {
		return c.re.keepUp(ctx)
	}
	_, err := c.poll(ctx, time.Millisecond)
	return err
}

// twinRounds is how often a document of the recipient's own that is in the way is looked at
// again: its namesake on the donor may just have gone.
const twinRounds = 5

// errTwin says that a document of the recipient's own is in the way of one that moves.
var errTwin = errors.New("a document of the recipient's own is in the way")

// syncPart is sync for what is read at once. A document that meets another one outside the
// range is read again: if it is gone from the donor, it was given another key by its client,
// and the other one is what became of it. If it stays, the two are twins: a collection whose
// shards had the same _id twice, which cannot be on one shard (PROTOCOL.md F6, F21).
func (c *copier) syncPart(ctx context.Context, ids []bson.RawValue, docs []bson.Raw) (moved []bson.RawValue, err error) {
	if c.m.row.Range != nil && len(docs) == 0 {
		// Changes elsewhere in the collection: of them the recipient has nothing, mostly.
		if left, err := c.m.idsAt(c.m.at(ctx, c.m.row.To), ids); err != nil || len(left) == 0 {
			return nil, err
		}
	}
	for round := range twinRounds {
		moved, err = c.replace(ctx, ids, docs)
		if !errors.Is(err, errTwin) || round == twinRounds-1 {
			break
		}
		if !sleep(ctx, time.Duration(round)*20*time.Millisecond) {
			return nil, ctx.Err()
		}
		if c.readAt, err = c.note(ctx, true); err != nil {
			return nil, err
		}
		var whole bool
		if docs, whole, err = c.current(ctx, ids); err != nil || !whole {
			return ids, err // they have grown: not so many at once
		}
	}
	if errors.Is(err, errTwin) {
		err = mongoerr.Newf(mongoerr.DuplicateKey, "shard %s has a document with the same _id, or another unique value, as one of %s that moves there", c.m.row.To, c.m.row.NS)
	}
	return moved, err
}

// replace puts documents in the place of those with the given ids, and returns the ids of
// others that had to make room.
func (c *copier) replace(ctx context.Context, ids []bson.RawValue, docs []bson.Raw) (moved []bson.RawValue, err error) {
	for range copyRounds {
		var inTheWay *insertError
		err := c.to.inTxn(ctx, func(run txnRun) error {
			if err := c.m.remove(run, append(ids[:len(ids):len(ids)], moved...)); err != nil || len(docs) == 0 {
				return err
			}
			err := c.insert(run, docs)
			if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
				errors.As(err, &inTheWay)
			}
			return err
		})
		if inTheWay == nil || mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
			return moved, err
		}
		more, err := c.blockers(ctx, inTheWay, docs)
		if err != nil {
			return nil, err
		}
		for _, id := range more {
			same := func(v bson.RawValue) bool { return v.Equal(id) }
			if !slices.ContainsFunc(ids, same) && !slices.ContainsFunc(moved, same) {
				moved = append(moved, id)
			}
		}
	}
	return nil, mongoerr.Newf(mongoerr.DuplicateKey, "documents of %s are in each other's way on the recipient", c.m.row.NS)
}

// current reads documents of the donor; whole is false if they are too many bytes for one
// write, and more than one.
func (c *copier) current(ctx context.Context, ids []bson.RawValue) (docs []bson.Raw, whole bool, err error) {
	db, coll := c.names()
	cmd := bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "readConcern", Value: c.snapshot()},
		{Key: "batchSize", Value: int32(len(ids) + 1)},
	}
	size := 0
	defer func() {
		if err == nil {
			docs, err = c.part(docs)
		}
	}()
	body, err := c.m.r.run(ctx, c.from, db, cmd)
	for err == nil {
		var info wire.ShardReply
		if info, err = wire.Inspect(body); err != nil {
			break
		}
		id, _, batch, cerr := cursorReply(info.Cursor)
		if cerr != nil {
			return nil, false, cerr
		}
		for len(batch) > 0 {
			e, n := wire.FirstElem(batch)
			if n == 0 {
				return nil, false, wire.ErrMalformed
			}
			docs = append(docs, bson.Raw(e.Value))
			size += len(e.Value)
			batch = batch[n:]
		}
		if id == 0 || size > copyBytes && len(ids) > 1 {
			whole = id == 0 && (size <= copyBytes || len(ids) == 1)
			if id != 0 {
				_, kerr := c.m.r.run(ctx, c.from, db, bson.D{{Key: "killCursors", Value: coll}, {Key: "cursors", Value: bson.A{id}}})
				return nil, false, kerr
			}
			return docs, whole, nil
		}
		body, err = c.m.r.run(ctx, c.from, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}})
	}
	return nil, false, err
}

// snapshot is the read concern of what must be read at one time.
func (c *copier) snapshot() bson.D {
	return bson.D{
		{Key: "level", Value: "snapshot"},
		{Key: "atClusterTime", Value: bson.Timestamp{T: uint32(c.readAt >> 32), I: uint32(c.readAt)}},
	}
}

// blockers lists the ids of the recipient's documents that have what documents must have
// alone, by the index of which the shard says that it refused one of them.
func (c *copier) blockers(ctx context.Context, refused *insertError, docs []bson.Raw) (ids []bson.RawValue, err error) {
	filters, collation := refused.filters(docs)
	if len(filters) == 0 {
		return nil, refused
	}
	db, coll := c.names()
	cmd := bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "$or", Value: filters}}},
		{Key: "projection", Value: c.m.keyFields()},
	}
	if collation != nil {
		cmd = append(cmd, bson.E{Key: "collation", Value: collation})
	}
	err = c.m.r.drain(ctx, c.m.row.To, db, cmd, func(doc bson.Raw) error {
		if is, err := c.m.within(doc); err != nil || !is {
			return cmp.Or(err, errTwin)
		}
		ids = append(ids, append(bson.Raw(nil), doc...).Lookup("_id"))
		return nil
	})
	if err == nil && len(ids) == 0 {
		err = refused
	}
	return ids, err
}

func (c *copier) insert(run txnRun, docs []bson.Raw) error {
	db, coll := c.names()
	return written(run(db, bson.D{
		{Key: "insert", Value: coll},
		{Key: "documents", Value: docs},
		{Key: "bypassDocumentValidation", Value: true},
		{Key: "collectionUUID", Value: binaryUUID(c.m.row.Collection)},
	}))
}

// insertError is a document that could not be written, with all that the shard says of it.
type insertError struct {
	cause  error
	detail bson.Raw
}

// Error implements error.
func (e *insertError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *insertError) Unwrap() error { return e.cause }

func written(body wire.Doc, err error) error {
	if err != nil {
		return err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return err
	}
	if err = firstWriteError(info.WriteErrors); err != nil {
		first, _ := wire.Doc(info.WriteErrors.Value).First()
		return &insertError{cause: err, detail: bson.Raw(first.Value)}
	}
	return nil
}

// filters find what may be in the way of documents: the values that they have of the
// index's fields, and the key that the shard names. That one is no value where the index has
// a collation.
func (e *insertError) filters(docs []bson.Raw) (list bson.A, collation bson.Raw) {
	key, ok := e.detail.Lookup("keyValue").DocumentOK()
	if !ok {
		return nil, nil
	}
	fields, err := key.Elements()
	if err != nil {
		return nil, nil
	}
	collation, collated := e.detail.Lookup("collation").DocumentOK()
	if !collated {
		list = append(list, key)
		collation = simpleCollation()
	}
	for _, doc := range docs {
		var filter bson.D
		for _, f := range fields {
			if v, err := doc.LookupErr(strings.Split(f.Key(), ".")...); err == nil && v.Type != bson.TypeArray {
				filter = append(filter, bson.E{Key: f.Key(), Value: bson.D{{Key: "$eq", Value: v}}})
			}
		}
		if len(filter) == len(fields) {
			list = append(list, filter)
		}
	}
	return list, collation
}
