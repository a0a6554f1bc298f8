package target

import (
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// A small matcher with mongod's meaning of the operators that Query narrows by,
// and of some that it does not. It is written from the documentation, apart from
// the code under test.

type matcher struct {
	collated bool // letters' case does not matter
}

// at is the value at a path; found is false if it is missing.
func at(d bson.D, path string) (v any, found bool) {
	first, rest, more := strings.Cut(path, ".")
	for _, e := range d {
		if e.Key != first {
			continue
		}
		if !more {
			return e.Value, true
		}
		sub, ok := e.Value.(bson.D)
		if !ok {
			return nil, false
		}
		return at(sub, rest)
	}
	return nil, false
}

func fold(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ToLower(v)
	case bson.D:
		out := bson.D{}
		for _, e := range v {
			out = append(out, bson.E{Key: e.Key, Value: fold(e.Value)})
		}
		return out
	default:
		return v
	}
}

func (m matcher) compare(a, b any) (c int, comparable bool) {
	if m.collated {
		a, b = fold(a), fold(b)
	}
	ta, va, _ := bson.MarshalValue(a)
	tb, vb, _ := bson.MarshalValue(b)
	return shardkey.Compare(ta, va, tb, vb), shardkey.Class(ta) == shardkey.Class(tb)
}

func (m matcher) filter(d, filter bson.D) bool {
	for _, e := range filter {
		var ok bool
		switch e.Key {
		case "$and":
			ok = !slices.ContainsFunc(e.Value.(bson.A), func(f any) bool { return !m.filter(d, f.(bson.D)) })
		case "$or":
			ok = slices.ContainsFunc(e.Value.(bson.A), func(f any) bool { return m.filter(d, f.(bson.D)) })
		case "$nor":
			ok = !slices.ContainsFunc(e.Value.(bson.A), func(f any) bool { return m.filter(d, f.(bson.D)) })
		default:
			v, found := at(d, e.Key)
			ok = m.condition(v, found, e.Value)
		}
		if !ok {
			return false
		}
	}
	return true
}

func (m matcher) condition(v any, found bool, cond any) bool {
	ops, ok := cond.(bson.D)
	if !ok || len(ops) == 0 || ops[0].Key[0] != '$' {
		return m.equal(v, found, cond)
	}
	for _, op := range ops {
		if !m.operator(v, found, op) {
			return false
		}
	}
	return true
}

func (m matcher) equal(v any, found bool, want any) bool {
	if re, ok := want.(bson.Regex); ok {
		s, ok := v.(string)
		return ok && regexp.MustCompile(re.Pattern).MatchString(s)
	}
	if _, null := want.(bson.Null); null {
		_, isNull := v.(bson.Null)
		_, isUndefined := v.(bson.Undefined)
		return !found || isNull || isUndefined
	}
	if !found {
		return false
	}
	c, _ := m.compare(v, want)
	return c == 0
}

func (m matcher) operator(v any, found bool, op bson.E) bool {
	switch op.Key {
	case "$eq":
		return m.equal(v, found, op.Value)
	case "$ne":
		return !m.equal(v, found, op.Value)
	case "$in":
		return slices.ContainsFunc(op.Value.(bson.A), func(w any) bool { return m.equal(v, found, w) })
	case "$nin":
		return !slices.ContainsFunc(op.Value.(bson.A), func(w any) bool { return m.equal(v, found, w) })
	case "$exists":
		return found == op.Value.(bool)
	case "$not":
		return !m.condition(v, found, op.Value)
	}
	return m.inequality(v, found, op)
}

func (m matcher) inequality(v any, found bool, op bson.E) bool {
	switch op.Value.(type) {
	case bson.Null:
		return strings.HasSuffix(op.Key, "e") && m.equal(v, found, op.Value)
	case bson.MinKey:
		c, _ := m.compare(v, op.Value)
		return found && (op.Key == "$gte" || op.Key == "$gt" && c != 0 || op.Key == "$lte" && c == 0)
	case bson.MaxKey:
		c, _ := m.compare(v, op.Value)
		return found && (op.Key == "$lte" || op.Key == "$lt" && c != 0 || op.Key == "$gte" && c == 0)
	}
	c, comparable := m.compare(v, op.Value)
	if !found || !comparable {
		return false
	}
	if isNaNValue(v) != isNaNValue(op.Value) {
		return false
	}
	switch op.Key {
	case "$gt":
		return c > 0
	case "$gte":
		return c >= 0
	case "$lt":
		return c < 0
	default:
		return c <= 0
	}
}

func isNaNValue(v any) bool {
	f, ok := v.(float64)
	return ok && f != f
}
