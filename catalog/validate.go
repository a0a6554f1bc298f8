package catalog

import (
	"bytes"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Validate checks all of a Change that can be known without the catalog's
// state; what is wrong is ErrInvalid, wrapped. Stores call it first.
func (c *Change) Validate() error {
	whole := make(map[string]bool, len(c.Put))
	for i := range c.Put {
		p := &c.Put[i]
		if err := p.validate(); err != nil {
			return err
		}
		if whole[p.NS] {
			return invalid(p.NS, "is put twice")
		}
		whole[p.NS] = true
	}
	for i := range c.Rows {
		if err := c.Rows[i].validate(); err != nil {
			return err
		}
		if whole[c.Rows[i].NS] {
			return invalid(c.Rows[i].NS, "has a row beside its put")
		}
	}
	edited := make(map[string]bool, len(c.Chunks))
	for i := range c.Chunks {
		e := &c.Chunks[i]
		if whole[e.NS] || edited[e.NS] {
			return invalid(e.NS, "has its chunks edited twice")
		}
		edited[e.NS] = true
		if len(e.Remove) == 0 {
			return invalid(e.NS, "has an edit that replaces no chunk")
		}
		if err := validateChunks(e.NS, e.Put, false); err != nil {
			return err
		}
	}
	return c.validateNames()
}

func (c *Change) validateNames() error {
	for _, s := range c.Shards {
		if s.ID == "" || s.Host == "" {
			return invalid(s.ID, "is a shard without id or host")
		}
	}
	for _, d := range c.Databases {
		if db, coll := SplitNS(d.Name); db == "" || coll != "" || d.Primary == "" {
			return invalid(d.Name, "is a database without a proper name or primary")
		}
	}
	for _, s := range c.Settings {
		if s.ID == "" || s.Doc.Validate() != nil {
			return invalid(s.ID, "is a setting without id or document")
		}
	}
	for i := range c.Movements {
		if err := c.Movements[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Collection) validate() error {
	if db, coll := SplitNS(c.NS); db == "" || coll == "" {
		return invalid(c.NS, "is not a namespace")
	}
	if (c.Kind == KindSharded) != (len(c.Key) > 0) {
		return invalid(c.NS, "must have a key if and only if it is sharded")
	}
	switch c.State {
	case StateOpen, StateModifying, StateHeld, StateFenced, StateDropping, StateRenaming:
		return nil
	default:
		return invalid(c.NS, "has no state")
	}
}

func (c *CollectionChunks) validate() error {
	if err := c.Collection.validate(); err != nil {
		return err
	}
	if !c.Kind.Admits(len(c.Chunks)) {
		return invalid(c.NS, fmt.Sprintf("is %q and has %d chunks", c.Kind, len(c.Chunks)))
	}
	return validateChunks(c.NS, c.Chunks, true)
}

// Admits reports whether a collection of this kind may have n chunks: an
// unsharded one has one, a view none, a sharded one at least one.
func (k Kind) Admits(n int) bool {
	switch k {
	case KindUnsharded:
		return n == 1
	case KindSharded:
		return n >= 1
	case KindView:
		return n == 0
	default:
		return false
	}
}

// validateChunks checks that chunks ascend, and if whole that they leave no gap.
func validateChunks(ns string, chunks []Chunk, whole bool) error {
	seen := make(map[bson.ObjectID]bool, len(chunks))
	for i := range chunks {
		c := &chunks[i]
		switch {
		case bytes.Compare(c.MinKey, c.MaxKey) >= 0:
			return invalid(ns, fmt.Sprintf("has a chunk %s whose keys do not ascend", c.ID.Hex()))
		case c.Shard == "":
			return invalid(ns, fmt.Sprintf("has a chunk %s on no shard", c.ID.Hex()))
		case seen[c.ID]:
			return invalid(ns, fmt.Sprintf("has two chunks %s", c.ID.Hex()))
		case i == 0:
		case whole && !bytes.Equal(chunks[i-1].MaxKey, c.MinKey),
			bytes.Compare(chunks[i-1].MaxKey, c.MinKey) > 0:
			return invalid(ns, fmt.Sprintf("has a gap or an overlap before chunk %s", c.ID.Hex()))
		}
		seen[c.ID] = true
	}
	return nil
}

// CheckCover checks that the chunks which an edit puts cover exactly the ranges
// of those it removes. Stores call it with the chunks that they found for
// e.Remove: ErrConflict if some were missing, ErrInvalid if the ranges differ.
func (e *ChunkEdit) CheckCover(removed []Chunk) error {
	if len(removed) != len(e.Remove) {
		return fmt.Errorf("%w: %q: %d of the %d chunks to replace are not there",
			ErrConflict, e.NS, len(e.Remove)-len(removed), len(e.Remove))
	}
	removed = slices.Clone(removed)
	slices.SortFunc(removed, func(a, b Chunk) int { return bytes.Compare(a.MinKey, b.MinKey) })
	if !slices.EqualFunc(ranges(removed), ranges(e.Put), func(a, b keyRange) bool {
		return bytes.Equal(a.min, b.min) && bytes.Equal(a.max, b.max)
	}) {
		return invalid(e.NS, "has an edit that covers other ranges than before")
	}
	return nil
}

type keyRange struct{ min, max []byte }

// ranges joins ascending chunks that touch.
func ranges(chunks []Chunk) []keyRange {
	var out []keyRange
	for i := range chunks {
		c := &chunks[i]
		if n := len(out); n > 0 && bytes.Equal(out[n-1].max, c.MinKey) {
			out[n-1].max = c.MaxKey
			continue
		}
		out = append(out, keyRange{c.MinKey, c.MaxKey})
	}
	return out
}

func invalid(name, text string) error {
	return fmt.Errorf("%w: %q %s", ErrInvalid, name, text)
}
