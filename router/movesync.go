package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// sync makes documents of the recipient what the donor has of them now: one read of the
// donor, one transaction on the recipient, in which all of them go and those that exist
// come again. A document that is in the way by a unique index is older than what was read,
// and is brought up to date with them.
func (c *copier) sync(ctx context.Context, ids []bson.RawValue) error {
	for range copyRounds {
		docs, whole, err := c.current(ctx, ids)
		if err != nil {
			return err
		}
		if !whole {
			half := len(ids) / 2
			if err := c.sync(ctx, ids[:half:half]); err != nil {
				return err
			}
			return c.sync(ctx, ids[half:])
		}
		var inTheWay bson.Raw
		err = c.inTxn(ctx, func(run txnRun) error {
			if err := c.remove(run, ids); err != nil || len(docs) == 0 {
				return err
			}
			err := c.insert(run, docs)
			if w := (*insertError)(nil); mongoerr.CodeOf(err) == mongoerr.DuplicateKey && asInsertError(err, &w) {
				inTheWay, err = w.blocker(docs), w.cause
			}
			return err
		})
		if mongoerr.CodeOf(err) != mongoerr.DuplicateKey || inTheWay == nil {
			return err
		}
		more, err := c.matching(ctx, inTheWay)
		if err != nil {
			return err
		}
		ids = append(ids[:len(ids):len(ids)], more...)
	}
	return mongoerr.Newf(mongoerr.DuplicateKey, "documents of %s are in each other's way on the recipient", c.m.row.NS)
}

// current reads documents of the donor; whole is false if they are too many bytes for one
// write, and more than one.
func (c *copier) current(ctx context.Context, ids []bson.RawValue) (docs []bson.Raw, whole bool, err error) {
	db, coll := c.names()
	cmd := bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "readConcern", Value: bson.D{
			{Key: "level", Value: "snapshot"},
			{Key: "atClusterTime", Value: bson.Timestamp{T: uint32(c.readAt >> 32), I: uint32(c.readAt)}},
		}},
		{Key: "batchSize", Value: int32(len(ids) + 1)},
	}
	size := 0
	body, err := c.m.r.run(ctx, c.m.row.From, db, cmd)
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
				_, kerr := c.m.r.run(ctx, c.m.row.From, db, bson.D{{Key: "killCursors", Value: coll}, {Key: "cursors", Value: bson.A{id}}})
				return nil, false, kerr
			}
			return docs, whole, nil
		}
		body, err = c.m.r.run(ctx, c.m.row.From, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}})
	}
	return nil, false, err
}

// matching lists the ids of the recipient's documents that a filter finds.
func (c *copier) matching(ctx context.Context, find bson.Raw) (ids []bson.RawValue, err error) {
	db, coll := c.names()
	var cmd bson.D
	if err := bson.Unmarshal(find, &cmd); err != nil {
		return nil, err
	}
	cmd = append(bson.D{{Key: "find", Value: coll}, {Key: "projection", Value: bson.D{{Key: "_id", Value: int32(1)}}}}, cmd...)
	err = c.m.r.drain(ctx, c.m.row.To, db, cmd, func(doc bson.Raw) error {
		ids = append(ids, append(bson.Raw(nil), doc...).Lookup("_id"))
		return nil
	})
	if err == nil && len(ids) == 0 {
		err = mongoerr.Newf(mongoerr.DuplicateKey, "what is in the way of a document of %s cannot be found", c.m.row.NS)
	}
	return ids, err
}

// txnRun runs a statement of a movement's transaction on the recipient.
type txnRun func(db string, cmd bson.D) (wire.Doc, error)

// inTxn runs a transaction on the recipient in the movement's session, again if others
// have come between. It begins with the token: who has lost that writes nothing, however
// late (PROTOCOL.md F5).
func (c *copier) inTxn(ctx context.Context, do func(txnRun) error) error {
	var err error
	for try := range copyRounds {
		if err = c.once(ctx, do); !isContended(err) {
			return err
		}
		if !sleep(ctx, time.Duration(try+1)*time.Millisecond) {
			return ctx.Err()
		}
	}
	return err
}

func (c *copier) once(ctx context.Context, do func(txnRun) error) error {
	m := c.m
	c.txn++
	number, started := c.txn, false
	run := func(db string, cmd bson.D) (wire.Doc, error) {
		cmd = append(cmd, bson.E{Key: "lsid", Value: m.lsid()}, bson.E{Key: "txnNumber", Value: number}, bson.E{Key: "autocommit", Value: false})
		if !started {
			cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
			started = true
		}
		return m.ask(ctx, m.row.To, db, cmd)
	}
	err := m.useToken(run)
	if err == nil {
		err = do(run)
	}
	if err != nil {
		if _, aerr := run("admin", bson.D{{Key: "abortTransaction", Value: int32(1)}}); aerr != nil {
			m.r.log.Debug().Err(aerr).Msg("abort a movement's transaction")
		}
		return err
	}
	_, err = run("admin", bson.D{{Key: "commitTransaction", Value: int32(1)}, {Key: "writeConcern", Value: majorityWrites}})
	return err
}

var errTokenGone = mongoerr.New(mongoerr.ConflictingOperationInProgress, "another router has ended the movement")

func (m *mover) useToken(run txnRun) error {
	body, err := run(InternalDB, bson.D{
		{Key: "update", Value: movesColl},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: m.tokenID()}, {Key: "open", Value: true}}},
			{Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "writes", Value: int64(1)}}}}},
		}}},
	})
	if err != nil {
		return err
	}
	if n, _ := bson.Raw(body).Lookup("n").AsInt64OK(); n != 1 {
		return errTokenGone
	}
	return nil
}

func (c *copier) remove(run txnRun, ids []bson.RawValue) error {
	db, coll := c.names()
	return written(run(db, bson.D{
		{Key: "delete", Value: coll},
		{Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "limit", Value: int32(0)},
		}}},
		{Key: "collectionUUID", Value: binaryUUID(c.m.row.Collection)},
	}))
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

func asInsertError(err error, w **insertError) bool {
	e, ok := err.(*insertError) //nolint:errorlint // it is what insert has just returned
	*w = e
	return ok
}

// blocker is the part of a find that finds what is in the way of a document: by the key
// that the shard names, or, where that one is of a collation, by the document's values.
func (e *insertError) blocker(docs []bson.Raw) bson.Raw {
	key, ok := e.detail.Lookup("keyValue").DocumentOK()
	if !ok {
		return nil
	}
	find := bson.D{{Key: "filter", Value: key}}
	if collation, ok := e.detail.Lookup("collation").DocumentOK(); ok {
		i, _ := e.detail.Lookup("index").AsInt64OK()
		fields, err := key.Elements()
		if err != nil || i < 0 || int(i) >= len(docs) {
			return nil
		}
		filter := bson.D{}
		for _, f := range fields {
			filter = append(filter, bson.E{Key: f.Key(), Value: bson.D{{Key: "$eq", Value: docs[i].Lookup(splitPath(f.Key())...)}}})
		}
		find = bson.D{{Key: "filter", Value: filter}, {Key: "collation", Value: collation}}
	}
	raw, err := bson.Marshal(find)
	if err != nil {
		return nil
	}
	return raw
}
