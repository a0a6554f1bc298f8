package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// message is one of n bytes that tell which it is.
func message(n int, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, n)
	SetLength(b)
	return b
}

func TestReaderPipelined(t *testing.T) {
	t.Parallel()
	var stream []byte
	var want [][]byte
	// Around the limits of what is kept in the connection and of one step.
	for i, n := range []int{16, 17, 600, 900, 1023, 1024, 1025, 16, 5000, 1024, growStep - 1, growStep, growStep + 1, 3*growStep + 7, 16} {
		want = append(want, message(n, byte(i+1)))
		stream = append(stream, want[i]...)
	}
	for name, src := range map[string]io.Reader{
		"all at once":    bytes.NewReader(stream),
		"halves":         iotest.HalfReader(bytes.NewReader(stream)),
		"byte by byte":   iotest.OneByteReader(bytes.NewReader(stream)),
		"end with data":  iotest.DataErrReader(bytes.NewReader(stream)),
		"odd steps of 7": stepReader{bytes.NewReader(stream), 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := NewReader(src, new(Buffers))
			for i := range want {
				got, err := r.Next(MaxMessageLen)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want[i], got), "message %d of %d bytes", i, len(want[i]))
			}
			_, err := r.Next(MaxMessageLen)
			require.Equal(t, io.EOF, err)
		})
	}
}

// stepReader gives a few bytes at a time.
type stepReader struct {
	src io.Reader
	n   int
}

func (s stepReader) Read(b []byte) (int, error) { return s.src.Read(b[:min(len(b), s.n)]) }

func TestReaderAbsurdLengths(t *testing.T) {
	t.Parallel()
	for _, n := range []int32{0, 1, 15, -1, -1 << 31, MaxMessageLen + 1, 1<<31 - 1} {
		b := binary.LittleEndian.AppendUint32(nil, uint32(n))
		r := NewReader(bytes.NewReader(append(b, make([]byte, 2000)...)), new(Buffers))
		_, err := r.Next(MaxMessageLen)
		require.ErrorIs(t, err, ErrProtocol, "%d", n)
	}
	r := NewReader(bytes.NewReader(message(101, 1)), new(Buffers))
	_, err := r.Next(100)
	require.ErrorIs(t, err, ErrProtocol, "the limit is the caller's")
}

func TestReaderCutShort(t *testing.T) {
	t.Parallel()
	for _, n := range []int{16, 1000, 5000, 2 * growStep} {
		msg := message(n, 1)
		for _, have := range []int{1, 15, 16, n / 2, n - 1} {
			if have >= n {
				continue
			}
			r := NewReader(bytes.NewReader(msg[:have]), new(Buffers))
			_, err := r.Next(MaxMessageLen)
			require.Equal(t, io.ErrUnexpectedEOF, err, "%d of %d bytes", have, n)
		}
	}
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(bytes.NewReader(message(50, 1)[:20]), iotest.ErrReader(broken)), new(Buffers))
	_, err := r.Next(MaxMessageLen)
	require.ErrorIs(t, err, broken)
}

// TestReaderMemoryFollowsTheBytes: who only announces a large message must not cost
// one.
func TestReaderMemoryFollowsTheBytes(t *testing.T) {
	t.Parallel()
	head := message(MaxMessageLen, 1)[:2000]
	r := NewReader(bytes.NewReader(head), new(Buffers))
	_, err := r.Next(MaxMessageLen)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	require.LessOrEqual(t, cap(*r.lent), 2*growStep)

	half := message(MaxMessageLen, 1)[:4*growStep]
	r = NewReader(bytes.NewReader(half), new(Buffers))
	_, err = r.Next(MaxMessageLen)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	require.LessOrEqual(t, cap(*r.lent), 8*growStep)
}

func TestReadReply(t *testing.T) {
	t.Parallel()
	for _, n := range []int{16, 64, 65, 1024, 5000, growStep, 2*growStep + 1} {
		want := message(n, 3)
		for name, src := range map[string]io.Reader{
			"at once": bytes.NewReader(want), "byte by byte": iotest.OneByteReader(bytes.NewReader(want)),
			"end with data": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			for _, buf := range [][]byte{nil, make([]byte, 10, 100), make([]byte, 0, 4096)} {
				got, err := ReadReply(src, buf, MaxMessageLen, nil)
				require.NoError(t, err, "%s %d", name, n)
				require.True(t, bytes.Equal(want, got), "%s %d", name, n)
				src = bytes.NewReader(want)
			}
		}
	}
}

func TestReadReplyRefuses(t *testing.T) {
	t.Parallel()
	two := slices.Concat(message(40, 1), message(40, 2))
	_, err := ReadReply(bytes.NewReader(two), nil, MaxMessageLen, nil)
	require.ErrorIs(t, err, ErrProtocol, "nobody asked for the second")
	for _, n := range []int32{0, 15, -1, 1001} {
		b := append(binary.LittleEndian.AppendUint32(nil, uint32(n)), make([]byte, 12)...)
		_, err := ReadReply(bytes.NewReader(b), nil, 1000, nil)
		require.ErrorIs(t, err, ErrProtocol, "%d", n)
	}
	_, err = ReadReply(bytes.NewReader(message(40, 1)[:30]), nil, 1000, nil)
	require.Equal(t, io.ErrUnexpectedEOF, err)
	_, err = ReadReply(bytes.NewReader(nil), nil, 1000, nil)
	require.Equal(t, io.EOF, err)
}

func TestBuffers(t *testing.T) {
	t.Parallel()
	var p Buffers
	for _, n := range []int{0, 1, 1 << 10, 1<<10 + 1, 1 << 20, 1<<26 + 1} {
		b := p.Get(n)
		require.Empty(t, *b)
		require.GreaterOrEqual(t, cap(*b), n)
		*b = append(*b, make([]byte, n)...)
		p.Put(b)
	}
	p.Put(nil)
	small := make([]byte, 0, 10)
	p.Put(&small)
	grown := make([]byte, 0, 3000) // fills the class of 2 KiB, not of 4
	p.Put(&grown)
	for range 100 {
		b := p.Get(4096)
		require.GreaterOrEqual(t, cap(*b), 4096)
	}
}
