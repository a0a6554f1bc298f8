package router

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// resharding copies a collection to where another shard key puts its documents: from all
// of its donors, each read by a copier of its own, to a temporary collection on each
// recipient. One thread does it, and waits for all recipients each time. Which donor a copy is
// of tells its old shard key, which the copy has as well: so each donor's changes touch its own copies alone
// (PROTOCOL.md F10), and two documents of one _id may meet on a recipient, but not be taken
// for each other (docs/movement.md).
type resharding struct {
	m         *mover
	old, next *shardkey.Table // next is nil where the collection becomes an unsharded one
	donors    []*copier
	to        map[string]*guarded // writes to the recipients
	ttl       bool                // documents may go by themselves
	scanned   bool
	far       progress
	reported  time.Time // when that was noted last
	nested    bool      // a donor is brought up to date as its document is in another's way
}

// lagBearable is what may be left to follow at the switch where following comes no nearer.
const lagBearable = holdBudget / 4

// newResharding is for a movement that is to begin.
func newResharding(m *mover) *resharding {
	re := &resharding{m: m, old: m.entry().Table, to: map[string]*guarded{}}
	for _, shard := range re.old.Shards() {
		re.donors = append(re.donors, &copier{m: m, from: shard, re: re})
	}
	for _, shard := range m.recipients() {
		w := m.writer(shard)
		re.to[shard] = &w
	}
	return re
}

func (re *resharding) counts() (copied, changed int64) {
	for _, c := range re.donors {
		copied, changed = copied+c.copied, changed+c.changed
	}
	return copied, changed
}

// isOf reports whether a document, or a copy, is the donor's by its old key. What else lies
// on the donor has moved away.
func (re *resharding) isOf(doc []byte, donor string) (bool, error) {
	owner, err := ownerBy(re.old, doc)
	return owner == donor, err
}

// ownerBy is the shard to which a table gives a document.
func ownerBy(t *shardkey.Table, doc []byte) (string, error) {
	var buf [128]byte
	key, err := t.Pattern().AppendKey(buf[:0], doc)
	if errors.Is(err, shardkey.ErrArray) {
		err = mongoerr.Newf(mongoerr.ShardKeyNotFound, "Shard key cannot contain array values or array descendants: a document of %s has one in %s", t.Collection().NS, t.Pattern())
	}
	if err != nil {
		return "", err
	}
	return t.Chunk(t.Find(key)).Shard, nil
}

// byOwner sorts documents by the recipients that get them.
func (re *resharding) byOwner(docs []bson.Raw) (map[string][]bson.Raw, error) {
	out := map[string][]bson.Raw{}
	for _, d := range docs {
		owner := re.m.row.To
		if re.next != nil {
			var err error
			if owner, err = ownerBy(re.next, d); err != nil {
				return nil, err
			}
		}
		out[owner] = append(out[owner], d)
	}
	return out, nil
}

// all copies all documents, follows all changes until little is left of them.
func (re *resharding) all(ctx context.Context) error {
	if !re.scanned {
		if err := re.measure(ctx); err != nil {
			return err
		}
		for _, c := range re.donors {
			if err := c.openStream(ctx); err != nil {
				return err
			}
		}
		for _, c := range re.donors {
			if err := c.scan(ctx); err != nil {
				return err
			}
		}
		re.scanned = true
		re.m.r.failpoint(ctx, "move-follow")
	}
	for before, rounds := time.Duration(0), 0; ; {
		if err := errors.Join(re.m.stillOpen(ctx), re.report(ctx)); err != nil {
			return err
		}
		begun := time.Now()
		if err := re.catchUp(ctx, false); err != nil {
			return err
		}
		took := time.Since(begun)
		if took < lagEnough || took > before*3/4 && before != 0 && took < lagBearable {
			return nil // what is left takes as long, or less as nothing more comes
		}
		if rounds++; rounds > lagRounds {
			return nil // as fast as they come: the switch will tell
		}
		before = took
	}
}

