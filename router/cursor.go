package router

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// routerBits is how many bits of a cursor id are not the router's number.
const routerBits = 48

// Cursor is a client's open cursor: one shard's, whose replies pass through, or a
// merge of several.
type Cursor struct {
	ID        int64
	NS        string
	Session   Session
	TxnNumber int64  // -1 outside transactions
	api       string // apiArguments of the command that made it

	noTimeout bool
	single    bool          // there is one batch, the first
	mayMiss   bool          // allowPartialResults: shards that cannot be reached are left out
	missed    bool          // one was
	buffers   *wire.Buffers // that the parts' are lent from
	parts     []*part
	marks     bool   // shards mark what they do not own
	order     []bool // nil: unsorted; else per sort field whether it descends
	skip      int64  // documents still to pass over
	limit     int64  // documents still to give; -1: no limit
	batch     int64  // what the client asked for last; shards need not give more at once

	atTime uint64 // of a snapshot read, shown in the reply
	passes bool   // one shard's, whose replies pass through; else this is a merge

	watches *Entry // of a change stream: the collection
	reads   *Entry // by which it reads its collection, and which counts it while it is open

	busy     bool      // guarded by the table's mu
	lastUsed time.Time // guarded by the table's mu
}

// part is one shard's cursor with the documents fetched and not yet given.
type part struct {
	shard, addr string
	id          int64  // 0: the shard has no more
	coll        string // of getMore
	db          string // of getMore; "" is the cursor's own
	buf         *[]byte
	rest        []byte // array elements not yet given
	first       first  // of rest
	spilled     string // temporary collection that the cursor reads, to be dropped at its end
}

func (p *part) database(c *Cursor) string {
	if p.db != "" {
		return p.db
	}
	return dbOf(c.NS)
}

// misses reports whether the cursor goes on without a shard that failed in this way.
func (c *Cursor) misses(err error) bool {
	miss := c.mayMiss && isUnreachable(err)
	c.missed = c.missed || miss
	return miss
}

// cursorTable holds the open cursors of this router.
type cursorTable struct {
	timeout time.Duration
	closed  func(*Entry) // is told when the last cursor of an entry is closed
	mu      sync.Mutex
	open    map[int64]*Cursor // guarded by mu
}

func (t *cursorTable) init(timeout time.Duration, closed func(*Entry)) {
	t.timeout, t.closed = timeout, closed
	t.open = map[int64]*Cursor{}
}

// add gives the cursor an id that begins with the router's number.
func (t *cursorTable) add(router int, c *Cursor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c.ID == 0 || t.open[c.ID] != nil {
		var b [8]byte
		rand.Read(b[:])
		c.ID = int64(router)<<routerBits | int64(binary.LittleEndian.Uint64(b[:])&(1<<routerBits-1))
	}
	c.lastUsed = time.Now()
	t.open[c.ID] = c
	if c.reads != nil {
		c.reads.cursors.Add(1)
	}
}

// unread ends that a cursor reads: nobody has it any more.
func (t *cursorTable) unread(c *Cursor) {
	if c.reads != nil && c.reads.cursors.Add(-1) == 0 {
		t.closed(c.reads)
	}
	c.reads = nil
}

// checkOut takes a cursor for exclusive use: 43 if there is none, 143 if it is in
// use.
func (t *cursorTable) checkOut(id int64) (*Cursor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[id]
	if c == nil {
		return nil, mongoerr.Newf(mongoerr.CursorNotFound, "cursor id %d not found", id)
	}
	if c.busy {
		return nil, mongoerr.Newf(mongoerr.CursorInUse, "cursor id %d is already in use", id)
	}
	c.busy = true
	return c, nil
}

// checkIn gives a cursor back, or removes it when it is done; killed reports that
// it was killed meanwhile and its shard cursors are the caller's to close.
func (t *cursorTable) checkIn(c *Cursor, done bool) (killed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.busy, c.lastUsed = false, time.Now()
	killed = t.open[c.ID] != c
	if done {
		delete(t.open, c.ID)
	}
	if done || killed {
		t.unread(c)
	}
	return killed && !done
}

// remove takes a cursor out of the table; busy ones are closed by whoever has them.
func (t *cursorTable) remove(id int64) (c *Cursor, busy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c = t.open[id]
	delete(t.open, id)
	if c != nil && !c.busy {
		t.unread(c)
	}
	return c, c != nil && c.busy
}

// expire removes cursors that were idle for too long.
func (t *cursorTable) expire(kill func(*Cursor)) {
	t.mu.Lock()
	var old []*Cursor
	for id, c := range t.open {
		if !c.busy && !c.noTimeout && time.Since(c.lastUsed) > t.timeout {
			old = append(old, c)
			delete(t.open, id)
			t.unread(c)
		}
	}
	t.mu.Unlock()
	for _, c := range old {
		kill(c)
	}
}

