package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

const (
	copyBatch  = 1000    // documents of one read of the donor
	copyBytes  = 4 << 20 // and bytes of one write to the recipient
	pollBatch  = 5000    // changes that are taken at once
	syncBatch  = 200     // changed documents that are brought up to date at once
	lagEnough  = 100 * time.Millisecond
	lagRounds  = 30
	copyRounds = 50 // how often a write to the recipient is tried again
)

// copier copies one collection: in one thread it reads the donor, by scan and by change
// stream, and writes what it has read to the recipient. As each read is newer than all
// before it, and each write follows its read, a document of the recipient is always as
// the donor had it at some time, and at last as the donor has it (docs/movement.md).
type copier struct {
	m      *mover
	from   string      // the donor
	to     guarded     // writes to the recipient
	re     *resharding // of which this reads one donor; nil: a movement to one recipient, to which it writes
	ttl    bool        // the collection has a TTL index: documents may go on either side by themselves
	stream struct {
		cursor int64
		at     uint64          // all changes up to this time have been handed out
		ids    []bson.RawValue // changed and not yet brought up to date
	}
	readAt uint64 // the donor's time that reads have to be at or after

	copied, changed int64
}

func newCopier(m *mover) *copier {
	return &copier{m: m, from: m.row.From, to: m.writer(m.row.To)}
}

func (c *copier) counts() (copied, changed int64) { return c.copied, c.changed }

func (c *copier) names() (db, coll string) { return catalog.SplitNS(c.m.row.NS) }

// shape makes the collection, with its indexes, on the recipient, without any document that
// is to move: before that it is dropped where the recipient has it for nothing else.
func (c *copier) shape(ctx context.Context) error {
	m := c.m
	like, err := m.r.find(ctx, m.row.From, m.row.NS)
	if err != nil {
		return err
	}
	if like == nil || like.uuid() != m.row.Collection {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns not found on its shard: %s", m.row.NS)
	}
	if err := m.openAt(ctx, m.row.To); err != nil {
		return err
	}
	if !m.hasElse(m.row.To) {
		if err := m.dropCopy(ctx, m.row.To); err != nil {
			return err
		}
	}
	if err := m.certain(ctx, m.row.To, m.r.copyShape(ctx, m.row.NS, like, m.row.From, []string{m.row.To})); err != nil {
		return err
	}
	if m.row.Range != nil {
		// There is nothing, as whatever left it there has cleaned up: it is made sure of.
		if _, err := m.sweep(ctx, m.row.To, m.tokenID(), forever); err != nil {
			return err
		}
	}
	db, coll := c.names()
	return m.r.drain(ctx, m.row.From, db, bson.D{{Key: "listIndexes", Value: coll}}, func(doc bson.Raw) error {
		_, err := doc.LookupErr("expireAfterSeconds")
		c.ttl = c.ttl || err == nil
		return nil
	})
}

// all copies all documents and follows the changes until little is left of them.
func (c *copier) all(ctx context.Context) error {
	if c.stream.cursor == 0 {
		if err := c.openStream(ctx); err != nil {
			return err
		}
		if err := c.scan(ctx); err != nil {
			return err
		}
		c.m.r.failpoint(ctx, "move-follow")
	}
	for range lagRounds {
		begun := time.Now()
		at, err := c.note(ctx, false)
		if err == nil {
			err = c.follow(ctx, at)
		}
		if err != nil || time.Since(begun) < lagEnough {
			return err
		}
	}
	return nil // as fast as they come: the switch will tell
}

// finish follows the changes to their end, while none are made any more, and compares the
// copies (PROTOCOL.md F7).
func (c *copier) finish(ctx context.Context) error {
	at, err := c.note(ctx, true)
	if err != nil {
		return err
	}
	if err := c.follow(ctx, at); err != nil {
		return err
	}
	return c.compare(ctx)
}

// note writes a note into the donor's log and returns its time.
func (c *copier) note(ctx context.Context, majority bool) (uint64, error) {
	cmd := bson.D{
		{Key: "appendOplogNote", Value: int32(1)},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "shardgate: move " + c.m.row.ID.String()}}},
	}
	if majority {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: majorityWrites})
	}
	body, err := c.m.r.run(ctx, c.from, "admin", cmd)
	if err != nil {
		return 0, err
	}
	info, err := wire.Inspect(body)
	return info.OperationTime, err
}

// openStream begins to watch the collection at a time at or after which all of it is read.
// Left to itself a stream begins at what was last applied, and answers with the time of what
// a majority has: a read after that could miss what came between.
func (c *copier) openStream(ctx context.Context) (err error) {
	if c.readAt, err = c.note(ctx, true); err != nil {
		return err
	}
	db, coll := c.names()
	body, err := c.m.r.run(ctx, c.from, db, bson.D{
		{Key: "aggregate", Value: coll},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$changeStream", Value: bson.D{{Key: "startAtOperationTime", Value: bson.Timestamp{T: uint32(c.readAt >> 32), I: uint32(c.readAt)}}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "operationType", Value: int32(1)}, {Key: "documentKey", Value: int32(1)}}}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: int32(0)}}},
	})
	if err != nil {
		return err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return err
	}
	c.stream.cursor, _, _, err = cursorReply(info.Cursor)
	return err
}

