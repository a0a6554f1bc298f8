package owned

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Predicate is a condition on a document.
type Predicate struct {
	expr bson.Raw
}

// Expr is the condition as an expression.
func (p Predicate) Expr() bson.Raw { return p.expr }

// Match is the condition as a filter.
func (p Predicate) Match() bson.Raw { return bson.Raw(bsoncore.BuildDocument(nil, p.AppendTo(nil))) }

// AppendTo appends the filter's one element. Behind the elements of another filter it is one
// more condition, even if that has an $expr already.
func (p Predicate) AppendTo(filter []byte) []byte {
	return bsoncore.AppendDocumentElement(filter, "$expr", bsoncore.Document(p.expr))
}

// In is the condition that a document's key lies in one of the ranges, of which there is at
// least one. The error is ErrBound.
func In(p *shardkey.Pattern, ranges []catalog.Range) (Predicate, error) {
	in, err := anyOf(p, ranges)
	if err != nil {
		return Predicate{}, err
	}
	return written(in)
}

// NotIn is the condition that a document's key lies in none of the ranges.
func NotIn(p *shardkey.Pattern, ranges []catalog.Range) (Predicate, error) {
	in, err := anyOf(p, ranges)
	if err != nil {
		return Predicate{}, err
	}
	return written(bson.D{{Key: "$not", Value: bson.A{in}}})
}

func written(expr bson.D) (Predicate, error) {
	raw, err := bson.Marshal(expr)
	return Predicate{raw}, err
}

// anyOf is the expression that a document's key lies in one of the ranges.
func anyOf(p *shardkey.Pattern, ranges []catalog.Range) (bson.D, error) {
	list := bson.A{}
	for _, r := range joined(ranges) {
		within, err := inRange(p, &r)
		if err != nil {
			return nil, err
		}
		list = append(list, within)
	}
	return bson.D{{Key: "$or", Value: list}}, nil
}

// joined returns the ranges in order, those that touch or overlap as one.
func joined(ranges []catalog.Range) []catalog.Range {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b catalog.Range) int { return bytes.Compare(a.MinKey, b.MinKey) })
	out := sorted[:0]
	for _, r := range sorted {
		if n := len(out) - 1; n < 0 || bytes.Compare(out[n].MaxKey, r.MinKey) < 0 {
			out = append(out, r)
		} else if bytes.Compare(out[n].MaxKey, r.MaxKey) < 0 {
			out[n].Max, out[n].MaxKey = r.Max, r.MaxKey
		}
	}
	return out
}

// inRange is the expression that a document's key lies in a range.
func inRange(p *shardkey.Pattern, r *catalog.Range) (bson.D, error) {
	lower, err := bound(p, r.Min)
	if err != nil {
		return nil, err
	}
	upper, err := bound(p, r.Max)
	if err != nil {
		return nil, err
	}
	both := bson.A{} // of nothing $and is true
	if len(lower) > 0 {
		both = append(both, compare("$gte", p, lower))
	}
	if !isLast(p, upper) {
		both = append(both, compare("$lt", p, upper))
	}
	return bson.D{{Key: "$and", Value: both}}, nil
}

// bound lists a bound's values without MinKeys at the end.
func bound(p *shardkey.Pattern, doc bson.Raw) ([]bson.RawValue, error) {
	if err := Expressible(p, doc); err != nil {
		return nil, err
	}
	var values []bson.RawValue
	last := 0
	for r := shardkey.NewReader(doc); r.Next(); {
		values = append(values, bson.RawValue{Type: r.Type, Value: r.Value})
		if r.Type != bson.TypeMinKey {
			last = len(values)
		}
	}
	return values[:last], nil
}

// isLast reports whether a bound is the upper one of the last chunk.
func isLast(p *shardkey.Pattern, values []bson.RawValue) bool {
	for _, v := range values {
		if v.Type != bson.TypeMaxKey {
			return false
		}
	}
	return len(values) == p.Len()
}