// removeSession removes the idle cursors of a session that has ended.
func (t *cursorTable) removeSession(id UUID) []*Cursor {
	t.mu.Lock()
	defer t.mu.Unlock()
	var gone []*Cursor
	for cid, c := range t.open {
		if c.Session.ID == id {
			delete(t.open, cid)
			if !c.busy {
				gone = append(gone, c)
				t.unread(c)
			}
		}
	}
	return gone
}

// Count returns how many cursors are open.
func (t *cursorTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// OpenCursors returns how many cursors this router holds.
func (r *Router) OpenCursors() int { return r.cursors.count() }

// killShardCursors closes what a cursor still holds open on shards, behind the
// client's back: a cursor that is already gone is no error.
func (r *Router) killShardCursors(ctx context.Context, c *Cursor) {
	for _, p := range c.parts {
		c.buffers.Put(p.buf)
		p.buf, p.rest, p.first = nil, nil, first{}
		if p.spilled != "" {
			r.dropSpilled(ctx, p.shard, p.spilled)
			p.spilled = ""
		}
		if p.id == 0 {
			continue
		}
		shard, id := p, p.id
		p.id = 0
		r.wg.Go(func() { r.killShardCursor(context.WithoutCancel(ctx), c, shard, id) })
	}
}

func (r *Router) killShardCursor(ctx context.Context, c *Cursor, p *part, id int64) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b := r.Shard(p.shard)
	if b == nil {
		return
	}
	elems := bsoncore.AppendStringElement(nil, "killCursors", p.coll)
	elems = bsoncore.AppendArrayElement(elems, "cursors", bsoncore.NewArrayBuilder().AppendInt64(id).Build())
	elems = appendSession(elems, &c.Session)
	if _, err := b.RunAt(ctx, p.addr, p.database(c), elems); err != nil {
		r.log.Debug().Err(err).Str("shard", p.shard).Msg("kill cursor")
	}
}

func dbOf(ns string) string {
	for i := range len(ns) {
		if ns[i] == '.' {
			return ns[:i]
		}
	}
	return ns
}

// cursorReply reads id, namespace and batch of a shard's cursor element.
func cursorReply(e wire.Elem) (id int64, coll string, batch []byte, err error) {
	d, _ := e.Doc()
	it := d.Iter()
	var f wire.Elem
	for it.Next(&f) {
		switch string(f.Name) {
		case "id":
			id, _ = f.Int64()
		case "ns":
			ns, _ := f.Str()
			coll = ns[min(len(dbOf(ns))+1, len(ns)):]
		case "firstBatch", "nextBatch":
			if f.Type == bson.TypeArray && len(f.Value) >= 5 {
				batch = f.Value[4 : len(f.Value)-1]
			}
		}
	}
	return id, coll, batch, it.Err()
}

// checkCursor refuses a getMore that does not belong to the cursor's session or
// transaction (MONGOS.md §3.2), or names another collection (13, as mongod).
func checkCursor(op *Op, c *Cursor, ns string) error {
	switch {
	case c.NS != ns:
		return mongoerr.Newf(mongoerr.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", ns, c.NS)
	case c.Session.Implicit && !op.Session.Implicit:
		return mongoerr.Newf(50799, "Cannot run getMore on cursor %d, which was not created in a session, in session %x", c.ID, op.Session.ID)
	case !c.Session.Implicit && op.Session.Implicit:
		return mongoerr.Newf(50800, "Cannot run getMore on cursor %d, which was created in session %x, without an lsid", c.ID, c.Session.ID)
	case !c.Session.Implicit && c.Session.ID != op.Session.ID:
		return mongoerr.Newf(50801, "Cannot run getMore on cursor %d, which was created in session %x, in session %x", c.ID, c.Session.ID, op.Session.ID)
	case c.TxnNumber < 0 && op.Txn.InTxn:
		return mongoerr.Newf(50802, "Cannot run getMore on cursor %d, which was not created in a transaction, in a transaction", c.ID)
	case c.TxnNumber >= 0 && !op.Txn.InTxn:
		return mongoerr.Newf(50803, "Cannot run getMore on cursor %d, which was created in a transaction, without a txnNumber", c.ID)
	case c.TxnNumber >= 0 && c.TxnNumber != op.Txn.Number:
		return mongoerr.Newf(50804, "Cannot run getMore on cursor %d, which was created in transaction %d, in transaction %d", c.ID, c.TxnNumber, op.Txn.Number)
	}
	if used := apiArguments(op); used != c.api {
		return mongoerr.Newf(mongoerr.APIMismatchError, "API parameter mismatch: getMore used params %s, the cursor-creating command used %s", used, c.api)
	}
	return nil
}
