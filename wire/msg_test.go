package wire

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

func TestParseMsgSectionsInAnyOrder(t *testing.T) {
	t.Parallel()
	cmd := doc(t, e("insert", "c"), e("$db", "d"))
	one, two := doc(t, e("_id", int32(1))), doc(t, e("_id", int32(2)))
	docs, deletes := seq("documents", one, two), seq("deletes", one)
	for _, order := range [][][]byte{
		{body(cmd), docs, deletes},
		{docs, body(cmd), deletes},
		{deletes, docs, body(cmd)},
	} {
		var m Msg
		require.NoError(t, ParseMsg(opMsg(0, order...), &m))
		require.Equal(t, cmd, m.Body)
		require.Equal(t, 2, m.NSeqs)
		got, ok := m.Sequence("documents")
		require.True(t, ok)
		require.Equal(t, slices.Concat([]byte(one), []byte(two)), got)
		got, ok = m.Sequence("deletes")
		require.True(t, ok)
		require.Equal(t, []byte(one), got)
		_, ok = m.Sequence("updates")
		require.False(t, ok)
		require.Equal(t, int32(7), m.RequestID)
	}
}

func TestParseMsgFlags(t *testing.T) {
	t.Parallel()
	ping := body(doc(t, e("ping", int32(1))))
	for flags, ok := range map[uint32]bool{
		0: true, FlagMoreToCome: true, FlagExhaustAllowed: true, FlagChecksum: true,
		FlagChecksum | FlagMoreToCome: true,
		1 << 17:                       true, 1 << 31: true, // optional ones that nobody knows
		1 << 2: false, 1 << 15: false, FlagChecksum | 1<<8: false,
	} {
		var m Msg
		err := ParseMsg(opMsg(flags, ping), &m)
		if !ok {
			require.ErrorIs(t, err, ErrProtocol, "%#x", flags)
			continue
		}
		require.NoError(t, err, "%#x", flags)
		require.Equal(t, flags, m.Flags)
		require.Equal(t, flags&FlagMoreToCome != 0, m.MoreToCome())
	}
}

func TestParseMsgChecksum(t *testing.T) {
	t.Parallel()
	// "123456789" has a well known CRC-32C.
	require.Equal(t, uint32(0xe3069283), Checksum([]byte("123456789")))
	good := opMsg(FlagChecksum, body(doc(t, e("ping", int32(1)))))
	var m Msg
	require.NoError(t, ParseMsg(good, &m))
	for i := range good {
		if i >= HeaderLen && i < HeaderLen+4 {
			continue // flags: the checksum might not be looked at
		}
		bad := slices.Clone(good)
		bad[i] ^= 0x40
		require.ErrorIs(t, ParseMsg(bad, &m), ErrProtocol, "byte %d", i)
	}
	b := AppendHeader(nil, 1, 0, OpMsg)
	require.ErrorIs(t, ParseMsg(append(b, 1, 0, 0, 0), &m), ErrProtocol, "no room")
	require.ErrorIs(t, ParseMsg(append(b, 1, 0, 0, 0, 9, 9, 9), &m), ErrProtocol, "no room")
}

