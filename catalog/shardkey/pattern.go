package shardkey

import (
	"fmt"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxFields is the limit of an index's fields, and so of a key's.
const maxFields = 32

// Field is one field of a shard key.
type Field struct {
	Name   string // dotted path
	Hashed bool

	parts []string // the path's components
}

// Path returns the components of the field's path. It must not be changed.
func (f *Field) Path() []string { return f.parts }

// Pattern is a shard key: field paths, each ascending or hashed, at most one
// hashed. Make one with ParsePattern.
type Pattern struct {
	raw    bson.Raw
	fields []Field
	hashed int
}

// PatternError is the text, meant for the client, of why a document is not a
// shard key (code 2, BadValue).
type PatternError string

// Error returns the text.
func (e PatternError) Error() string { return string(e) }

func refuse(format string, args ...any) error {
	return PatternError(fmt.Sprintf(format, args...))
}

// ParsePattern reads a key document such as {a: 1, b: "hashed"}. Its error is a
// PatternError, or ErrMalformed.
func ParsePattern(raw bson.Raw) (*Pattern, error) {
	p := &Pattern{raw: append(bson.Raw(nil), raw...), hashed: -1}
	r := NewReader(p.raw)
	for r.Next() {
		f := Field{Name: string(r.Name)}
		f.parts = strings.Split(f.Name, ".")
		if err := checkPath(f); err != nil {
			return nil, err
		}
		switch {
		case r.Type == bson.TypeString && string(text(r.Value)) == "hashed" && p.hashed < 0:
			f.Hashed, p.hashed = true, len(p.fields)
		case isOne(r.Type, r.Value):
		default:
			return nil, refuse("Shard key %s can contain at most one 'hashed' field, and/or multiple "+
				"numerical fields set to a value of 1. Failed to parse field %s", Format(p.raw), f.Name)
		}
		if err := p.add(f); err != nil {
			return nil, err
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if len(p.fields) == 0 {
		return nil, refuse("Shard key is empty")
	}
	return p, nil
}

// add appends a field, which no other field may equal or contain.
func (p *Pattern) add(f Field) error {
	for i := range p.fields {
		if Overlaps(p.fields[i].parts, f.parts) {
			return refuse("Shard key %s has fields of which one contains the other: %s and %s",
				Format(p.raw), p.fields[i].Name, f.Name)
		}
	}
	if len(p.fields) == maxFields {
		return refuse("Shard key %s has more than %d fields", Format(p.raw), maxFields)
	}
	p.fields = append(p.fields, f)
	return nil
}

// checkPath refuses names that cannot be shard key fields.
func checkPath(f Field) error {
	for i, part := range f.parts {
		if part == "" {
			return refuse("Field %s contains empty parts", f.Name)
		}
		dbref := i > 0 && (part == "$id" || part == "$ref" || part == "$db")
		if part[0] == '$' && !dbref {
			return refuse("Field %s contains parts that start with '$'", f.Name)
		}
	}
	return nil
}

// isOne says whether a value is the number 1, of whatever type.
func isOne(t bson.Type, value []byte) bool {
	switch t {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		var one [4]byte
		one[0] = 1
		return Compare(t, value, bson.TypeInt32, one[:]) == 0
	default:
		return false
	}
}

// Overlaps says whether one path equals the other or contains it.
func Overlaps(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Raw returns the key document, which must not be changed.
func (p *Pattern) Raw() bson.Raw { return p.raw }

// String is the key as MongoDB's messages print it.
func (p *Pattern) String() string { return Format(p.raw) }

// Len is the number of fields.
func (p *Pattern) Len() int { return len(p.fields) }

// Field returns field i, which must not be changed.
func (p *Pattern) Field(i int) *Field { return &p.fields[i] }

// HashedField is the index of the hashed field, or -1.
func (p *Pattern) HashedField() int { return p.hashed }

// Index returns the index of the field with this name, or -1.
func (p *Pattern) Index(name []byte) int {
	for i := range p.fields {
		if p.fields[i].Name == string(name) {
			return i
		}
	}
	return -1
}

// IsNaN says whether a value is the double or Decimal128 NaN.
func IsNaN(t bson.Type, value []byte) bool {
	switch t {
	case bson.TypeDouble:
		return math.IsNaN(floatOf(value))
	case bson.TypeDecimal128:
		return readDecimal(value).class == decNaN
	default:
		return false
	}
}

// floatOf is a double value's number.
func floatOf(value []byte) float64 { return math.Float64frombits(le64(value)) }
