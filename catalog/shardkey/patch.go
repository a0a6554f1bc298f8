package shardkey

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/shardgate/shardgate/catalog"
)

// Next makes the table after a change of which only the row and the changed chunks are
// known: the chunks of c take the place of those whose ranges they cover. It costs as
// much as there are blocks, and nothing per chunk that stays in another block. Where the key is another one, c must
// have all chunks.
func (t *Table) Next(c catalog.CollectionChunks) (*Table, error) {
	if !bytes.Equal(t.coll.Key, c.Key) {
		return NewTable(c)
	}
	next := *t
	next.coll = c.Collection
	if len(c.Chunks) == 0 {
		return &next, nil
	}
	list, err := t.patches(c.Chunks)
	if err != nil {
		return nil, fmt.Errorf("%w of %s: %w", ErrTable, c.NS, err)
	}
	next.replace(t, list)
	return &next, nil
}

// patch says that chunks from up to to of a table give way to others, which touch each other.
type patch struct {
	from, to int
	put      []*catalog.Chunk
}

// patches finds what changed chunks replace. They ascend, and each run of them that touch must
// fill the ranges of whole chunks.
func (t *Table) patches(changed []catalog.Chunk) ([]patch, error) {
	var (
		patches []patch
		buf     []byte
		err     error
	)
	for i := 0; i < len(changed); {
		k := patch{from: t.Find(changed[i].MinKey)}
		first := i
		for ; i < len(changed) && (i == first || bytes.Equal(changed[i-1].MaxKey, changed[i].MinKey)); i++ {
			if buf, err = t.checkChunk(&changed[i], buf); err != nil {
				return nil, err
			}
			k.put = append(k.put, &changed[i])
		}
		end := changed[i-1].MaxKey
		if k.to = t.n; !bytes.Equal(end, t.Chunk(k.to-1).MaxKey) {
			k.to = t.Find(end)
			if !bytes.Equal(end, t.Chunk(k.to).MinKey) {
				return nil, fmt.Errorf("a change ends inside of chunk %s", Format(t.Chunk(k.to).Min))
			}
		}
		if !bytes.Equal(changed[first].MinKey, t.Chunk(k.from).MinKey) {
			return nil, fmt.Errorf("a change begins inside of chunk %s", Format(t.Chunk(k.from).Min))
		}
		if n := len(patches); n > 0 && k.from < patches[n-1].to || k.to <= k.from {
			return nil, fmt.Errorf("changed chunks do not ascend at %s", Format(changed[first].Min))
		}
		patches = append(patches, k)
	}
	return patches, nil
}

// replace fills a table from the one before.
func (t *Table) replace(old *Table, patches []patch) {
	at := t.own(old.recount(patches))
	blocks := make([]block, 0, len(old.blocks)+1)
	moved := t.places(old, at)
	keep := func(from, to int) {
		for _, b := range old.blocks[from:to] {
			blocks = append(blocks, b.renumbered(moved))
		}
	}
	next := 0 // the first block that is not seen to yet
	for i := 0; i < len(patches); {
		first, _ := old.place(patches[i].from)
		last, _ := old.place(patches[i].to - 1)
		j := i + 1
		for ; j < len(patches); j++ { // those that meet in a block go together
			if b, _ := old.place(patches[j].from); b > last {
				break
			}
			last, _ = old.place(patches[j].to - 1)
		}
		chunks := old.patched(first, last, patches[i:j])
		for len(chunks) < blockLen/4 && last+1 < len(old.blocks) && !meets(old, patches[j:], last+1) {
			last++
			chunks = append(chunks, old.blocks[last].chunks...)
		}
		keep(next, first)
		fresh := blocksOf(chunks)
		for k := range fresh {
			fresh[k].fill(at)
		}
		blocks = append(blocks, fresh...)
		i, next = j, last+1
	}
	keep(next, len(old.blocks))
	t.index(blocks)
}

// places says where the shards of the table before are now; nil: where they were.
func (t *Table) places(old *Table, at map[string]uint32) []uint32 {
	if slices.Equal(t.shards, old.shards) {
		return nil
	}
	moved := make([]uint32, len(old.shards))
	for i, id := range old.shards {
		moved[i] = at[id] // one that is gone owns nothing that stayed
	}
	return moved
}

// renumbered is the block with its owners' new places.
func (b block) renumbered(moved []uint32) block {
	if moved == nil {
		return b
	}
	owners := make([]uint32, len(b.owners))
	for i, o := range b.owners {
		owners[i] = moved[o]
	}
	b.owners = owners
	return b
}

// meets reports whether the first of some patches touches a block.
func meets(t *Table, patches []patch, b int) bool {
	if len(patches) == 0 {
		return false
	}
	first, _ := t.place(patches[0].from)
	return first == b
}

// patched lists the chunks of blocks first to last after the patches, which all lie there.
func (t *Table) patched(first, last int, patches []patch) []*catalog.Chunk {
	var chunks []*catalog.Chunk
	keep := func(from, to int) {
		for from < to {
			b, at := t.place(from)
			some := t.blocks[b].chunks[at:]
			some = some[:min(to-from, len(some))]
			chunks = append(chunks, some...)
			from += len(some)
		}
	}
	from := t.starts[first]
	for _, k := range patches {
		keep(from, k.from)
		chunks = append(chunks, k.put...)
		from = k.to
	}
	keep(from, t.starts[last]+len(t.blocks[last].chunks))
	return chunks
}

// recount counts each shard's chunks after patches.
func (t *Table) recount(patches []patch) map[string]int {
	counts := make(map[string]int, len(t.shards))
	for i, id := range t.shards {
		counts[id] = t.counts[i]
	}
	for _, k := range patches {
		for i := k.from; i < k.to; i++ {
			counts[t.Chunk(i).Shard]--
		}
		for _, c := range k.put {
			counts[c.Shard]++
		}
	}
	return counts
}