func TestParseMsgRefuses(t *testing.T) {
	t.Parallel()
	cmd := body(doc(t, e("find", "c")))
	d := doc(t, e("_id", int32(1)))
	short := seq("documents", d)
	short = short[:len(short)-1]
	for name, c := range map[string]struct {
		code     mongoerr.Code
		sections [][]byte
	}{
		"no sections":               {40587, nil},
		"no body":                   {40587, [][]byte{seq("documents", d)}},
		"two bodies":                {40430, [][]byte{cmd, cmd}},
		"two bodies around a seq":   {40430, [][]byte{cmd, seq("documents", d), cmd}},
		"same sequence twice":       {40431, [][]byte{cmd, seq("documents", d), seq("documents", d)}},
		"same empty sequence twice": {40431, [][]byte{seq("x"), seq("x"), cmd}},
		"unknown kind":              {40432, [][]byte{cmd, {2, 5, 0, 0, 0, 0}}},
		"unknown kind alone":        {40432, [][]byte{{0xff}}},
		"body of nothing":           {22, [][]byte{{0}}},
		"body too short":            {22, [][]byte{{0, 4, 0, 0, 0}}},
		"body beyond the message":   {22, [][]byte{{0, 6, 0, 0, 0, 0}}},
		"body of negative length":   {22, [][]byte{{0, 0xff, 0xff, 0xff, 0xff, 0}}},
		"body without its end":      {22, [][]byte{{0, 5, 0, 0, 0, 1}}},
		"sequence of nothing":       {22, [][]byte{cmd, {1}}},
		"sequence beyond":           {22, [][]byte{cmd, short}},
		"sequence of length 4":      {22, [][]byte{cmd, {1, 4, 0, 0, 0, 0}}},
		"sequence without a name":   {22, [][]byte{cmd, {1, 6, 0, 0, 0, 'a', 'b'}}},
		"document cut in sequence":  {22, [][]byte{cmd, AppendSequence(nil, "documents", d[:len(d)-1])}},
		"byte after documents":      {22, [][]byte{cmd, seq("documents", d, []byte{0})}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Msg
			requireCode(t, c.code, ParseMsg(opMsg(0, c.sections...), &m))
			require.Equal(t, int32(7), m.RequestID, "the answer needs it")
		})
	}
}

func TestParseMsgTooManySequences(t *testing.T) {
	t.Parallel()
	var m Msg
	cmd := body(doc(t, e("bulkWrite", int32(1))))
	require.NoError(t, ParseMsg(opMsg(0, cmd, seq("a"), seq("b")), &m))
	require.ErrorIs(t, ParseMsg(opMsg(0, cmd, seq("a"), seq("b"), seq("c")), &m), ErrProtocol)
}

func TestParseMsgForgetsTheLast(t *testing.T) {
	t.Parallel()
	var m Msg
	require.NoError(t, ParseMsg(opMsg(FlagMoreToCome, body(doc(t, e("a", "x"))), seq("s")), &m))
	require.NoError(t, ParseMsg(opMsg(0, body(doc(t, e("b", "x")))), &m))
	require.Zero(t, m.NSeqs)
	require.False(t, m.MoreToCome())
	requireCode(t, 40587, ParseMsg(opMsg(0), &m))
}

func TestParseMsgShort(t *testing.T) {
	t.Parallel()
	msg := opMsg(0, body(doc(t, e("ping", int32(1)))))
	var m Msg
	for n := range HeaderLen + 4 {
		require.ErrorIs(t, ParseMsg(msg[:n], &m), ErrProtocol, "%d bytes", n)
	}
}

func TestParseQuery(t *testing.T) {
	t.Parallel()
	hello := doc(t, e("isMaster", int32(1)))
	head := AppendHeader(nil, 9, 0, OpQuery)
	rest := append([]byte{4, 0, 0, 0}, "admin.$cmd\x00"...)
	rest = append(rest, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	whole := slices.Concat(head, rest, hello)
	q, err := ParseQuery(whole)
	require.NoError(t, err)
	require.Equal(t, "admin.$cmd", string(q.NS))
	require.Equal(t, hello, q.Doc)
	require.Equal(t, int32(9), q.RequestID)

	q, err = ParseQuery(append(slices.Clone(whole), hello...))
	require.NoError(t, err, "a field selector may follow")
	require.Equal(t, hello, q.Doc)

	for n := range whole {
		_, err := ParseQuery(whole[:n])
		require.ErrorIs(t, err, ErrProtocol, "%d bytes", n)
	}
}

func TestReplyBody(t *testing.T) {
	t.Parallel()
	d := doc(t, e("ok", 1.0))
	msg := opMsg(0, body(d))
	got, err := ReplyBody(msg)
	require.NoError(t, err)
	require.Equal(t, d, got)
	for name, bad := range map[string][]byte{
		"short":         msg[:20],
		"cut":           msg[:len(msg)-1],
		"trailing":      append(slices.Clone(msg), 0),
		"two sections":  opMsg(0, body(d), seq("x")),
		"seq first":     opMsg(0, seq("x"), body(d)),
		"other opcode":  AsQueryReply(nil, msg, 0),
		"with checksum": opMsg(FlagChecksum, body(d)),
	} {
		_, err := ReplyBody(bad)
		require.ErrorIs(t, err, ErrProtocol, name)
	}
}
