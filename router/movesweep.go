package router

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
)

const (
	// sweepBatch is how many documents one transaction of a sweep deletes.
	sweepBatch = 250
	// sweepPause lies between two of them.
	sweepPause = 2 * time.Millisecond
	// sweepSlice is how long a sweep in the background keeps the collection's lock.
	sweepSlice = time.Second
	// forever is for a sweep that is waited for.
	forever = 24 * time.Hour
)

// sweep deletes from a shard what it has of the range and does not own. Each deletion needs
// the permission that the sweep takes for itself in the movement's document there, and that a
// later sweep, or the end of all, takes away: one that was paused deletes nothing when it
// wakes, though the range may have come back by then (PROTOCOL.md F5). It reports false if
// it has to be gone on with.
func (m *mover) sweep(ctx context.Context, shard, document string, limit time.Duration) (done bool, err error) {
	until := time.Now().Add(limit)
	nonce := uuid.New()
	if _, err := m.noteUnless(ctx, shard, document, "swept", bson.D{{Key: "sweep", Value: binaryUUID(nonce)}}); err != nil {
		return errors.Is(err, errTokenGone), ignored(err, errTokenGone)
	}
	g := &guarded{m: m, shard: shard, session: nonce, token: bson.D{{Key: "_id", Value: document}, {Key: "sweep", Value: binaryUUID(nonce)}}}
	for {
		n := 0
		err := m.keysOn(ctx, shard, func(docs []bson.Raw) (more bool, err error) {
			n += len(docs)
			for len(docs) > 0 {
				if time.Now().After(until) {
					return false, nil
				}
				part := docs[:min(sweepBatch, len(docs))]
				docs = docs[len(part):]
				ids := make([]bson.RawValue, len(part))
				for i, d := range part {
					ids[i] = d.Lookup("_id")
				}
				m.r.failpoint(ctx, "move-sweep")
				if err := g.inTxn(ctx, func(run txnRun) error { return m.remove(run, ids) }); err != nil {
					return false, err
				}
				if !sleep(ctx, sweepPause) {
					return false, ctx.Err()
				}
			}
			return true, nil
		})
		if err != nil || n > 0 && time.Now().After(until) {
			return false, err
		}
		if n == 0 {
			return true, nil
		}
	}
}

// sweepsEnded are the fields by which nobody may sweep any more.
func sweepsEnded() bson.D { return bson.D{{Key: "sweep", Value: nil}, {Key: "swept", Value: true}} }

// endSweeps takes the permission to sweep away for good, when there is nothing left.
func (m *mover) endSweeps(ctx context.Context, shard, document string) error {
	_, err := m.note(ctx, shard, document, sweepsEnded())
	return err
}

// ignored is err, unless it is the one that is to be expected.
func ignored(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// remove deletes those of the documents that belong to what moves: others of the same _id
// are the shard's own (PROTOCOL.md F6). What is looked at and what is deleted is the same, by
// the transaction's snapshot.
func (m *mover) remove(run txnRun, ids []bson.RawValue) error {
	if m.row.Range != nil {
		var err error
		if ids, err = m.idsAt(run, ids); err != nil || len(ids) == 0 {
			return err
		}
	}
	db, coll := catalog.SplitNS(m.row.NS)
	return written(run(db, bson.D{
		{Key: "delete", Value: coll},
		{Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "limit", Value: int32(0)},
		}}},
		{Key: "collectionUUID", Value: binaryUUID(m.row.Collection)},
	}))
}

// keysOn hands out _id and key of a shard's documents of the range, until do has enough.
func (m *mover) keysOn(ctx context.Context, shard string, do func(docs []bson.Raw) (more bool, err error)) error {
	cmd, err := m.scanOf(ctx, shard, copyBatch)
	if err != nil {
		return err
	}
	cmd = append(cmd, bson.E{Key: "projection", Value: m.keyFields()})
	db, coll := catalog.SplitNS(m.row.NS)
	for {
		body, err := m.r.run(ctx, shard, db, cmd)
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
		docs, err := documents(batch)
		if err == nil {
			docs, err = m.part(docs)
		}
		more := true
		if err == nil {
			more, err = do(docs)
		}
		if id == 0 {
			return err
		}
		if err != nil || !more {
			_, kerr := m.r.run(ctx, shard, db, bson.D{{Key: "killCursors", Value: coll}, {Key: "cursors", Value: bson.A{id}}})
			if kerr != nil {
				m.r.log.Debug().Err(kerr).Str("shard", shard).Msg("close a movement's cursor")
			}
			return err
		}
		cmd = bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}, {Key: "batchSize", Value: int32(copyBatch)}}
	}
}

// documents lists the elements of a batch.
func documents(batch []byte) (docs []bson.Raw, err error) {
	for len(batch) > 0 {
		e, n := wire.FirstElem(batch)
		if n == 0 {
			return nil, wire.ErrMalformed
		}
		docs = append(docs, bson.Raw(e.Value))
		batch = batch[n:]
	}
	return docs, nil
}
