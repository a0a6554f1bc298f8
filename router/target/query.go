package target

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Why says how the targets of a query were found.
type Why string

// The reasons.
const (
	WhyKey           Why = "key"           // equality on the whole key: one chunk
	WhyRanges        Why = "ranges"        // points or ranges of the key
	WhyAll           Why = "all"           // nothing is known of the key's first field
	WhyContradiction Why = "contradiction" // nothing can match; one shard, for an answer
)

// Targets are the shards that a query must be sent to.
type Targets struct {
	// Shards are indexes into Table.Shards; there is always one.
	Shards shardkey.ShardSet
	// Exact says that the query demands one key, and everything that it can
	// match lies in that key's chunk.
	Exact bool
	// Key is the key that the query demands by equality on every field, in
	// ordered bytes; nil if it does not. It may be there although Exact is false:
	// {k: null} also matches a stored undefined, which may lie in another chunk.
	// An upsert, and a write of one document, goes to the chunk of Key.
	Key []byte
	Why Why
}

// MarshalJSON prints the targets, for explain and for goldens.
func (t Targets) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Shards []int  `json:"shards"`
		Exact  bool   `json:"exact"`
		Key    string `json:"key,omitempty"`
		Why    Why    `json:"why"`
	}{slices.Collect(t.Shards.All()), t.Exact, hex.EncodeToString(t.Key), t.Why})
}

// Query returns the shards that can hold a match of filter. collated says that a
// collation other than simple applies. The error is shardkey.ErrMalformed.
func Query(p *shardkey.Pattern, t *shardkey.Table, filter bson.Raw, collated bool) (Targets, error) {
	d := reading{p: p, collated: collated}
	boxes, err := d.document(orEmpty(filter), 0)
	if err != nil {
		return Targets{}, err
	}
	if len(boxes) == 0 {
		out := Targets{Why: WhyContradiction}
		out.Shards.Add(t.ShardOf(0))
		return out, nil
	}
	s := search{t: t, chunk: -1}
	for _, b := range boxes {
		s.box(b)
	}
	out := Targets{Shards: s.set, Key: demandedKey(p, boxes), Why: WhyRanges}
	switch {
	case out.Key != nil && !s.several:
		out.Exact, out.Why = true, WhyKey
	case s.all:
		out.Why = WhyAll
	}
	return out, nil
}

// orEmpty lets an absent filter match everything.
func orEmpty(filter bson.Raw) []byte {
	if len(filter) == 0 {
		return []byte{5, 0, 0, 0, 0}
	}
	return filter
}

// demandedKey is the key that all boxes demand, or nil.
func demandedKey(p *shardkey.Pattern, boxes []box) []byte {
	var key []byte
	for _, b := range boxes {
		var k []byte
		for i := range b {
			if !b[i].pinned {
				return nil
			}
			k = p.AppendField(k, i, b[i].value.Type, b[i].value.Value)
		}
		if key != nil && !bytes.Equal(key, k) {
			return nil
		}
		key = k
	}
	return key
}

// search collects the owners of what boxes cover.
type search struct {
	t       *shardkey.Table
	set     shardkey.ShardSet
	chunk   int  // the only chunk so far, or -1
	several bool // more than one chunk
	all     bool // a box covers everything
}

// full says that no shard is left to find.
func (s *search) full() bool { return s.set.Len() == len(s.t.Shards()) && s.several }

// box adds what a box covers.
func (s *search) box(b box) {
	if b[0].in.whole() {
		s.all, s.several = true, true
		s.t.All(&s.set)
		return
	}
	points := 1
	exact := 0 // leading fields whose intervals are taken one by one
	for exact < len(b) && points <= maxPoints/len(b[exact].in) {
		points *= len(b[exact].in)
		exact++
	}
	s.fields(nil, b, exact)
}

// fields adds the keys that begin with prefix and go on in b.
func (s *search) fields(prefix []byte, b box, exact int) {
	if len(b) == 0 {
		s.point(prefix)
		return
	}
	in := b[0].in
	if exact == 0 {
		in = ranges{b[0].in.hull()}
	}
	for _, i := range in {
		if s.full() {
			return
		}
		lo := append(prefix[:len(prefix):len(prefix)], i.lo...)
		if i.point {
			s.fields(lo, b[1:], max(exact-1, 0))
			continue
		}
		s.span(lo, append(prefix[:len(prefix):len(prefix)], i.hi...))
	}
}

// point adds the chunk of a whole key.
func (s *search) point(key []byte) {
	c := s.t.Find(key)
	s.set.Add(s.t.ShardOf(c))
	s.saw(c)
}

// span adds the chunks of keys from lo up to hi.
func (s *search) span(lo, hi []byte) {
	c := s.t.Find(lo)
	s.saw(c)
	if c+1 < s.t.Len() && bytes.Compare(s.t.Chunk(c+1).MinKey, hi) < 0 {
		s.several = true
	}
	s.t.Overlap(lo, hi, false, &s.set)
}

func (s *search) saw(chunk int) {
	s.several = s.several || s.chunk >= 0 && s.chunk != chunk
	s.chunk = chunk
}

// ExactKey is the fast path for filters that name every field of the key in plain
// equality, such as {_id: 5}. Other conditions may stand beside them. It appends
// the key to dst, without allocating if that has room. If it is not ok, Query
// knows more. The rest of the filter is not looked at.
func ExactKey(p *shardkey.Pattern, dst, filter []byte, collated bool) (key []byte, ok bool) {
	key = dst
	for i := range p.Len() {
		name := p.Field(i).Name
		r := shardkey.NewReader(filter)
		for {
			if !r.Next() {
				return dst, false
			}
			if string(r.Name) == name {
				break
			}
		}
		if !isPlainValue(r.Type, r.Value, collated) {
			return dst, false
		}
		key = p.AppendField(key, i, r.Type, r.Value)
	}
	return key, true
}

// OnlyKey is ExactKey for a filter that has nothing but these equalities: what Query would
// say of it is that key, exactly.
func OnlyKey(p *shardkey.Pattern, dst, filter []byte, collated bool) (key []byte, ok bool) {
	n := 0
	r := shardkey.NewReader(filter)
	for r.Next() {
		n++
	}
	if r.Err() != nil || n != p.Len() {
		return dst, false
	}
	return ExactKey(p, dst, filter, collated)
}

// isPlainValue says whether a value as the right side of a field means equality
// with one place and no other.
func isPlainValue(t bson.Type, value []byte, collated bool) bool {
	switch t {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128, bson.TypeObjectID, bson.TypeBinary,
		bson.TypeDateTime, bson.TypeTimestamp, bson.TypeBoolean:
		return true
	case bson.TypeString:
		return !collated
	case bson.TypeEmbeddedDocument:
		return !collated && !isOperators(t, value)
	default:
		return false
	}
}
