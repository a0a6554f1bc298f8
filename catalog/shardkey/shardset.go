package shardkey

import (
	"iter"
	"math/bits"
)

// ShardSet is a set of indexes into Table.Shards. The zero value is empty; up to
// 64 shards it allocates nothing. It is not safe for concurrent changes.
type ShardSet struct {
	word uint64   // members below 64
	more []uint64 // members from 64 on
	n    int
}

const wordBits = 64

// Add puts i into the set.
func (s *ShardSet) Add(i int) {
	w, bit := &s.word, uint64(1)<<(i%wordBits)
	if i >= wordBits {
		for len(s.more) < i/wordBits {
			s.more = append(s.more, 0)
		}
		w = &s.more[i/wordBits-1]
	}
	if *w&bit == 0 {
		*w |= bit
		s.n++
	}
}

// Has says whether i is in the set.
func (s *ShardSet) Has(i int) bool {
	if i < wordBits {
		return s.word>>i&1 == 1
	}
	return i/wordBits <= len(s.more) && s.more[i/wordBits-1]>>(i%wordBits)&1 == 1
}

// Len is the number of members.
func (s *ShardSet) Len() int { return s.n }

// First is the least member, or -1.
func (s *ShardSet) First() int {
	for i := range s.All() {
		return i
	}
	return -1
}

// All yields the members, ascending.
func (s *ShardSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for w := range len(s.more) + 1 {
			rest := s.word
			if w > 0 {
				rest = s.more[w-1]
			}
			for ; rest != 0; rest &= rest - 1 {
				if !yield(w*wordBits + bits.TrailingZeros64(rest)) {
					return
				}
			}
		}
	}
}
