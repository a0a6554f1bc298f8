package target

import (
	"bytes"
	"slices"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// interval is a range [lo, hi) of one field's ordered bytes. Of a point, lo is
// the value and hi the same with shardkey.After behind it.
type interval struct {
	lo, hi []byte
	point  bool
}

// ranges is a set of intervals, ascending and disjoint.
type ranges []interval

// everything contains every value.
func everything() ranges { return ranges{{lo: nil, hi: []byte{shardkey.After}}} }

// pointAt is the interval of one encoded value, which it keeps.
func pointAt(value []byte) interval {
	hi := append(value, shardkey.After)
	return interval{lo: hi[:len(value):len(value)], hi: hi, point: true}
}

// whole says whether the set is everything.
func (r ranges) whole() bool {
	return len(r) == 1 && len(r[0].lo) == 0 && len(r[0].hi) == 1 && r[0].hi[0] == shardkey.After
}

// normal sorts intervals and joins those that overlap.
func normal(list []interval) ranges {
	slices.SortFunc(list, func(a, b interval) int {
		if c := bytes.Compare(a.lo, b.lo); c != 0 {
			return c
		}
		return bytes.Compare(a.hi, b.hi)
	})
	out := list[:0]
	for _, next := range list {
		if len(out) == 0 || bytes.Compare(out[len(out)-1].hi, next.lo) <= 0 {
			out = append(out, next)
			continue
		}
		last := &out[len(out)-1]
		if bytes.Compare(next.hi, last.hi) > 0 {
			last.hi = next.hi
			last.point = false
		}
	}
	return out
}

// union is the set of what is in either.
func (r ranges) union(s ranges) ranges {
	switch {
	case r.whole():
		return r
	case s.whole():
		return s
	default:
		return normal(slices.Concat(r, s))
	}
}

// intersect is the set of what is in both.
func (r ranges) intersect(s ranges) ranges {
	switch {
	case r.whole():
		return s
	case s.whole():
		return r
	}
	var out ranges
	for len(r) > 0 && len(s) > 0 {
		a, b := r[0], s[0]
		both := a
		if bytes.Compare(b.lo, a.lo) > 0 {
			both.lo = b.lo
		}
		if bytes.Compare(b.hi, a.hi) < 0 {
			both.hi = b.hi
		}
		if bytes.Compare(both.lo, both.hi) < 0 {
			both.point = isPoint(both)
			out = append(out, both)
		}
		if bytes.Compare(a.hi, b.hi) < 0 {
			r = r[1:]
		} else {
			s = s[1:]
		}
	}
	return out
}

// isPoint says whether an interval contains the keys of one value only.
func isPoint(i interval) bool {
	n := len(i.lo)
	return len(i.hi) == n+1 && i.hi[n] == shardkey.After && bytes.HasPrefix(i.hi, i.lo) && shardkey.FieldLen(i.lo) == n
}

// hull is the interval from the least to the greatest value.
func (r ranges) hull() interval {
	return interval{lo: r[0].lo, hi: r[len(r)-1].hi, point: len(r) == 1 && r[0].point}
}