// catchUp follows each donor's changes up to now.
func (re *resharding) catchUp(ctx context.Context, majority bool) error {
	for _, c := range re.donors {
		at, err := c.note(ctx, majority)
		if err == nil {
			err = c.follow(ctx, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish follows all changes to their end, while none are made any more, and compares.
func (re *resharding) finish(ctx context.Context) error {
	if err := re.catchUp(ctx, true); err != nil {
		return err
	}
	if err := re.catchUpRest(ctx); err != nil {
		return err
	}
	return re.compare(ctx)
}

// keepUp takes what has changed on all donors while one is read.
func (re *resharding) keepUp(ctx context.Context) error {
	for _, c := range re.donors {
		if _, err := c.poll(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (re *resharding) close(ctx context.Context) {
	for _, c := range re.donors {
		c.close(ctx)
	}
}

// put inserts documents of a scan where they belong.
func (re *resharding) put(ctx context.Context, docs []bson.Raw) error {
	parts, err := re.byOwner(docs)
	if err != nil {
		return err
	}
	for shard, part := range parts {
		if err := re.to[shard].inTxn(ctx, func(run txnRun) error { return re.insert(run, part) }); err != nil {
			return err
		}
		re.got(shard, part)
	}
	return re.report(ctx)
}

func (re *resharding) insert(run txnRun, docs []bson.Raw) error {
	db, coll := re.m.tempNames()
	return written(run(db, bson.D{
		{Key: "insert", Value: coll},
		{Key: "documents", Value: docs},
		{Key: "bypassDocumentValidation", Value: true},
		{Key: "collectionUUID", Value: binaryUUID(re.m.row.Layout.UUID)},
	}))
}

// copyFields is the projection by which a copy's _id and origin are seen.
func (re *resharding) copyFields() bson.D {
	var fields bson.D
	for _, path := range identifying(&Entry{Table: re.old}) {
		fields = append(fields, bson.E{Key: path.Name, Value: int32(1)})
	}
	return fields
}

// copiesOf lists those of the documents, by _id, of which a recipient has the donor's copy.
func (re *resharding) copiesOf(run txnRun, donor string, ids []bson.RawValue) ([]bson.RawValue, error) {
	db, coll := re.m.tempNames()
	body, err := run(db, bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "projection", Value: re.copyFields()},
		{Key: "batchSize", Value: int32(len(ids) + 1)},
	})
	if err != nil {
		return nil, err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return nil, err
	}
	open, _, batch, err := cursorReply(info.Cursor)
	if err == nil && open != 0 {
		err = mongoerr.Newf(mongoerr.InternalError, "the keys of documents of %s are too long to be moved", re.m.row.NS)
	}
	if err != nil {
		return nil, err
	}
	docs, err := documents(batch)
	if err == nil {
		docs, err = those(docs, func(d []byte) (bool, error) { return re.isOf(d, donor) })
	}
	var found []bson.RawValue
	for _, d := range docs {
		found = append(found, d.Lookup("_id"))
	}
	return found, err
}

// remove deletes the donor's copies of documents: what is looked at and what is deleted is
// the same, by the transaction's snapshot.
func (re *resharding) remove(run txnRun, donor string, ids []bson.RawValue) error {
	ids, err := re.copiesOf(run, donor, ids)
	if err != nil || len(ids) == 0 {
		return err
	}
	db, coll := re.m.tempNames()
	return written(run(db, bson.D{
		{Key: "delete", Value: coll},
		{Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "limit", Value: int32(0)},
		}}},
		{Key: "collectionUUID", Value: binaryUUID(re.m.row.Layout.UUID)},
	}))
}

// compare compares _id and old key of all documents, if they are few enough to keep writes
// waiting for it.
func (re *resharding) compare(ctx context.Context) error {
	if copied, _ := re.counts(); re.ttl || copied > compareMax {
		return nil
	}
	seed := maphash.MakeSeed()
	var a, b digest
	for _, c := range re.donors {
		if err := a.add(ctx, re, c.from, re.m.row.NS, c.within, seed); err != nil {
			return err
		}
	}
	temp := re.m.tempNS()
	for shard := range re.to {
		if err := b.add(ctx, re, shard, temp, nil, seed); err != nil {
			return err
		}
	}
	if a != b {
		return mongoerr.Newf(mongoerr.InternalError, "the copy of %s has %d documents, the original %d, or others", re.m.row.NS, b.n, a.n)
	}
	return nil
}

// digest is a number of documents and a sum over their _ids and keys.
type digest struct {
	n   int64
	sum uint64
}

// add adds what a shard has of a collection and belongs to it.
func (d *digest) add(ctx context.Context, re *resharding, shard, ns string, belongs func([]byte) (bool, error), seed maphash.Seed) error {
	db, coll := catalog.SplitNS(ns)
	return re.m.r.drain(ctx, shard, db, bson.D{{Key: "find", Value: coll}, {Key: "projection", Value: re.copyFields()}}, func(doc bson.Raw) error {
		if belongs != nil {
			if is, err := belongs(doc); err != nil || !is {
				return err
			}
		}
		d.n++
		d.sum += maphash.Bytes(seed, doc)
		return nil
	})
}
