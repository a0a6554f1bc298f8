package target

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// condition is what a filter says of the path of one key field, or of a path
// above it; then rest leads on to the field.
type condition struct {
	*reading
	field int
	rest  []string
}

// read reads the right side of {path: …}. It reports whether it narrows.
func (c *condition) read(t bson.Type, value []byte) (f fieldBox, narrows bool, err error) {
	if !isOperators(t, value) {
		return c.equality(t, value, true)
	}
	f.in = everything()
	r := shardkey.NewReader(value)
	for r.Next() {
		g, ok, err := c.operator(string(r.Name), r.Type, r.Value)
		if err != nil {
			return f, false, err
		}
		if ok {
			f, narrows = f.and(g), true
		}
	}
	return f, narrows, r.Err()
}

// operator reads {$op: value}.
func (c *condition) operator(op string, t bson.Type, value []byte) (fieldBox, bool, error) {
	switch op {
	case "$eq":
		return c.equality(t, value, false)
	case "$in":
		return c.in(t, value)
	case "$gt", "$gte", "$lt", "$lte":
		f, ok := c.inequality(op, t, value)
		return f, ok, nil
	case "$exists":
		if isFalse(t, value) {
			return fieldBox{in: ranges{c.pointOf(bson.TypeNull, nil)}}, true, nil
		}
	}
	return fieldBox{}, false, nil
}

// equality reads equality with a value. As the bare right side of a field, a
// regular expression is a pattern.
func (c *condition) equality(t bson.Type, value []byte, bare bool) (f fieldBox, narrows bool, err error) {
	if bare && t == bson.TypeRegex {
		in, ok := c.matching(value)
		return fieldBox{in: in}, ok, nil
	}
	// An array may equal an array, an undefined is refused by mongod.
	if t == bson.TypeArray || t == bson.TypeUndefined {
		return f, false, nil
	}
	if c.rest != nil && t == bson.TypeRegex {
		return f, false, nil
	}
	below := c.rest != nil && t == bson.TypeEmbeddedDocument
	if c.rest != nil {
		var ok bool
		if t, value, ok, err = c.descend(t, value); !ok || err != nil {
			return f, false, err
		}
	}
	if c.bent(t) {
		return f, false, nil
	}
	f.value, f.pinned = bson.RawValue{Type: t, Value: value}, true
	f.in = ranges{c.pointOf(t, value)}
	if t == bson.TypeNull && !below {
		f.in = c.nullish()
	}
	return f, true, nil
}

// descend finds the value that the key field has if the path above it equals a
// value: what lies there, or null.
func (c *condition) descend(t bson.Type, value []byte) (bson.Type, []byte, bool, error) {
	if t != bson.TypeEmbeddedDocument {
		return bson.TypeNull, nil, true, nil
	}
	t, value, found, err := shardkey.Lookup(value, c.rest)
	switch {
	case errors.Is(err, shardkey.ErrArray):
		return 0, nil, false, nil
	case err != nil:
		return 0, nil, false, err
	case !found:
		return bson.TypeNull, nil, true, nil
	default:
		return t, value, true, nil
	}
}

// bent says whether a collation may make other values equal to one of type t.
func (c *condition) bent(t bson.Type) bool {
	if !c.collated {
		return false
	}
	switch t {
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript, bson.TypeCodeWithScope,
		bson.TypeEmbeddedDocument, bson.TypeArray:
		return true
	default:
		return false
	}
}

// pointOf is the place of a value.
func (c *condition) pointOf(t bson.Type, value []byte) interval {
	return pointAt(c.p.AppendField(make([]byte, 0, 16), c.field, t, value))
}

// nullish are the places of what a query for null matches.
func (c *condition) nullish() ranges {
	return normal([]interval{c.pointOf(bson.TypeUndefined, nil), c.pointOf(bson.TypeNull, nil)})
}

// in reads the list of $in: the union of equalities, one of which is an equality.
func (c *condition) in(t bson.Type, list []byte) (f fieldBox, narrows bool, err error) {
	if t != bson.TypeArray {
		return f, false, nil
	}
	var all []interval
	r := shardkey.NewReader(list)
	n := 0
	for ; r.Next(); n++ {
		g, ok, err := c.equality(r.Type, r.Value, true)
		if !ok || err != nil || n == maxPoints {
			return f, false, err
		}
		f.value, f.pinned = g.value, g.pinned
		all = append(all, g.in...)
	}
	f.pinned = f.pinned && n == 1
	f.in = normal(all)
	return f, true, r.Err()
}

// inequality reads $gt and its like. They match only values of the same class.
func (c *condition) inequality(op string, t bson.Type, value []byte) (f fieldBox, narrows bool) {
	if c.rest != nil || c.field == c.p.HashedField() || c.bent(t) {
		return f, false
	}
	switch t {
	case bson.TypeNull: // $gte and $lte match null, the others nothing
		f.in = c.nullish()
		return f, true
	case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
		return f, false
	}
	point := c.pointOf(t, value)
	class := shardkey.Class(t)
	i := interval{lo: []byte{class}, hi: []byte{class + 1}}
	switch {
	case shardkey.IsNaN(t, value): // matches NaN or nothing
		i = point
	case op == "$gt":
		i.lo = point.hi
	case op == "$gte":
		i.lo = point.lo
	case op == "$lt":
		i.hi = point.lo
	case op == "$lte":
		i.hi = point.hi
	}
	f.in = ranges{i}
	return f, true
}

// isFalse says whether a value is false or the number zero.
func isFalse(t bson.Type, value []byte) bool {
	switch t {
	case bson.TypeBoolean:
		return len(value) == 1 && value[0] == 0
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return shardkey.Compare(t, value, bson.TypeInt32, []byte{0, 0, 0, 0}) == 0
	default:
		return false
	}
}
