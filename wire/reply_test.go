package wire

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

func TestReplyFinish(t *testing.T) {
	t.Parallel()
	var r Reply
	r.Begin(make([]byte, 0, 10))
	require.True(t, r.Empty())
	r.Int32("n", 5)
	require.False(t, r.Empty())
	r.OK()
	msg := r.Finish(3, 4, 0, nil)
	h := ParseHeader(msg)
	require.Equal(t, Header{Length: int32(len(msg)), RequestID: 3, ResponseTo: 4, OpCode: OpMsg}, h)
	got, err := ReplyBody(msg)
	require.NoError(t, err)
	require.Equal(t, doc(t, e("n", int32(5)), e("ok", 1.0)), got)
}

func TestReplyTimes(t *testing.T) {
	t.Parallel()
	clock := &ClusterTime{Time: 7<<32 | 3, KeyID: 9, Hash: [20]byte{1, 2, 3}}
	for shard, op := range map[uint64]bson.Timestamp{0: {T: 7, I: 3}, 5<<32 | 8: {T: 5, I: 8}} {
		var r Reply
		r.Begin(nil)
		r.OK()
		r.ShardTime = shard
		got, err := ReplyBody(r.Finish(1, 2, 0, clock))
		require.NoError(t, err)
		require.Equal(t, doc(t, e("ok", 1.0),
			e("$clusterTime", bson.D{
				{Key: "clusterTime", Value: bson.Timestamp{T: 7, I: 3}},
				{Key: "signature", Value: bson.D{{Key: "hash", Value: bson.Binary{Data: clock.Hash[:]}}, {Key: "keyId", Value: int64(9)}}},
			}),
			e("operationTime", op)), got)
	}
}

func TestReplyChecksum(t *testing.T) {
	t.Parallel()
	var r Reply
	r.Begin(nil)
	r.OK()
	var m Msg
	require.NoError(t, ParseMsg(r.Finish(1, 2, FlagChecksum|FlagMoreToCome, nil), &m))
	require.Equal(t, FlagChecksum|FlagMoreToCome, m.Flags)
	require.Equal(t, doc(t, e("ok", 1.0)), m.Body)
}

func TestReplyError(t *testing.T) {
	t.Parallel()
	var r Reply
	r.Begin(nil)
	r.Int32("n", 1)
	r.Error(mongoerr.New(mongoerr.BadValue, "no"))
	got, err := ReplyBody(r.Finish(1, 2, 0, nil))
	require.NoError(t, err)
	require.Equal(t, doc(t, e("ok", 0.0), e("errmsg", "no"), e("code", int32(2)), e("codeName", "BadValue")), got)
}

func TestAsQueryReply(t *testing.T) {
	t.Parallel()
	var r Reply
	r.Begin(nil)
	r.OK()
	msg := AsQueryReply(nil, r.Finish(3, 4, 0, nil), ReplyQueryFailure)
	require.Equal(t, Header{Length: int32(len(msg)), RequestID: 3, ResponseTo: 4, OpCode: OpReply}, ParseHeader(msg))
	require.Equal(t, ReplyQueryFailure, binary.LittleEndian.Uint32(msg[16:]))
	require.Equal(t, make([]byte, 12), msg[20:32], "cursor id and offset")
	require.Equal(t, uint32(1), binary.LittleEndian.Uint32(msg[32:]))
	require.Equal(t, doc(t, e("ok", 1.0)), Doc(msg[36:]))
}

// shardReply is a reply as a member of a replica set sends it, with its own affairs
// between what a client is to see.
func shardReply(t *testing.T) (msg []byte, kept Doc) {
	t.Helper()
	cursor := e("cursor", bson.D{
		{Key: "firstBatch", Value: bson.A{bson.D{{Key: "_id", Value: int32(1)}, {Key: "operationTime", Value: "mine"}}}},
		{Key: "id", Value: int64(77)},
		{Key: "ns", Value: "d.c"},
	})
	errs := e("writeErrors", bson.A{bson.D{{Key: "index", Value: int32(0)}, {Key: "code", Value: int32(11000)}}})
	wc := e("writeConcernError", bson.D{{Key: "code", Value: int32(64)}})
	n, ok := e("n", int32(3)), e("ok", 1.0)
	clock := e("$clusterTime", bson.D{
		{Key: "clusterTime", Value: bson.Timestamp{T: 9, I: 1}},
		{Key: "signature", Value: bson.D{{Key: "hash", Value: make([]byte, 20)}, {Key: "keyId", Value: int64(0)}}},
	})
	d := doc(t,
		e("electionId", bson.NewObjectID()), cursor, e("opTime", bson.D{{Key: "ts", Value: bson.Timestamp{T: 1}}}),
		errs, e("topologyVersion", bson.D{}), wc, n, e("$configTime", int32(1)), e("errorLabels", bson.A{"RetryableWriteError"}),
		ok, clock, e("operationTime", bson.Timestamp{T: 8, I: 2}),
	)
	return opMsg(0, body(d)), doc(t, cursor, errs, wc, n, ok)
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	msg, kept := shardReply(t)
	var r Reply
	r.Begin(make([]byte, 0, 333))
	mine := &r.Elems[0]
	r.ShardTime = 1
	old, info, err := r.Adopt(msg)
	require.NoError(t, err)
	require.Same(t, mine, &old[0], "the buffer is the caller's again")
	require.True(t, info.OK)
	require.Equal(t, uint64(8<<32|2), info.OperationTime)
	require.Equal(t, uint64(9<<32|1), info.ClusterTime)
	require.Equal(t, info.OperationTime, r.ShardTime)

	// What is patched through info must be in the reply.
	at := CursorIDOffset(info.Cursor.Value)
	require.GreaterOrEqual(t, at, 0)
	require.Equal(t, int64(77), int64(binary.LittleEndian.Uint64(info.Cursor.Value[at:])))
	binary.LittleEndian.PutUint64(info.Cursor.Value[at:], 78)
	code, ok := Doc(info.WriteErrors.Value).Lookup("0")
	require.True(t, ok, "not overwritten by what moved")
	require.Equal(t, bson.TypeEmbeddedDocument, code.Type)
	wc, ok := info.WCError.Doc()
	require.True(t, ok)
	_, ok = wc.Lookup("code")
	require.True(t, ok)

	got, err := ReplyBody(r.Finish(1, 2, 0, nil))
	require.NoError(t, err)
	want := slices.Clone([]byte(kept))
	c, ok := Doc(want).Lookup("cursor")
	require.True(t, ok)
	binary.LittleEndian.PutUint64(c.Value[CursorIDOffset(c.Value):], 78)
	require.Equal(t, Doc(want), got)
}

