package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Compressor is how an OP_COMPRESSED is compressed, by its id on the wire (MONGOS.md §6).
type Compressor uint8

// The compressors of MongoDB 6.0. It refuses 0, which is none.
const (
	CompressorSnappy Compressor = 1
	CompressorZlib   Compressor = 2
	CompressorZstd   Compressor = 3
)

// CompressorByName returns the compressor that hello calls so.
func CompressorByName(name string) (Compressor, bool) {
	switch name {
	case "snappy":
		return CompressorSnappy, true
	case "zlib":
		return CompressorZlib, true
	case "zstd":
		return CompressorZstd, true
	default:
		return 0, false
	}
}

// compressedHead is what an OP_COMPRESSED has before the compressed bytes: the header, the
// opcode of the message within, its length without header, and the compressor.
const compressedHead = HeaderLen + 4 + 4 + 1

// snappyRatio is more than snappy can ever make of a byte: what claims to be longer is not
// given memory.
const snappyRatio = 64

// Decompress appends to dst the message that an OP_COMPRESSED holds. Its length is checked
// against limit first, and memory grows only with what comes out. All errors are
// ErrProtocol: what is compressed wrongly, or holds another OP_COMPRESSED, closes the
// connection.
func Decompress(dst, b []byte, limit int) ([]byte, Compressor, error) {
	if len(b) < compressedHead {
		return dst, 0, fmt.Errorf("%w: OP_COMPRESSED of %d bytes", ErrProtocol, len(b))
	}
	h := ParseHeader(b)
	op := OpCode(binary.LittleEndian.Uint32(b[HeaderLen:]))
	size := int(int32(binary.LittleEndian.Uint32(b[HeaderLen+4:])))
	how, packed := Compressor(b[compressedHead-1]), b[compressedHead:]
	if op == OpCompressed || size < 0 || size > limit-HeaderLen {
		return dst, how, fmt.Errorf("%w: OP_COMPRESSED of opcode %d and %d bytes", ErrProtocol, op, size)
	}
	start := len(dst)
	dst = AppendHeader(dst, h.RequestID, h.ResponseTo, op)
	dst, err := unpack(dst, how, packed, size)
	if err == nil && len(dst) != start+HeaderLen+size {
		err = fmt.Errorf("%d bytes came out, not %d", len(dst)-start-HeaderLen, size)
	}
	if err != nil {
		return dst, how, fmt.Errorf("%w: OP_COMPRESSED: %w", ErrProtocol, err)
	}
	SetLength(dst[start:])
	return dst, how, nil
}

func unpack(dst []byte, how Compressor, packed []byte, size int) ([]byte, error) {
	switch how {
	case CompressorSnappy:
		n, err := snappy.DecodedLen(packed)
		if err != nil || n != size || n > snappyRatio*len(packed) {
			return dst, fmt.Errorf("snappy: %d bytes are to be %d", len(packed), size)
		}
		at := len(dst)
		dst = append(dst, make([]byte, n)...)
		out, err := snappy.Decode(dst[at:], packed)
		return dst[:at+len(out)], err
	case CompressorZlib:
		return unzlib(dst, packed, size)
	case CompressorZstd:
		return unzstd(dst, packed, size)
	default:
		return dst, fmt.Errorf("unknown compressor %d", how)
	}
}

func unzlib(dst, packed []byte, size int) ([]byte, error) {
	src := bytes.NewReader(packed)
	r, ok := zlibReaders.Get().(io.Reader)
	var err error
	if ok {
		err = r.(zlib.Resetter).Reset(src, nil)
	} else {
		r, err = zlib.NewReader(src)
	}
	if err != nil {
		return dst, err
	}
	defer zlibReaders.Put(r)
	return readExactly(r, dst, size)
}

// maxWindow bounds what a zstd frame may have its reader remember, in bytes: no message is
// longer.
const maxWindow = 64 << 20

func unzstd(dst, packed []byte, size int) ([]byte, error) {
	r, ok := zstdReaders.Get().(*zstd.Decoder)
	var err error
	if ok {
		err = r.Reset(bytes.NewReader(packed))
	} else {
		r, err = zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
	}
	if err != nil {
		return dst, err
	}
	defer func() {
		if r.Reset(nil) == nil { // it lets go of the input
			zstdReaders.Put(r)
		}
	}()
	return readExactly(r, dst, size)
}

// readExactly appends size bytes of src, which must end there.
func readExactly(src io.Reader, dst []byte, size int) ([]byte, error) {
	dst, err := readFull(src, dst, len(dst)+size)
	if err != nil {
		return dst, noEOF(err)
	}
	var more [1]byte
	if n, err := io.ReadFull(src, more[:]); n != 0 || err != io.EOF {
		return dst, fmt.Errorf("more than the %d bytes that were announced: %w", size, noEOF(err))
	}
	return dst, nil
}

// The compressors' own memory, which is large and kept between messages.
var (
	zlibReaders, zstdReaders sync.Pool
	zlibWriters              = sync.Pool{New: func() any { return zlib.NewWriter(io.Discard) }}
	zstdWriters              = sync.Pool{New: func() any { return newZstdWriter() }}
)

func newZstdWriter() *zstd.Encoder {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // its options are impossible
	}
	return w
}

// AppendCompressed appends an OP_COMPRESSED of a finished message.
func AppendCompressed(dst, msg []byte, how Compressor) ([]byte, error) {
	h := ParseHeader(msg)
	start := len(dst)
	dst = AppendHeader(dst, h.RequestID, h.ResponseTo, OpCompressed)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.OpCode))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(msg)-HeaderLen))
	dst = append(dst, byte(how))
	dst, err := pack(dst, how, msg[HeaderLen:])
	if err != nil {
		return dst, err
	}
	SetLength(dst[start:])
	return dst, nil
}

func pack(dst []byte, how Compressor, plain []byte) ([]byte, error) {
	switch how {
	case CompressorSnappy:
		at := len(dst)
		dst = append(dst, make([]byte, snappy.MaxEncodedLen(len(plain)))...)
		return dst[:at+len(snappy.Encode(dst[at:], plain))], nil
	case CompressorZlib:
		out := bytes.NewBuffer(dst)
		w := zlibWriters.Get().(*zlib.Writer)
		defer zlibWriters.Put(w)
		w.Reset(out)
		if _, err := w.Write(plain); err != nil {
			return dst, err
		}
		err := w.Close()
		return out.Bytes(), err
	case CompressorZstd:
		w := zstdWriters.Get().(*zstd.Encoder)
		defer zstdWriters.Put(w)
		return w.EncodeAll(plain, dst), nil
	default:
		return dst, fmt.Errorf("unknown compressor %d", how)
	}
}
