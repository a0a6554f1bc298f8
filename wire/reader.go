package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// readAhead is the memory that a Reader keeps while its connection is idle, in
// bytes: most commands fit, so one read brings a whole message.
const readAhead = 1024

// Reader reads messages from a client, which may send the next before the last
// is answered. It is for one goroutine.
type Reader struct {
	src   io.Reader
	pool  *Buffers
	small [readAhead]byte
	start int // unread bytes are small[start:end]
	end   int
	lent  *[]byte // holds the current message where it outgrew small
}

// NewReader returns a Reader; large messages borrow from pool.
func NewReader(src io.Reader, pool *Buffers) *Reader {
	return &Reader{src: src, pool: pool}
}

// Release gives back what the last message borrowed; the message is gone then.
func (r *Reader) Release() {
	r.pool.Put(r.lent)
	r.lent = nil
}

// Next returns the next message whole, valid until Release or Next. Its length is
// checked against limit before anything is allocated, and memory grows only with
// the bytes that have arrived. A clean end is io.EOF; an impossible length is
// ErrProtocol.
func (r *Reader) Next(limit int) ([]byte, error) {
	r.Release()
	if err := r.fill(HeaderLen); err != nil {
		return nil, err
	}
	n := int(int32(binary.LittleEndian.Uint32(r.small[r.start:])))
	if n < HeaderLen || n > limit {
		return nil, fmt.Errorf("%w: message length %d", ErrProtocol, n)
	}
	if n <= readAhead {
		if err := r.fill(n); err != nil {
			return nil, noEOF(err)
		}
		msg := r.small[r.start : r.start+n : r.start+n]
		r.start += n
		return msg, nil
	}
	return r.large(n)
}

// fill makes small[start:] hold at least n bytes.
func (r *Reader) fill(n int) error {
	have := r.end - r.start
	if have >= n {
		return nil
	}
	if r.start > 0 {
		copy(r.small[:], r.small[r.start:r.end])
		r.start, r.end = 0, have
	}
	for r.end < n {
		m, err := r.src.Read(r.small[r.end:])
		r.end += m
		if err != nil && r.end < n {
			if r.end > 0 {
				err = noEOF(err)
			}
			return err
		}
	}
	return nil
}

func (r *Reader) large(n int) ([]byte, error) {
	r.lent = r.pool.Get(min(n, growStep))
	b := append(*r.lent, r.small[r.start:r.end]...)
	r.start, r.end = 0, 0
	b, err := readFull(r.src, b, n)
	*r.lent = b
	return b, noEOF(err)
}

// ReadReply reads the one message that answers a request, appending to buf[:0],
// with as few reads as its size allows. It is for connections on which nothing
// but that answer can be under way; more bytes than the message are ErrProtocol.
// Where buf is too small, its memory goes to the pool and a larger buffer of the
// pool takes its place; without a pool (nil) memory grows as the bytes arrive.
func ReadReply(src io.Reader, buf []byte, limit int, pool *Buffers) ([]byte, error) {
	if cap(buf) < 4*HeaderLen {
		buf = make([]byte, 0, readAhead)
	}
	buf = buf[:0]
	for len(buf) < HeaderLen {
		m, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+m]
		if err != nil && len(buf) < HeaderLen {
			return buf, err
		}
	}
	n := int(int32(binary.LittleEndian.Uint32(buf)))
	if n < HeaderLen || n > limit || n < len(buf) {
		return buf, fmt.Errorf("%w: message length %d", ErrProtocol, n)
	}
	if pool != nil {
		buf = pool.Grow(buf, n-len(buf))
	}
	buf, err := readFull(src, buf, n)
	return buf, noEOF(err)
}

// growStep bounds how much is allocated ahead of the bytes that have arrived: a
// peer that only announces a large message costs no more than this.
const growStep = 1 << 20

// readFull reads until b has n bytes, growing it as they come.
func readFull(src io.Reader, b []byte, n int) ([]byte, error) {
	for len(b) < n {
		if want := min(n, max(cap(b), 2*len(b), min(n, growStep))); want > cap(b) {
			grown := make([]byte, len(b), want)
			copy(grown, b)
			b = grown
		}
		have := len(b)
		m, err := io.ReadFull(src, b[have:min(n, cap(b))])
		b = b[:have+m]
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
