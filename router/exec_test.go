package router

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// overShard is a router over one fake shard with the collections d.a and d.b.
func overShard(t *testing.T, answer func(cmd wire.Doc) bson.D) *Router {
	t.Helper()
	r, _ := startRouter(t, newStore(t, fakeShard(t, answer)), "r:1", Options{})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	return r
}

// do runs find or a write as the commands package would, and returns the reply or the
// error that the client sees.
func do(t *testing.T, r *Router, prepare func(*Op), cmd ...bson.E) (bson.D, *mongoerr.Error) {
	t.Helper()
	var reply wire.Reply
	reply.Begin(nil)
	op := &Op{Cmd: &wire.Command{}, Reply: &reply, Buffers: new(wire.Buffers), Session: Session{ID: UUID{1}}}
	require.NoError(t, op.Cmd.Parse(doc(t, append(cmd, e("$db", "d"))...)))
	if prepare != nil {
		prepare(op)
	}
	run := r.Write
	switch cmd[0].Key {
	case "find":
		run = r.Find
	case "commitTransaction":
		run = r.EndTransaction
	default:
		op.Write = true
	}
	if err := run(t.Context(), op); err != nil {
		return nil, ClientError(op, err)
	}
	body, err := wire.ReplyBody(reply.Finish(1, 1, 0, nil))
	require.NoError(t, err)
	var d bson.D
	require.NoError(t, bson.Unmarshal(body, &d))
	return d, nil
}

func retryable(op *Op) { op.Txn = Txn{Number: 1, Present: true} }

var (
	oneInsert = []bson.E{e("insert", "a"), e("documents", bson.A{bson.D{e("_id", int32(1))}})}
	emptyFind = bson.D{e("cursor", bson.D{e("firstBatch", bson.A{}), e("id", int64(0)), e("ns", "d.a")}), e("ok", 1.0)}
)

// failure is an ok:0 reply as a mongod sends it to an ordinary client.
func failure(code int32) bson.D {
	return bson.D{
		e("ok", 0.0), e("errmsg", "x"), e("code", code), e("codeName", "y"),
		e("errorLabels", bson.A{"RetryableWriteError"}), e("extra", int32(7)),
	}
}

// TestMessageToTheShard is what a shard gets: the client's bytes, but what the router
// speaks for itself.
func TestMessageToTheShard(t *testing.T) {
	t.Parallel()
	got := make(chan bson.D, 1)
	r := overShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) == "find" {
			var d bson.D
			_ = bson.Unmarshal(cmd, &d)
			got <- d
			return emptyFind
		}
		return nil
	})
	r.Clock.Advance(5<<32 | 6)
	_, err := do(t, r, nil,
		e("find", "a"), e("filter", bson.D{e("x", int32(1))}), e("lsid", bson.D{e("id", "the client's")}),
		e("$clusterTime", bson.D{e("clusterTime", bson.Timestamp{T: 999})}), e("comment", "kept"))
	require.Nil(t, err)
	id, uid := UUID{1}, [32]byte{}
	require.Equal(t, bson.D{
		e("find", "a"), e("filter", bson.D{e("x", int32(1))}), e("comment", "kept"), e("$db", "d"),
		e("lsid", bson.D{e("id", bson.Binary{Subtype: 4, Data: id[:]}), e("uid", bson.Binary{Data: uid[:]})}),
		e("$clusterTime", bson.D{
			e("clusterTime", bson.Timestamp{T: 5, I: 6}),
			e("signature", bson.D{e("hash", bson.Binary{Data: make([]byte, 20)}), e("keyId", int64(0))}),
		}),
	}, <-got)
}

// TestErrorsOfShards are not to make a driver think ill of the router (MONGOS.md §5.1,
// §5.2).
func TestErrorsOfShards(t *testing.T) {
	t.Parallel()
	var code atomic.Int32
	r := overShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "find", "insert":
			return failure(code.Load())
		}
		return nil
	})
	for _, c := range []struct{ shard, client int32 }{{2, 2}, {11000, 11000}, {189, 6}, {91, 6}, {11600, 6}, {11602, 6}} {
		code.Store(c.shard)
		_, err := do(t, r, nil, oneInsert...)
		require.NotNil(t, err)
		require.Equal(t, mongoerr.Code(c.client), err.Code, "%d", c.shard)
		require.Empty(t, err.Labels, "the router retries by itself")
		require.Contains(t, string(err.Extra), "extra")
		require.NotContains(t, string(err.Extra), "Label")
	}
}

