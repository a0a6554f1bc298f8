package router

import (
	"context"
	"regexp"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// movedAt is the cluster time since which the collection, or the chunk that moved last, is on
// its shard, 0 if nothing of it has ever moved. Before that time the shard shows nothing of
// it, or half a copy.
func (e *Entry) movedAt() uint64 {
	if e == nil {
		return 0
	}
	return e.moved
}

// lastMove is movedAt for some of a collection's chunks.
func lastMove(coll *catalog.Collection, chunks []catalog.Chunk) uint64 {
	var last catalog.Timestamp
	for i := range chunks {
		c := &chunks[i]
		// A merge of chunks may have forgotten their history, but not its end.
		if len(c.History) > 1 || coll.Kind == catalog.KindSharded && c.OnShardSince > coll.Timestamp {
			last = max(last, c.OnShardSince)
		}
	}
	return uint64(last)
}

// seeMove has the operation see what its collection's shard has of it only from the time
// on at which all of it was there (PROTOCOL.md F18).
func (op *Op) seeMove(e *Entry) error {
	op.movedAt = e.movedAt()
	if op.movedAt == 0 || op.Txn.InTxn {
		return nil
	}
	rc, given := op.Cmd.Arg(wire.ArgReadConcern)
	d, _ := rc.Doc()
	_, past := d.Lookup("atClusterTime")
	if given && past && op.ReadTime < op.movedAt {
		return mongoerr.Newf(mongoerr.SnapshotTooOld, "%s, or a part of it, has moved to another shard since the time that is to be read", e.Coll.NS)
	}
	if op.readsLate() && !past {
		op.ReadTime = max(op.ReadTime, op.movedAt) // idle shards come to it, too
	}
	return nil
}

// readsLate reports whether the member that answers may lack what the collection's shard
// had when the collection came to it.
func (op *Op) readsLate() bool {
	return op.movedAt != 0 && op.Pref.Mode != backend.Primary && !op.Txn.InTxn && !op.Write
}

// appendLateConcern is the client's readConcern with the time to wait for.
func (op *Op) appendLateConcern(dst []byte) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "readConcern")
	rc, _ := op.Cmd.Arg(wire.ArgReadConcern)
	d, _ := rc.Doc()
	it := d.Iter()
	var e wire.Elem
	after, snapshot := op.movedAt, false
	for it.Next(&e) {
		switch level, _ := e.Str(); {
		case string(e.Name) == "afterClusterTime":
			t, _ := e.Timestamp()
			after = max(after, t)
			continue
		case string(e.Name) == "atClusterTime":
			snapshot = true
		case string(e.Name) == "level" && level == "available":
			continue // the default is local, which can wait
		}
		dst = append(dst, e.Raw...)
	}
	if !snapshot {
		dst = wire.AppendTimestampElement(dst, "afterClusterTime", after)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// errMovedMeanwhile is for a transaction that began before the collection came to the shard
// where it is now.
func errMovedMeanwhile() error {
	return mongoerr.New(mongoerr.SnapshotUnavailable, "a collection has moved to another shard since the transaction began").
		WithLabel(mongoerr.LabelTransientTransaction)
}

// streamable refuses a change stream that would begin before the collection came to its
// shard: what is in the log there is of the copy.
func (p *pipeline) streamable(e *Entry) error {
	moved := e.movedAt()
	if p.first != "$changeStream" || moved == 0 {
		return nil
	}
	spec, _ := p.stages[0].First()
	d, _ := spec.Doc()
	from := moved
	if at, ok := d.Lookup("startAtOperationTime"); ok {
		from, _ = at.Timestamp()
	}
	for _, name := range []string{"resumeAfter", "startAfter"} {
		if token, ok := d.Lookup(name); ok {
			t, _ := token.Doc()
			data, _ := t.Lookup("_data")
			if at, err := tokenTime(data.RawValue()); err == nil {
				from = at
			}
		}
	}
	if from < moved {
		return errHistoryMoved(e.Coll.NS)
	}
	return nil
}

func errHistoryMoved(ns string) error {
	return mongoerr.Newf(mongoerr.ChangeStreamHistoryLost, "%s has moved to another shard: its changes of before cannot be streamed any more", ns)
}

// hasMovedAway reports whether what a change stream watches has moved since: where it looks
// there are no more changes, or those of a copy. While a resharding may be replacing the
// collection it waits to know.
func (r *Router) hasMovedAway(ctx context.Context, c *Cursor) bool {
	if c.watches == nil {
		return false
	}
	s := r.snap.Load()
	e := s.Entries[c.watches.Coll.NS]
	for e != nil && e.Coll.State == catalog.StateFenced && s.reshardingOf(e.Coll.NS) != nil {
		if r.awaitReplacement(ctx, e, time.Time{}) != nil {
			return true
		}
		s = r.snap.Load()
		e = s.Entries[c.watches.Coll.NS]
	}
	return e != nil && e.Coll.Timestamp == c.watches.Coll.Timestamp &&
		(e.Coll.UUID != c.watches.Coll.UUID || e.movedAt() != c.watches.movedAt())
}

func quoteRegex(s string) string { return regexp.QuoteMeta(s) }