func TestAdoptKeepsTheGreatestTime(t *testing.T) {
	t.Parallel()
	var r Reply
	r.Begin(nil)
	r.ShardTime = 1 << 60
	msg, _ := shardReply(t)
	_, _, err := r.Adopt(msg)
	require.NoError(t, err)
	require.Equal(t, uint64(1<<60), r.ShardTime)
}

func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	good, _ := shardReply(t)
	bad := slices.Clone(good)
	bad[MsgBodyAt+4] = 0x55 // no type
	for _, msg := range [][]byte{nil, good[:30], bad} {
		var r Reply
		r.Begin(nil)
		r.Int32("n", 1)
		_, _, err := r.Adopt(msg)
		require.Error(t, err)
		r.Error(mongoerr.New(1, "still ours"))
		_, err = ReplyBody(r.Finish(1, 2, 0, nil))
		require.NoError(t, err)
	}
}

func TestInspectError(t *testing.T) {
	t.Parallel()
	info, err := Inspect(doc(t, e("ok", 0.0), e("errmsg", "no"), e("code", int32(11602)), e("codeName", "x")))
	require.NoError(t, err)
	require.False(t, info.OK)
	require.Equal(t, mongoerr.InterruptedDueToReplStateChange, info.Code)
	text, _ := info.Errmsg.Str()
	require.Equal(t, "no", text)
	_, err = Inspect(Doc{1, 2})
	require.ErrorIs(t, err, ErrMalformed)
}

func TestCursorIDOffset(t *testing.T) {
	t.Parallel()
	d := doc(t, e("firstBatch", bson.A{bson.D{{Key: "id", Value: int64(1)}}}), e("id", int64(-5)), e("ns", "d.c"))
	at := CursorIDOffset(d)
	require.Equal(t, int64(-5), int64(binary.LittleEndian.Uint64(d[at:])))
	require.Equal(t, -1, CursorIDOffset(doc(t, e("id", int32(5)))))
	require.Equal(t, -1, CursorIDOffset(doc(t, e("ns", "x"))))
	require.Equal(t, -1, CursorIDOffset(nil))
}

func TestClusterTimeRoundTrip(t *testing.T) {
	t.Parallel()
	want := ClusterTime{Time: 1<<63 | 5, KeyID: -3}
	for i := range want.Hash {
		want.Hash[i] = byte(200 + i)
	}
	el, n := FirstElem(AppendClusterTime(nil, &want))
	require.NotZero(t, n)
	require.Equal(t, "$clusterTime", string(el.Name))
	got, ok := ReadClusterTime(el)
	require.True(t, ok)
	require.Equal(t, want, got)
}

func TestReadClusterTimeOfClients(t *testing.T) {
	t.Parallel()
	at := bson.Timestamp{T: 3, I: 4}
	for _, c := range []struct {
		value any
		want  ClusterTime
		ok    bool
	}{
		{bson.D{{Key: "clusterTime", Value: at}}, ClusterTime{Time: 3<<32 | 4}, true},
		{bson.D{{Key: "clusterTime", Value: at}, {Key: "signature", Value: "none"}}, ClusterTime{Time: 3<<32 | 4}, true},
		{bson.D{{Key: "clusterTime", Value: at}, {Key: "signature", Value: bson.D{{Key: "hash", Value: []byte{1}}, {Key: "keyId", Value: "x"}}}}, ClusterTime{Time: 3<<32 | 4}, true},
		{bson.D{{Key: "clusterTime", Value: int64(5)}}, ClusterTime{}, false},
		{bson.D{}, ClusterTime{}, false},
		{"no", ClusterTime{}, false},
	} {
		el, ok := doc(t, e("x", c.value)).First()
		require.True(t, ok)
		got, ok := ReadClusterTime(el)
		require.Equal(t, c.ok, ok, "%v", c.value)
		require.Equal(t, c.want, got, "%v", c.value)
	}
}

func TestRequestIDsSkipZero(t *testing.T) {
	t.Parallel()
	var ids RequestIDs
	require.Equal(t, int32(1), ids.Next())
	ids.last.Store(-1)
	require.Equal(t, int32(1), ids.Next())
}

func TestReplyHas(t *testing.T) {
	t.Parallel()
	var r Reply
	r.Begin(nil)
	require.False(t, r.Has("n"))
	r.Int32("n", 1)
	r.Doc("inner", doc(t, e("writeErrors", int32(1))))
	require.True(t, r.Has("n"))
	require.True(t, r.Has("inner"))
	require.False(t, r.Has("writeErrors"))
}
