package wire

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var compressors = map[string]Compressor{"snappy": CompressorSnappy, "zlib": CompressorZlib, "zstd": CompressorZstd}

func TestCompressedRoundTrip(t *testing.T) {
	t.Parallel()
	for name, how := range compressors {
		got, known := CompressorByName(name)
		require.True(t, known)
		require.Equal(t, how, got)
		for _, text := range []string{"", "a", "some text", strings.Repeat("again and again ", 70_000)} {
			msg := opMsg(0, body(doc(t, e("ping", text))))
			binary.LittleEndian.PutUint32(msg[4:], 17)
			packed, err := AppendCompressed([]byte("before"), msg, how)
			require.NoError(t, err)
			packed = packed[len("before"):]
			require.Equal(t, OpCompressed, ParseHeader(packed).OpCode)
			require.Equal(t, len(packed), int(ParseHeader(packed).Length))
			require.Equal(t, int32(17), ParseHeader(packed).RequestID)
			plain, by, err := Decompress(nil, packed, MaxMessageLen)
			require.NoError(t, err)
			require.Equal(t, how, by)
			require.True(t, bytes.Equal(msg, plain))
			_, _, err = Decompress(nil, packed, len(msg)-1)
			require.ErrorIs(t, err, ErrProtocol)
		}
	}
	_, known := CompressorByName("noop")
	require.False(t, known)
}

// packed is an OP_COMPRESSED that says of itself what it is told to.
func packed(op OpCode, size int, how Compressor, content []byte) []byte {
	b := AppendHeader(nil, 1, 0, OpCompressed)
	b = binary.LittleEndian.AppendUint32(b, uint32(op))
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = append(append(b, byte(how)), content...)
	SetLength(b)
	return b
}

// TestDecompressRefuses: a real mongod closes the connection on each of these, but for a
// zlib message that is shorter than announced, which it takes.
func TestDecompressRefuses(t *testing.T) {
	t.Parallel()
	plain := opMsg(0, body(doc(t, e("ping", int32(1)))))[HeaderLen:]
	for name, how := range compressors {
		content, err := pack(nil, how, plain)
		require.NoError(t, err)
		for what, b := range map[string][]byte{
			"short":         packed(OpMsg, len(plain), how, content)[:compressedHead-1],
			"size less":     packed(OpMsg, len(plain)-1, how, content),
			"size more":     packed(OpMsg, len(plain)+1, how, content),
			"negative size": packed(OpMsg, -1, how, content),
			"great size":    packed(OpMsg, MaxMessageLen, how, content),
			"nested":        packed(OpCompressed, len(plain), how, content),
			"garbage":       packed(OpMsg, len(plain), how, bytes.Repeat([]byte{0xff}, 20)),
			"cut off":       packed(OpMsg, len(plain), how, content[:len(content)-1]),
			"nothing":       packed(OpMsg, len(plain), how, nil),
		} {
			_, _, err := Decompress(nil, b, MaxMessageLen)
			require.ErrorIs(t, err, ErrProtocol, "%s, %s", name, what)
		}
	}
	for _, how := range []Compressor{0, 4, 255} {
		_, _, err := Decompress(nil, packed(OpMsg, len(plain), how, plain), MaxMessageLen)
		require.ErrorIs(t, err, ErrProtocol)
	}
}

// TestBombs: what announces much, and little comes, costs no more than what comes.
func TestBombs(t *testing.T) {
	const announced = 8 << 20
	var zeros bytes.Buffer
	w := zlib.NewWriter(&zeros)
	_, err := w.Write(make([]byte, 2*announced))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for name, c := range map[string]struct {
		how     Compressor
		content []byte
		most    uint64 // bytes allocated
	}{
		"snappy, only announced": {CompressorSnappy, binary.AppendUvarint(nil, announced), 1 << 20},
		"zlib, cut off":          {CompressorZlib, zeros.Bytes()[:200], 8 << 20},
		"zlib, too much":         {CompressorZlib, zeros.Bytes(), 64 << 20},
		"zstd, only announced":   {CompressorZstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0xf0, 0x6b, 0xdc, 2}, 24 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := Decompress(nil, packed(OpMsg, announced, c.how, c.content), MaxMessageLen)
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, ErrProtocol)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, c.most)
		})
	}
}

func FuzzDecompress(f *testing.F) {
	msg := opMsg(0, body(everyType(f)))
	for _, how := range compressors {
		b, err := AppendCompressed(nil, msg, how)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		plain, how, err := Decompress(nil, b, limit)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		require.LessOrEqual(t, len(plain), limit)
		require.Equal(t, len(plain), int(ParseHeader(plain).Length))
		require.NotEqual(t, OpCompressed, ParseHeader(plain).OpCode)
		again, err := AppendCompressed(nil, plain, how)
		require.NoError(t, err)
		same, _, err := Decompress(nil, again, limit)
		require.NoError(t, err)
		require.True(t, bytes.Equal(plain, same))
	})
}

func BenchmarkCompressed(b *testing.B) {
	msg := opMsg(0, body(doc(b, e("insert", "c"), e("text", strings.Repeat("some words and others ", 20)))))
	for name, how := range compressors {
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			b.ReportAllocs()
			var packed, plain []byte
			for b.Loop() {
				packed, _ = AppendCompressed(packed[:0], msg, how)
				plain, _, _ = Decompress(plain[:0], packed, MaxMessageLen)
			}
			require.Len(b, plain, len(msg))
		})
	}
}
