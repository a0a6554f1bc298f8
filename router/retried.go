package router

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
)

// numberTable remembers of sessions that write to lately moved collections the last
// transaction number and the catalog's version by which it came. A client begins a number
// only when it has done with the one before, so that the next one is not a repetition of
// anything of before that version.
type numberTable struct {
	mu   sync.Mutex
	last map[sessionKey]lastNumber // guarded by mu
}

// sessionKey is a client's session with its user.
type sessionKey struct {
	id  UUID
	uid [32]byte
}

type lastNumber struct {
	number int64
	seen   catalog.Version // the catalog's when the number first came
}

// maxNumbers bounds the table: when it is full it begins anew.
const maxNumbers = 100_000

// isNew reports whether a number certainly came first after a version, and notes it; now is
// the catalog's version.
func (t *numberTable) isNew(s *Session, number int64, since, now catalog.Version) bool {
	key := sessionKey{s.ID, s.UID}
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.last[key]
	if t.last == nil || len(t.last) >= maxNumbers {
		t.last = map[sessionKey]lastNumber{}
	}
	if !known || number > last.number {
		t.last[key] = lastNumber{number, now}
	}
	return known && number > last.number && last.seen >= since
}

// earlier lists the movements of the collection, and of those that had its name before a
// rename, before which writes may have run that a client still repeats, but for those from the one shard that has it whole: that one knows
// them itself. since is the version of the catalog in which this router saw the last of them
// released.
func (s *Snapshot) earlier(e *Entry) (moves []catalog.Movement, since catalog.Version) {
	if len(s.switched[e.Coll.NS]) == 0 {
		return nil, 0
	}
	own := e.Table.Shards()
	lives := map[uuid.UUID]bool{e.Coll.UUID: true}
	for _, m := range s.switched[e.Coll.NS] {
		if m.Renamed() {
			lives[m.Collection] = true
		}
	}
	for _, m := range s.switched[e.Coll.NS] {
		if !lives[m.Collection] || time.Since(m.Since) > retriesUntil {
			continue
		}
		v, is := s.released[m.ID.String()]
		if !is {
			v = catalog.Stopped // not yet: nothing is known to be newer
		}
		since = max(since, v)
		if len(own) != 1 || own[0] != m.From || m.Layout != nil { // its key was another one
			moves = append(moves, m)
		}
	}
	return moves, since
}

// ranBefore asks former owners of what a retryable write's statements concern which of them
// ran there before it moved. They were drained then, so the answer stays true. The probe, a
// delete of what cannot be there, finds every kind of write and does nothing (PROTOCOL.md
// F13). again says that the write may be a repetition of one of before. The n statements of a
// write to an unsharded collection need not be told.
func (r *Router) ranBefore(ctx context.Context, op *Op, e *Entry, n int, stmts []statement) (ran map[int]string, again bool, err error) {
	if !op.Txn.Present || op.Txn.InTxn || e == nil {
		return nil, false, nil
	}
	moves, since := r.snap.Load().earlier(e)
	if len(moves) == 0 || r.numbers.isNew(&op.Session, op.Txn.Number, since, r.snap.Load().Version) {
		return nil, false, nil
	}
	op.reshaped = r.snap.Load().isReshaped(e)
	var asked []string
	for i := range moves {
		from := moves[i].From
		if slices.Contains(asked, from) || !concerns(e, &moves[i], stmts) {
			continue
		}
		asked = append(asked, from)
		ids, err := r.probe(ctx, op, from, n)
		if err != nil {
			return nil, true, err
		}
		for _, id := range ids {
			for i := range n {
				if clientStmtID(op, i) == id {
					if ran == nil {
						ran = map[int]string{}
					}
					ran[i] = from
				}
			}
		}
	}
	return ran, true, nil
}

