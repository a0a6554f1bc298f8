package router

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func newTable(timeout time.Duration) *cursorTable {
	var t cursorTable
	t.init(timeout, func(*Entry) {})
	return &t
}

func TestCursorIDsCarryTheRoutersNumber(t *testing.T) {
	t.Parallel()
	table := newTable(time.Hour)
	seen := map[int64]bool{}
	for _, router := range []int{1, 2, 32767} {
		for range 100 {
			c := &Cursor{}
			table.add(router, c)
			require.Positive(t, c.ID)
			require.Equal(t, int64(router), c.ID>>routerBits)
			require.False(t, seen[c.ID])
			seen[c.ID] = true
		}
	}
	require.Equal(t, 300, table.count())
}

func TestCursorIsForOneAtATime(t *testing.T) {
	t.Parallel()
	table := newTable(time.Hour)
	c := &Cursor{}
	table.add(1, c)
	_, err := table.checkOut(c.ID + 1)
	requireCode(t, 43, err)
	got, err := table.checkOut(c.ID)
	require.NoError(t, err)
	require.Same(t, c, got)
	_, err = table.checkOut(c.ID)
	requireCode(t, 143, err)
	require.False(t, table.checkIn(c, false))
	_, err = table.checkOut(c.ID)
	require.NoError(t, err)
	require.False(t, table.checkIn(c, true))
	_, err = table.checkOut(c.ID)
	requireCode(t, 43, err)
	require.Zero(t, table.count())

	// Of many who ask for one, one gets it.
	table.add(1, c)
	var got1, busy atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := table.checkOut(c.ID); err == nil {
				got1.Add(1)
			} else {
				busy.Add(1)
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(1), got1.Load())
	require.Equal(t, int64(15), busy.Load())
}

func TestCursorKilledWhileBusy(t *testing.T) {
	t.Parallel()
	table := newTable(time.Hour)
	c := &Cursor{}
	table.add(1, c)
	_, err := table.checkOut(c.ID)
	require.NoError(t, err)
	got, busy := table.remove(c.ID)
	require.Same(t, c, got)
	require.True(t, busy)
	require.True(t, table.checkIn(c, false), "whoever has it closes the shards' cursors")
	_, err = table.checkOut(c.ID)
	requireCode(t, 43, err)
	got, busy = table.remove(c.ID)
	require.Nil(t, got)
	require.False(t, busy)
}

func TestCursorsExpire(t *testing.T) {
	t.Parallel()
	table := newTable(time.Minute)
	old, busy, kept, fresh := &Cursor{}, &Cursor{}, &Cursor{noTimeout: true}, &Cursor{}
	for _, c := range []*Cursor{old, busy, kept, fresh} {
		table.add(1, c)
	}
	_, err := table.checkOut(busy.ID)
	require.NoError(t, err)
	for _, c := range []*Cursor{old, busy, kept} {
		c.lastUsed = time.Now().Add(-time.Hour)
	}
	var gone []*Cursor
	table.expire(func(c *Cursor) { gone = append(gone, c) })
	require.Equal(t, []*Cursor{old}, gone)
	require.Equal(t, 3, table.count())
	table.checkIn(busy, false)
	table.expire(func(*Cursor) { require.Fail(t, "it was used just now") })
}

func TestCursorsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	table := newTable(time.Hour)
	mine, others, busy := &Cursor{Session: Session{ID: UUID{1}}}, &Cursor{Session: Session{ID: UUID{2}}}, &Cursor{Session: Session{ID: UUID{1}}}
	for _, c := range []*Cursor{mine, others, busy} {
		table.add(1, c)
	}
	_, err := table.checkOut(busy.ID)
	require.NoError(t, err)
	require.Equal(t, []*Cursor{mine}, table.removeSession(UUID{1}))
	require.Equal(t, 1, table.count())
	require.True(t, table.checkIn(busy, false), "closed by whoever has it")
}

func TestCheckCursor(t *testing.T) {
	t.Parallel()
	session, other := Session{ID: UUID{1}}, Session{ID: UUID{2}}
	none, none2 := Session{ID: UUID{3}, Implicit: true}, Session{ID: UUID{4}, Implicit: true}
	txn := func(n int64) Txn { return Txn{Number: n, Present: true, InTxn: true} }
	for _, c := range []struct {
		name   string
		cursor Cursor
		op     Op
		code   mongoerr.Code
	}{
		{"same session", Cursor{NS: "d.c", Session: session, TxnNumber: -1}, Op{Session: session}, 0},
		{"no sessions", Cursor{NS: "d.c", Session: none, TxnNumber: -1}, Op{Session: none2}, 0},
		{"same transaction", Cursor{NS: "d.c", Session: session, TxnNumber: 5}, Op{Session: session, Txn: txn(5)}, 0},
		{"other collection", Cursor{NS: "d.x", Session: session, TxnNumber: -1}, Op{Session: session}, 13},
		{"session for one without", Cursor{NS: "d.c", Session: none, TxnNumber: -1}, Op{Session: session}, 50799},
		{"none for one with", Cursor{NS: "d.c", Session: session, TxnNumber: -1}, Op{Session: none}, 50800},
		{"other session", Cursor{NS: "d.c", Session: session, TxnNumber: -1}, Op{Session: other}, 50801},
		{"transaction for one without", Cursor{NS: "d.c", Session: session, TxnNumber: -1}, Op{Session: session, Txn: txn(0)}, 50802},
		{"none for one in a transaction", Cursor{NS: "d.c", Session: session, TxnNumber: 0}, Op{Session: session}, 50803},
		{"other transaction", Cursor{NS: "d.c", Session: session, TxnNumber: 5}, Op{Session: session, Txn: txn(6)}, 50804},
		{"other API", Cursor{NS: "d.c", Session: session, TxnNumber: -1, api: `{ apiVersion: "1" }`}, Op{Session: session}, 347},
	} {
		c.op.Cmd = &wire.Command{}
		if c.cursor.api == "" {
			c.cursor.api = "{}"
		}
		err := checkCursor(&c.op, &c.cursor, "d.c")
		if c.code == 0 {
			require.NoError(t, err, c.name)
			continue
		}
		require.Error(t, err, c.name)
		requireCode(t, c.code, err)
	}
}

func TestCursorReply(t *testing.T) {
	t.Parallel()
	d := doc(t, e("cursor", bson.D{e("id", int64(9)), e("ns", "d.c.with.dots"), e("nextBatch", bson.A{bson.D{}, bson.D{e("a", int32(1))}})}))
	el, _ := d.First()
	id, coll, batch, err := cursorReply(el)
	require.NoError(t, err)
	require.Equal(t, int64(9), id)
	require.Equal(t, "c.with.dots", coll)
	p := part{rest: batch}
	for range 2 {
		require.NoError(t, p.look(false))
		p.pop()
	}
	require.Empty(t, p.rest)

	el, _ = doc(t, e("cursor", bson.D{e("id", int64(9)), e("ns", "nodots"), e("firstBatch", "x")})).First()
	_, coll, batch, err = cursorReply(el)
	require.NoError(t, err)
	require.Empty(t, coll)
	require.Empty(t, batch)
}
