package shardkey

import (
	"bytes"
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
	shards  []string
	counts  []int // of each shard's chunks

	blocks []block // which later tables share
	starts []int   // of each block, the index of its first chunk
	firsts run     // the first chunks of the blocks
	n      int
}

// NewTable makes a table of a collection's chunks. It checks that they ascend,
// have neither gaps nor overlaps, cover all keys, and that the ordered bytes
// belong to the bound documents.
func NewTable(c catalog.CollectionChunks) (*Table, error) {
	t := &Table{coll: c.Collection, pattern: byID()}
	chunks := make([]*catalog.Chunk, len(c.Chunks))
	for i := range c.Chunks {
		chunks[i] = &c.Chunks[i]
	}
	if len(c.Key) > 0 {
		var err error
		if t.pattern, err = ParsePattern(c.Key); err != nil {
			return nil, fmt.Errorf("%w of %s: %w", ErrTable, c.NS, err)
		}
	}
	if err := t.check(chunks); err != nil {
		return nil, fmt.Errorf("%w of %s: %w", ErrTable, c.NS, err)
	}
	counts := map[string]int{}
	for _, c := range chunks {
		counts[c.Shard]++
	}
	at := t.own(counts)
	t.index(blocksOf(chunks))
	for i := range t.blocks {
		t.blocks[i].fill(at)
	}
	return t, nil
}

// own fills shards and counts, and returns the shards' places.
func (t *Table) own(counts map[string]int) map[string]uint32 {
	t.shards, t.counts = nil, nil
	for id, n := range counts {
		if n > 0 {
			t.shards = append(t.shards, id)
		}
	}
	slices.Sort(t.shards)
	at := make(map[string]uint32, len(t.shards))
	for i, id := range t.shards {
		at[id] = uint32(i)
		t.counts = append(t.counts, counts[id])
	}
	return at
}

// fill sets the owners of a new block's chunks.
func (b *block) fill(at map[string]uint32) {
	b.owners = make([]uint32, len(b.chunks))
	for i, c := range b.chunks {
		b.owners[i] = at[c.Shard]
	}
}

// index fills what finds the blocks.
func (t *Table) index(blocks []block) {
	t.blocks, t.n = blocks, 0
	t.starts = make([]int, len(blocks))
	firsts := make([]*catalog.Chunk, len(blocks))
	for i := range blocks {
		t.starts[i], firsts[i] = t.n, blocks[i].chunks[0]
		t.n += len(blocks[i].chunks)
	}
	t.firsts = newRun(firsts)
}

// place returns the block of chunk i and its index in there.
func (t *Table) place(i int) (b, at int) {
	if len(t.blocks) == 1 {
		return 0, i
	}
	b, found := slices.BinarySearch(t.starts, i)
	if !found {
		b--
	}
	return b, i - t.starts[b]
}

// check validates the chunks.
func (t *Table) check(chunks []*catalog.Chunk) error {
	if len(chunks) == 0 {
		return errors.New("there are none")
	}
	n := t.pattern.Len()
	want := bytes.Repeat([]byte{ClassMinKey}, n)
	buf := make([]byte, 0, 64)
	for _, c := range chunks {
		if !bytes.Equal(c.MinKey, want) {
			return fmt.Errorf("chunk %s does not begin where the one before it ends", Format(c.Min))
		}
		var err error
		if buf, err = t.checkChunk(c, buf); err != nil {
			return err
		}
		want = c.MaxKey
	}
	if !bytes.Equal(want, bytes.Repeat([]byte{ClassMaxKey}, n)) {
		return errors.New("the last one does not end at MaxKey")
	}
	return nil
}

// checkChunk validates a chunk for itself; buf is memory to use, and is returned.
func (t *Table) checkChunk(c *catalog.Chunk, buf []byte) ([]byte, error) {
	key, err := t.pattern.AppendBound(buf[:0], c.Min)
	switch {
	case err != nil:
		return key, err
	case !bytes.Equal(key, c.MinKey):
		return key, fmt.Errorf("chunk %s has other ordered bytes", Format(c.Min))
	case bytes.Compare(c.MinKey, c.MaxKey) >= 0:
		return key, fmt.Errorf("chunk %s is empty", Format(c.Min))
	case c.Shard == "":
		return key, fmt.Errorf("chunk %s has no owner", Format(c.Min))
	}
	return key, nil
}

// Pattern is the collection's shard key; {_id: 1} if it is unsharded.
func (t *Table) Pattern() *Pattern { return t.pattern }

// Collection returns the collection's row, which must not be changed.
func (t *Table) Collection() *catalog.Collection { return &t.coll }

// Len is the number of chunks.
func (t *Table) Len() int { return t.n }

// Chunk returns chunk i, which must not be changed.
func (t *Table) Chunk(i int) *catalog.Chunk {
	b, at := t.place(i)
	return t.blocks[b].chunks[at]
}

// ShardOf returns the owner of chunk i as an index into Shards.
func (t *Table) ShardOf(i int) int {
	b, at := t.place(i)
	return int(t.blocks[b].owners[at])
}

// Shards are the ids of the shards that own chunks, ascending. The slice must
// not be changed.
func (t *Table) Shards() []string { return t.shards }

// Find returns the index of the chunk that holds a key. A key at or above the
// last chunk's upper bound (a document may have MaxKey in it) is in the last
// chunk. It works for the first fields of a key as well: the chunk where such
// keys begin.
func (t *Table) Find(key []byte) int {
	b := t.firsts.find(key)
	return t.starts[b] + t.blocks[b].find(key)
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
	if !hiInclusive && last > first && bytes.Equal(t.Chunk(last).MinKey, hi) {
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
	b, at := t.place(first)
	for left := last - first + 1; left > 0; b, at = b+1, 0 {
		owners := t.blocks[b].owners[at:]
		owners = owners[:min(left, len(owners))]
		for _, owner := range owners {
			if owner == before {
				continue
			}
			before = owner
			set.Add(int(owner))
			if set.Len() == len(t.shards) {
				return
			}
		}
		left -= len(owners)
	}
}