// concerns reports whether some of the statements may have run where a movement came from: a
// shard that is dead must not stop writes of what was never there.
func concerns(e *Entry, m *catalog.Movement, stmts []statement) bool {
	if m.Range == nil || !e.Sharded() || m.Collection != e.Coll.UUID { // which had another key
		return true
	}
	p := e.Table.Pattern()
	for i := range stmts {
		st := &stmts[i]
		key := st.key
		if st.why == "" && st.err == nil && st.doc != nil { // an insert
			var err error
			if key, err = p.AppendKey(nil, st.doc); err != nil {
				return true
			}
		}
		if key == nil || st.way != wayDirect || holds(p, m.Range, key) {
			return true
		}
	}
	return false
}

// probe returns which statements of the command a shard knows to have run.
func (r *Router) probe(ctx context.Context, op *Op, shard string, n int) (ids []int32, err error) {
	if err := r.prepareInternal(ctx, shard); err != nil {
		return nil, err
	}
	b := bsoncore.AppendStringElement(nil, "delete", claimsColl)
	list := bsoncore.NewArrayBuilder()
	never := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "_id", "never"))
	one := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(bsoncore.AppendDocumentElement(nil, "q", never), "limit", 1))
	for range n {
		list.AppendDocument(one)
	}
	b = bsoncore.AppendArrayElement(b, "deletes", list.Build())
	b = bsoncore.AppendBooleanElement(b, "ordered", false)
	b = bsoncore.AppendInt64Element(b, "txnNumber", op.Txn.Number)
	index := make([]int, n)
	for i := range index {
		index[i] = i
	}
	b = append(b, stmtIDs(op, index)...)
	ask := *op
	ask.lost = nil // it writes nothing
	b = r.appendEnvelope(b, &ask, &patch{})
	s, err := r.exchange(ctx, &ask, shard, &backend.Request{Msg: backend.AppendCommand(nil, InternalDB, b)})
	defer r.release(op, &s)
	if err == nil && !s.info.OK {
		err = shardError(op, s.body)
	}
	if err != nil {
		return nil, err
	}
	if retried, ok := s.body.Lookup("retriedStmtIds"); ok {
		it := wire.Doc(retried.Value).Iter()
		var e wire.Elem
		for it.Next(&e) {
			id, _ := e.Int64()
			ids = append(ids, int32(id))
		}
	}
	return ids, nil
}

// sendBack has the statements that ran on a former owner sent there again: it knows them
// and answers with what they did.
//
// What was a write of one document whose shard had to be looked for may now need one shard
// alone, and the other way round, as chunks have moved, or the key is another one. Where there
// is a claim of it, that tells what was done, and what the shard knows by the client's number
// may be a mark. Inserts have none.
func (r *Router) sendBack(ctx context.Context, op *Op, e *Entry, stmts []statement, ran map[int]string, inserts bool) error {
	for i := range stmts {
		st := &stmts[i]
		shard, did := ran[i]
		if !inserts && (op.reshaped || e.Sharded() && st.mayBeClaimed()) {
			claimed, err := r.isClaimed(ctx, op, e, clientStmtID(op, i))
			if err != nil {
				return err
			}
			if claimed && st.way == wayDirect {
				st.way = waySingle
			}
			did = did && !claimed
		}
		if did {
			st.aim, st.err = aim{shards: []string{shard}, exact: true}, nil // nothing is looked for
		}
	}
	return nil
}

// mayBeClaimed reports whether a statement may have been, or be, a single write.
func (a *aim) mayBeClaimed() bool {
	return a.way != wayDirect || a.why != "" && a.why != target.WhyKey
}

// isClaimed reports whether a choice has been noted for a statement.
func (r *Router) isClaimed(ctx context.Context, op *Op, e *Entry, stmt int32) (bool, error) {
	shard := r.claimsShard(e)
	doc, err := r.noted(ctx, op, shard, claimID(op, &single{entry: e, stmt: stmt}))
	return len(doc) > 0, err
}
