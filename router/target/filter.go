package target

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// reading turns a filter into boxes.
type reading struct {
	p        *shardkey.Pattern
	collated bool
}

// document reads a filter document: the conjunction of its elements. No boxes
// mean that nothing can match.
func (d *reading) document(filter []byte, depth int) ([]box, error) {
	boxes := []box{wholeBox(d.p.Len())}
	r := shardkey.NewReader(filter)
	for r.Next() {
		more, err := d.element(&r, depth)
		if err != nil {
			return nil, err
		}
		if more != nil {
			boxes = conjunction(boxes, *more)
		}
	}
	return boxes, r.Err()
}

// element reads one condition; nil if it narrows nothing.
func (d *reading) element(r *shardkey.Reader, depth int) (*[]box, error) {
	if len(r.Name) == 0 || r.Name[0] != '$' {
		b, err := d.path(r)
		if b == nil || err != nil {
			return nil, err
		}
		if b.empty() {
			return &[]box{}, nil
		}
		return &[]box{b}, nil
	}
	if r.Type != bson.TypeArray || depth >= maxNesting {
		return nil, nil
	}
	switch string(r.Name) {
	case "$and":
		return d.all(r.Value, depth+1)
	case "$or":
		return d.any(r.Value, depth+1)
	default:
		return nil, nil
	}
}

// all reads the list of $and.
func (d *reading) all(list []byte, depth int) (*[]box, error) {
	boxes := []box{wholeBox(d.p.Len())}
	r := shardkey.NewReader(list)
	for r.Next() {
		if r.Type != bson.TypeEmbeddedDocument {
			return nil, nil
		}
		more, err := d.document(r.Value, depth)
		if err != nil {
			return nil, err
		}
		boxes = conjunction(boxes, more)
	}
	return &boxes, r.Err()
}

// any reads the list of $or. An empty list is an error that a shard will report.
func (d *reading) any(list []byte, depth int) (*[]box, error) {
	var boxes []box
	r := shardkey.NewReader(list)
	n := 0
	for ; r.Next(); n++ {
		if r.Type != bson.TypeEmbeddedDocument {
			return nil, nil
		}
		more, err := d.document(r.Value, depth)
		if err != nil {
			return nil, err
		}
		boxes = disjunction(boxes, more)
	}
	if n == 0 {
		return nil, r.Err()
	}
	if n > 1 {
		// Only one branch may be able to match, but an upsert takes no value from
		// any of several.
		release(boxes)
	}
	return &boxes, r.Err()
}

// path reads {path: condition}; nil if it narrows nothing.
func (d *reading) path(r *shardkey.Reader) (box, error) {
	var out box
	for i := range d.p.Len() {
		rest, ok := below(d.p.Field(i), string(r.Name))
		if !ok {
			continue
		}
		c := condition{reading: d, field: i, rest: rest}
		f, narrows, err := c.read(r.Type, r.Value)
		if err != nil {
			return nil, err
		}
		if narrows {
			if out == nil {
				out = wholeBox(d.p.Len())
			}
			out[i] = f
		}
	}
	return out, nil
}

// below says whether a path is that of a key field, or above it, and returns the
// rest of the field's path.
func below(f *shardkey.Field, path string) (rest []string, ok bool) {
	if f.Name == path {
		return nil, true
	}
	if len(path) < len(f.Name) && f.Name[len(path)] == '.' && strings.HasPrefix(f.Name, path) {
		return f.Path()[strings.Count(path, ".")+1:], true
	}
	return nil, false
}

// isOperators says whether a value is a document of operators. DBRefs begin with
// $ too and are values.
func isOperators(t bson.Type, value []byte) bool {
	if t != bson.TypeEmbeddedDocument {
		return false
	}
	r := shardkey.NewReader(value)
	if !r.Next() || len(r.Name) == 0 || r.Name[0] != '$' {
		return false
	}
	switch string(r.Name) {
	case "$ref", "$id", "$db":
		return false
	default:
		return true
	}
}