// TestStepDown: what a member refused because it is no primary is asked again, reads and
// writes that can be recognised are, too; other writes that may have run are not.
func TestStepDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		code    int32
		prepare func(*Op)
		cmd     []bson.E
		calls   int32
		want    mongoerr.Code
	}{
		{"find refused", 10107, nil, []bson.E{e("find", "a")}, 3, 0},
		{"find interrupted", 11602, nil, []bson.E{e("find", "a")}, 3, 0},
		{"insert refused", 10107, nil, oneInsert, 3, 0},
		{"insert interrupted", 11602, nil, oneInsert, 1, 6},
		{"retryable insert interrupted", 11602, retryable, oneInsert, 3, 0},
		{"bad insert", 2, retryable, oneInsert, 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			r := overShard(t, func(cmd wire.Doc) bson.D {
				el, _ := cmd.First()
				switch name := string(el.Name); {
				case name != "find" && name != "insert":
					return nil
				case calls.Add(1) < 3:
					return failure(c.code)
				case name == "find":
					return emptyFind
				}
				return bson.D{e("n", int32(1)), e("ok", 1.0)}
			})
			_, err := do(t, r, c.prepare, c.cmd...)
			require.Equal(t, c.calls, calls.Load())
			if c.want == 0 {
				require.Nil(t, err)
				return
			}
			require.NotNil(t, err)
			require.Equal(t, c.want, err.Code)
		})
	}
}

// TestWriteConcernErrorOfAStepDown: a driver reads this code, too.
func TestWriteConcernErrorOfAStepDown(t *testing.T) {
	t.Parallel()
	r := overShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) != "insert" {
			return nil
		}
		return bson.D{
			e("n", int32(1)),
			e("writeConcernError", bson.D{e("code", int32(11602)), e("codeName", "InterruptedDueToReplStateChange"), e("errmsg", "stepped down"), e("errInfo", bson.D{})}),
			e("ok", 1.0), e("operationTime", bson.Timestamp{T: 1}),
		}
	})
	d, err := do(t, r, nil, oneInsert...)
	require.Nil(t, err)
	require.Equal(t, bson.D{
		e("n", int32(1)),
		e("writeConcernError", bson.D{e("code", int32(6)), e("codeName", "HostUnreachable"), e("errmsg", "stepped down"), e("errInfo", bson.D{})}),
		e("ok", 1.0),
	}, d)
}

// TestTableOlderThanTheCollection: the shard says 361, the router loads and tries once
// more.
func TestTableOlderThanTheCollection(t *testing.T) {
	t.Parallel()
	for _, heals := range []bool{true, false} {
		var calls atomic.Int32
		r := overShard(t, func(cmd wire.Doc) bson.D {
			if el, _ := cmd.First(); string(el.Name) != "insert" {
				return nil
			}
			if calls.Add(1) == 1 || !heals {
				return bson.D{e("n", int32(0)), e("writeErrors", bson.A{bson.D{e("index", int32(0)), e("code", int32(361)), e("errmsg", "other uuid")}}), e("ok", 1.0)}
			}
			return bson.D{e("n", int32(1)), e("ok", 1.0)}
		})
		d, err := do(t, r, nil, oneInsert...)
		require.Equal(t, int32(2), calls.Load())
		if heals {
			require.Nil(t, err)
			require.Equal(t, bson.D{e("n", int32(1)), e("ok", 1.0)}, d)
			continue
		}
		require.NotNil(t, err)
		require.Equal(t, mongoerr.CollectionUUIDMismatch, err.Code)
	}
}

// TestCursorOfOneShard: the client gets the router's id, the shard its own.
func TestCursorOfOneShard(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	r := overShard(t, func(cmd wire.Doc) bson.D {
		batch := bson.A{bson.D{e("x", int32(1))}}
		switch el, _ := cmd.First(); string(el.Name) {
		case "find":
			return bson.D{e("cursor", bson.D{e("firstBatch", batch), e("id", int64(4711)), e("ns", "d.a")}), e("ok", 1.0)}
		case "getMore":
			id, _ := el.Int64()
			asked.Store(id)
			return bson.D{e("cursor", bson.D{e("nextBatch", batch), e("id", int64(0)), e("ns", "d.a")}), e("ok", 1.0)}
		}
		return nil
	})
	d, cerr := do(t, r, nil, e("find", "a"))
	require.Nil(t, cerr)
	id := d[0].Value.(bson.D)[1].Value.(int64)
	require.Equal(t, int64(r.Self().Number), id>>routerBits)
	require.Equal(t, 1, r.OpenCursors())

	var reply wire.Reply
	reply.Begin(nil)
	op := &Op{Cmd: &wire.Command{}, Reply: &reply, Buffers: new(wire.Buffers), Session: Session{ID: UUID{1}}}
	require.NoError(t, op.Cmd.Parse(doc(t, e("getMore", id), e("collection", "a"), e("$db", "d"))))
	require.NoError(t, r.GetMore(t.Context(), op))
	require.Equal(t, int64(4711), asked.Load())
	require.Zero(t, r.OpenCursors())
}

// TestInterruptedByTheTimeLimit: what a shard stopped because the time was up is 50, what
// somebody else stopped is not.
func TestInterruptedByTheTimeLimit(t *testing.T) {
	t.Parallel()
	reply := doc(t, e("ok", 0.0), e("errmsg", "interrupted"), e("code", int32(11601)))
	late, early := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	for deadline, want := range map[time.Time]mongoerr.Code{{}: 11601, early: 11601, late: 50} {
		require.Equal(t, want, shardError(&Op{Deadline: deadline}, reply).Code)
	}
}
