package shardkey

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/shardgate/shardgate/catalog"
)

// ErrTable says that chunks do not make a routing table.
var ErrTable = errors.New("shardkey: bad chunks")

// Table says which chunk, and so which shard, holds a key. It is immutable; it
// keeps the chunks it was made of, which must not be changed either.
type Table struct {
	coll    catalog.Collection
	pattern *Pattern
	chunks  []catalog.Chunk
	owners  []uint32 // of each chunk, an index into shards
	shards  []string

	// All lower bounds but the first begin with prefix; heads are the eight
	// bytes behind it, so that a search compares numbers and touches little
	// memory.
	prefix []byte
	heads  []uint64
}

// NewTable makes a table of a collection's chunks. It checks that they ascend,
// have neither gaps nor overlaps, cover all keys, and that the ordered bytes
// belong to the bound documents.
func NewTable(c catalog.CollectionChunks) (*Table, error) {
	t := &Table{coll: c.Collection, pattern: byID(), chunks: c.Chunks}
	if len(c.Key) > 0 {
		var err error
		if t.pattern, err = ParsePattern(c.Key); err != nil {
			return nil, fmt.Errorf("%w of %s: %w", ErrTable, c.NS, err)
		}
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("%w of %s: %w", ErrTable, c.NS, err)
	}
	t.index()
	return t, nil
}

// check validates the chunks.
func (t *Table) check() error {
	if len(t.chunks) == 0 {
		return errors.New("there are none")
	}
	n := t.pattern.Len()
	want := bytes.Repeat([]byte{ClassMinKey}, n)
	buf := make([]byte, 0, 64)
	for i := range t.chunks {
		c := &t.chunks[i]
		if !bytes.Equal(c.MinKey, want) {
			return fmt.Errorf("chunk %s does not begin where the one before it ends", Format(c.Min))
		}
		key, err := t.pattern.AppendBound(buf[:0], c.Min)
		if err != nil {
			return err
		}
		if !bytes.Equal(key, c.MinKey) {
			return fmt.Errorf("chunk %s has other ordered bytes", Format(c.Min))
		}
		if bytes.Compare(c.MinKey, c.MaxKey) >= 0 {
			return fmt.Errorf("chunk %s is empty", Format(c.Min))
		}
		if c.Shard == "" {
			return fmt.Errorf("chunk %s has no owner", Format(c.Min))
		}
		want, buf = c.MaxKey, key
	}
	if !bytes.Equal(want, bytes.Repeat([]byte{ClassMaxKey}, n)) {
		return errors.New("the last one does not end at MaxKey")
	}
	return nil
}

// index fills what searches use.
func (t *Table) index() {
	for i := range t.chunks {
		t.shards = append(t.shards, t.chunks[i].Shard)
	}
	slices.Sort(t.shards)
	t.shards = slices.Clone(slices.Compact(t.shards))
	t.owners = make([]uint32, len(t.chunks))
	for i := range t.chunks {
		at, _ := slices.BinarySearch(t.shards, t.chunks[i].Shard)
		t.owners[i] = uint32(at)
	}
	if len(t.chunks) == 1 {
		return
	}
	first, last := t.chunks[1].MinKey, t.chunks[len(t.chunks)-1].MinKey
	n := 0
	for n < min(len(first), len(last)) && first[n] == last[n] {
		n++
	}
	t.prefix = first[:n:n]
	t.heads = make([]uint64, len(t.chunks)-1)
	for i := range t.heads {
		t.heads[i] = head(t.chunks[i+1].MinKey[n:])
	}
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

// Pattern is the collection's shard key; {_id: 1} if it is unsharded.
func (t *Table) Pattern() *Pattern { return t.pattern }

// Collection returns the collection's row, which must not be changed.
func (t *Table) Collection() *catalog.Collection { return &t.coll }

// Len is the number of chunks.
func (t *Table) Len() int { return len(t.chunks) }

// Chunk returns chunk i, which must not be changed.
func (t *Table) Chunk(i int) *catalog.Chunk { return &t.chunks[i] }

// ShardOf returns the owner of chunk i as an index into Shards.
func (t *Table) ShardOf(i int) int { return int(t.owners[i]) }

// Shards are the ids of the shards that own chunks, ascending. The slice must
// not be changed.
func (t *Table) Shards() []string { return t.shards }

// Find returns the index of the chunk that holds a key. A key at or above the
// last chunk's upper bound (a document may have MaxKey in it) is in the last
// chunk. It works for the first fields of a key as well: the chunk where such
// keys begin.
func (t *Table) Find(key []byte) int {
	if len(t.heads) == 0 {
		return 0
	}
	if !bytes.HasPrefix(key, t.prefix) {
		if bytes.Compare(key, t.prefix) < 0 {
			return 0
		}
		return len(t.heads)
	}
	h := head(key[len(t.prefix):])
	// below counts the heads that are less than h.
	below, n := 0, len(t.heads)
	for n > 0 {
		half := n / 2
		if t.heads[below+half] < h {
			below += half + 1
			n -= half + 1
		} else {
			n = half
		}
	}
	if below == len(t.heads) || t.heads[below] != h {
		return below
	}
	return t.findSame(key, below, h)
}

// findSame goes on where several bounds have the key's head: whole keys decide.
func (t *Table) findSame(key []byte, lo int, h uint64) int {
	hi := len(t.heads)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if t.heads[mid] > h || bytes.Compare(t.chunks[mid+1].MinKey, key) > 0 {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// Overlap adds to set the owners of all chunks that meet the keys from lo up to
// hi. hi itself belongs to them if hiInclusive.
func (t *Table) Overlap(lo, hi []byte, hiInclusive bool, set *ShardSet) {
	least := 1
	if hiInclusive {
		least = 0
	}
	if bytes.Compare(hi, lo) < least {
		return
	}
	first, last := t.Find(lo), t.Find(hi)
	if !hiInclusive && last > first && bytes.Equal(t.chunks[last].MinKey, hi) {
		last--
	}
	t.addOwners(first, last, set)
}

// All adds all owners to set.
func (t *Table) All(set *ShardSet) {
	for i := range t.shards {
		set.Add(i)
	}
}

// addOwners adds the owners of chunks first to last. Neighbours often have the
// same.
func (t *Table) addOwners(first, last int, set *ShardSet) {
	before := ^uint32(0)
	for _, owner := range t.owners[first : last+1] {
		if owner == before {
			continue
		}
		before = owner
		set.Add(int(owner))
		if set.Len() == len(t.shards) {
			return
		}
	}
}