// scan reads all that moves, in the order in which it lies there or by the index of the
// shard key, at majority.
func (c *copier) scan(ctx context.Context) error {
	db, coll := c.names()
	cmd, err := c.m.scanOf(ctx, c.from, copyBatch)
	if err != nil {
		return err
	}
	cmd = append(cmd, bson.E{Key: "readConcern", Value: c.concern()})
	for {
		body, err := c.m.r.run(ctx, c.from, db, cmd)
		if err != nil {
			return err
		}
		info, err := wire.Inspect(body)
		if err != nil {
			return err
		}
		id, _, batch, err := cursorReply(info.Cursor)
		if err != nil {
			return err
		}
		if err := c.insertAll(ctx, batch); err != nil {
			return err
		}
		c.m.r.failpoint(ctx, "move-batch")
		if err := c.keepUp(ctx); err != nil {
			return err
		}
		if id == 0 {
			return nil
		}
		cmd = bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}, {Key: "batchSize", Value: int32(copyBatch)}}
	}
}

// concern is the read concern of all reads of the donor: nothing that can be rolled back
// (PROTOCOL.md F8), and nothing older than what was read before.
func (c *copier) concern() bson.D {
	return bson.D{
		{Key: "level", Value: "majority"},
		{Key: "afterClusterTime", Value: bson.Timestamp{T: uint32(c.readAt >> 32), I: uint32(c.readAt)}},
	}
}

// insertAll inserts documents that a scan has found, array elements one after another.
func (c *copier) insertAll(ctx context.Context, batch []byte) error {
	var docs []bson.Raw
	size := 0
	flush := func() error {
		if len(docs) == 0 {
			return nil
		}
		if err := c.m.r.throttle(ctx, size); err != nil {
			return err
		}
		err := c.put(ctx, docs)
		if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
			// Some are there by the change stream, or meet an older state of others.
			ids := make([]bson.RawValue, len(docs))
			for i, d := range docs {
				ids[i] = d.Lookup("_id")
			}
			err = c.sync(ctx, ids)
		}
		c.copied += int64(len(docs))
		docs, size = docs[:0], 0
		return err
	}
	for len(batch) > 0 {
		e, n := wire.FirstElem(batch)
		if n == 0 {
			return wire.ErrMalformed
		}
		if is, err := c.within(e.Value); err != nil || !is {
			if err != nil {
				return err
			}
			batch = batch[n:]
			continue
		}
		if size+len(e.Value) > copyBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		size += len(e.Value)
		docs = append(docs, bson.Raw(e.Value))
		batch = batch[n:]
	}
	return flush()
}

// follow brings everything up to date that has changed up to a time.
func (c *copier) follow(ctx context.Context, until uint64) error {
	for c.stream.at < until {
		if c.m.facts.Held && time.Since(c.m.began) > holdBudget {
			return errTooSlow
		}
		if _, err := c.poll(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// poll takes what the change stream has, waiting up to the given time for anything, and
// brings it up to date.
func (c *copier) poll(ctx context.Context, wait time.Duration) (n int, err error) {
	db, coll := c.names()
	body, err := c.m.r.run(ctx, c.from, db, bson.D{
		{Key: "getMore", Value: c.stream.cursor},
		{Key: "collection", Value: coll},
		{Key: "batchSize", Value: int32(pollBatch)},
		{Key: "maxTimeMS", Value: max(wait.Milliseconds(), 1)},
	})
	if err != nil {
		return 0, err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return 0, err
	}
	id, _, batch, err := cursorReply(info.Cursor)
	if err != nil {
		return 0, err
	}
	if id == 0 {
		return 0, errStreamEnded
	}
	seen := map[string]bool{}
	for len(batch) > 0 {
		e, size := wire.FirstElem(batch)
		if size == 0 {
			return 0, wire.ErrMalformed
		}
		event := bson.Raw(e.Value)
		key, err := event.LookupErr("documentKey", "_id")
		if err != nil {
			return 0, fmt.Errorf("%w: %s", errStreamEnded, event.Lookup("operationType"))
		}
		if name := string(byte(key.Type)) + string(key.Value); !seen[name] {
			seen[name] = true
			c.stream.ids = append(c.stream.ids, key)
		}
		batch = batch[size:]
		n++
	}
	cursor, _ := info.Cursor.Doc()
	at, err := tokenTime(bson.Raw(cursor).Lookup("postBatchResumeToken", "_data"))
	if err != nil {
		return n, err
	}
	c.readAt = max(c.readAt, at)
	ids, err := c.concerned(ctx, c.stream.ids)
	if err != nil {
		return n, err
	}
	for len(ids) > 0 {
		part := ids[:min(syncBatch, len(ids))]
		if err := c.sync(ctx, part); err != nil {
			return n, err
		}
		ids = ids[len(part):]
	}
	c.stream.ids = c.stream.ids[:0]
	c.changed += int64(n)
	c.stream.at = at
	return n, nil
}

var errStreamEnded = errors.New("the change stream of the collection has ended")

// tokenTime reads the cluster time with which a resume token begins: a key string of type
// timestamp (0x82), its eight bytes most significant first.
func tokenTime(data bson.RawValue) (uint64, error) {
	s, ok := data.StringValueOK()
	var t uint64
	if !ok || len(s) < 18 || s[:2] != "82" {
		return 0, mongoerr.New(mongoerr.InternalError, "a resume token of unknown form")
	}
	for _, b := range []byte(s[2:18]) {
		d := bytes.IndexByte([]byte("0123456789ABCDEF"), b)
		if d < 0 {
			return 0, mongoerr.New(mongoerr.InternalError, "a resume token of unknown form")
		}
		t = t<<4 | uint64(d)
	}
	return t, nil
}

// close ends what is open on the donor.
func (c *copier) close(ctx context.Context) {
	if c.stream.cursor == 0 {
		return
	}
	db, coll := c.names()
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	_, err := c.m.r.run(ctx, c.from, db, bson.D{{Key: "killCursors", Value: coll}, {Key: "cursors", Value: bson.A{c.stream.cursor}}})
	if err != nil {
		c.m.r.log.Debug().Err(err).Msg("close a movement's change stream")
	}
	c.stream.cursor = 0
}
