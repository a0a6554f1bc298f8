package shardkey

import (
	"bytes"
	"encoding/binary"

	"github.com/shardgate/shardgate/catalog"
)

// A table's chunks lie in blocks, so that a change copies one block and the list of blocks
// and not all of a million chunks. A block is not made smaller than a quarter of its size
// but in a table that has no more.
const blockLen = 1024

// run is a list of ascending chunks in which keys can be searched. It is immutable.
type run struct {
	chunks []*catalog.Chunk

	// All lower bounds but the first begin with prefix; heads are the eight
	// bytes behind it, so that a search compares numbers and touches little
	// memory.
	prefix []byte
	heads  []uint64
}

// block is a run with the owners of its chunks.
type block struct {
	run

	owners []uint32 // indexes into the table's shards
}

func newRun(chunks []*catalog.Chunk) run {
	s := run{chunks: chunks}
	if len(chunks) < 2 {
		return s
	}
	first, last := chunks[1].MinKey, chunks[len(chunks)-1].MinKey
	n := 0
	for n < min(len(first), len(last)) && first[n] == last[n] {
		n++
	}
	s.prefix = first[:n:n]
	s.heads = make([]uint64, len(chunks)-1)
	for i := range s.heads {
		s.heads[i] = head(chunks[i+1].MinKey[n:])
	}
	return s
}

// head is the first eight bytes of b as a number, zeros added.
func head(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var h uint64
	for i, c := range b {
		h |= uint64(c) << (56 - 8*i)
	}
	return h
}

// find returns the index of the last chunk that begins at or below a key, 0 if none does.
func (s *run) find(key []byte) int {
	if len(s.heads) == 0 {
		return 0
	}
	if !bytes.HasPrefix(key, s.prefix) {
		if bytes.Compare(key, s.prefix) < 0 {
			return 0
		}
		return len(s.heads)
	}
	h := head(key[len(s.prefix):])
	// below counts the heads that are less than h.
	below, n := 0, len(s.heads)
	for n > 0 {
		half := n / 2
		if s.heads[below+half] < h {
			below += half + 1
			n -= half + 1
		} else {
			n = half
		}
	}
	if below == len(s.heads) || s.heads[below] != h {
		return below
	}
	return s.findSame(key, below, h)
}

// findSame goes on where several bounds have the key's head: whole keys decide.
func (s *run) findSame(key []byte, lo int, h uint64) int {
	hi := len(s.heads)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if s.heads[mid] > h || bytes.Compare(s.chunks[mid+1].MinKey, key) > 0 {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// blocksOf puts chunks into blocks of about the same length; the owners are to be filled.
func blocksOf(chunks []*catalog.Chunk) []block {
	if len(chunks) <= 2*blockLen {
		return []block{{run: newRun(chunks)}}
	}
	n := (len(chunks) + blockLen - 1) / blockLen
	blocks := make([]block, n)
	for i := range blocks {
		from, to := i*len(chunks)/n, (i+1)*len(chunks)/n
		blocks[i].run = newRun(chunks[from:to:to])
	}
	return blocks
}
