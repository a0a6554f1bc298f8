package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// within reports whether part lies in whole: nothing parsed may reach beyond the
// message.
func within(whole, part []byte) bool {
	if len(part) == 0 {
		return true
	}
	start, at := uintptr(unsafe.Pointer(unsafe.SliceData(whole))), uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	return at >= start && at+uintptr(len(part)) <= start+uintptr(len(whole))
}

// answerable reports whether an error is of one of the two kinds that there may be.
func answerable(err error) bool {
	var e *mongoerr.Error
	return errors.Is(err, ErrProtocol) != errors.As(err, &e)
}

func FuzzParseMsg(f *testing.F) {
	d := doc(f, e("insert", "c"), e("$db", "d"))
	f.Add(opMsg(0, body(d)))
	f.Add(opMsg(0, seq("documents", d, d), body(d), seq("x")))
	f.Add(opMsg(FlagChecksum|FlagExhaustAllowed, body(everyType(f))))
	f.Add(opMsg(FlagMoreToCome, body(d), body(d)))
	f.Add(AsQueryReply(nil, opMsg(0, body(d)), 0))
	f.Add(append(AppendHeader(nil, 1, 0, OpQuery), "\x00\x00\x00\x00admin.$cmd\x00\x00\x00\x00\x00\x01\x00\x00\x00\x05\x00\x00\x00\x00"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Msg
		if err := ParseMsg(b, &m); err != nil {
			require.True(t, answerable(err), "%v", err)
		} else {
			require.True(t, within(b, m.Body))
			require.GreaterOrEqual(t, len(m.Body), 5)
			for _, s := range m.Seqs[:m.NSeqs] {
				require.True(t, within(b, s.Name) && within(b, s.Docs))
				for rest := s.Docs; len(rest) > 0; {
					n := int(binary.LittleEndian.Uint32(rest)) // as the router walks them
					require.LessOrEqual(t, n, len(rest))
					rest = rest[n:]
				}
			}
		}
		if q, err := ParseQuery(b); err != nil {
			require.ErrorIs(t, err, ErrProtocol)
		} else {
			require.True(t, within(b, q.NS) && within(b, q.Doc))
		}
		if d, err := ReplyBody(b); err == nil {
			require.True(t, within(b, d))
			var r Reply
			r.Begin(nil)
			if _, info, err := r.Adopt(b); err == nil {
				require.True(t, within(b, info.Cursor.Raw))
				_ = CursorIDOffset(info.Cursor.Value)
				_, err := ReplyBody(r.Finish(1, 1, 0, nil))
				require.NoError(t, err)
			}
		}
	})
}

func FuzzCommandParse(f *testing.F) {
	f.Add([]byte(doc(f, e("find", "c"), e("lsid", bson.D{}), e("$db", "d"), e("comment", int32(1)))), uint32(ArgLSID))
	f.Add([]byte(doc(f, e("ping", int32(1)), e("$db", "d"), e("$db", "d"))), ^uint32(0))
	f.Add([]byte(everyType(f)), uint32(0))
	f.Add([]byte{5, 0, 0, 0, 0}, uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, drop uint32) {
		var c Command
		if err := c.Parse(b); err != nil {
			require.NotErrorIs(t, err, ErrProtocol)
			require.NotZero(t, mongoerr.CodeOf(err))
			return
		}
		require.True(t, within(b, c.DB) && within(b, c.First.Raw))
		at, out := AppendDocStart(nil)
		out = AppendDocEnd(c.AppendWithout(out, Generic(drop)), at)
		// What is left is the same walk without the dropped arguments.
		in, left := Doc(b).Iter(), Doc(out).Iter()
		var a, z Elem
		for first := true; in.Next(&a); first = false {
			if arg := genericArg(a.Name); !first && arg&Generic(drop) != 0 {
				got, ok := c.Arg(arg)
				require.Equal(t, !a.IsNull(), ok)
				if ok {
					require.Equal(t, a.Raw, got.Raw)
				}
				continue
			}
			require.True(t, left.Next(&z))
			require.Equal(t, a.Raw, z.Raw)
		}
		require.False(t, left.Next(&z))
		require.NoError(t, left.Err())
	})
}

func FuzzReader(f *testing.F) {
	f.Add(append(message(16, 1), message(2000, 2)...), byte(1))
	f.Add(message(1024, 3)[:100], byte(7))
	f.Add([]byte{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, byte(0))
	f.Fuzz(func(t *testing.T, stream []byte, step byte) {
		r := NewReader(stepReader{bytes.NewReader(stream), int(step) + 1}, new(Buffers))
		const limit = 1 << 16
		for rest := stream; ; {
			b, err := r.Next(limit)
			if err != nil {
				n := -1
				if len(rest) >= HeaderLen {
					n = int(int32(binary.LittleEndian.Uint32(rest)))
				}
				switch {
				case errors.Is(err, ErrProtocol):
					require.True(t, n < HeaderLen || n > limit)
				case errors.Is(err, io.EOF):
					require.Empty(t, rest)
				default:
					require.Equal(t, io.ErrUnexpectedEOF, err)
					require.True(t, n < 0 || n > len(rest))
				}
				return
			}
			require.True(t, bytes.Equal(rest[:len(b)], b))
			require.Equal(t, len(b), int(binary.LittleEndian.Uint32(b)))
			rest = rest[len(b):]
		}
	})
}

func FuzzDocWalk(f *testing.F) {
	f.Add([]byte(everyType(f)))
	f.Add([]byte(doc(f, e("cursor", bson.D{{Key: "id", Value: int64(1)}}))))
	f.Add([]byte{8, 0, 0, 0, 0x10, 'a', 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := Doc(b)
		it := d.Iter()
		var el Elem
		at := 4
		for it.Next(&el) {
			require.True(t, within(b[at:], el.Raw))
			at += len(el.Raw)
			require.Equal(t, el, elemAt(el.Raw))
			// Every reading of the value must be safe, whatever its type.
			_, _ = el.Int64()
			_, _ = el.Bool()
			_, _ = el.Str()
			_, _ = el.StrBytes()
			_, _ = el.Timestamp()
			_, _ = ReadClusterTime(el)
			_ = CursorIDOffset(el.Value)
		}
		if it.Err() == nil && len(b) > 0 {
			require.Equal(t, len(b)-1, at, "nothing was left out")
		}
		if d.Validate(100) == nil {
			require.NoError(t, it.Err())
		}
		// What the driver reads and writes in the same way, this one takes.
		var known bson.D
		if bson.Unmarshal(b, &known) == nil {
			if again, err := bson.Marshal(known); err == nil && bytes.Equal(b, again) {
				require.NotErrorIs(t, d.Validate(1<<20), ErrMalformed)
			}
		}
	})
}
