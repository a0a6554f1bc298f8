package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrMalformed says that bytes are not BSON.
var ErrMalformed = errors.New("wire: malformed BSON")

// Elem is one element of a raw document. Raw is the whole element; Name and
// Value alias the document.
type Elem struct {
	Type  bson.Type
	Name  []byte
	Value []byte
	Raw   []byte
}

// Doc is a raw document, read element by element without decoding.
type Doc []byte

// Iter walks a document's elements. The zero value is of no use; see Doc.Iter.
type Iter struct {
	rest []byte
	err  error
}

// Iter starts a walk. A frame that does not fit its bytes ends the walk at once
// with ErrMalformed.
func (d Doc) Iter() Iter {
	if len(d) < 5 || int(int32(binary.LittleEndian.Uint32(d))) != len(d) || d[len(d)-1] != 0 {
		return Iter{err: ErrMalformed}
	}
	return Iter{rest: d[4 : len(d)-1]}
}

// Err returns ErrMalformed if the walk ended before the document did.
func (it *Iter) Err() error { return it.err }

// Next reads the next element into e; false at the end or at malformed bytes.
func (it *Iter) Next(e *Elem) bool {
	if len(it.rest) == 0 {
		return false
	}
	b := it.rest
	end := bytes.IndexByte(b[1:], 0)
	if end < 0 {
		return it.fail()
	}
	n := ValueLen(bson.Type(b[0]), b[end+2:])
	if n < 0 || n > len(b)-end-2 {
		return it.fail()
	}
	e.Type = bson.Type(b[0])
	e.Name = b[1 : end+1]
	e.Value = b[end+2 : end+2+n]
	e.Raw = b[:end+2+n]
	it.rest = b[end+2+n:]
	return true
}

// FirstElem reads the element that a run of elements (a document without its frame)
// begins with, and its length; 0 at the end or at malformed bytes.
func FirstElem(elems []byte) (e Elem, n int) {
	it := Iter{rest: elems}
	if !it.Next(&e) {
		return Elem{}, 0
	}
	return e, len(e.Raw)
}

func (it *Iter) fail() bool {
	it.rest, it.err = nil, ErrMalformed
	return false
}

// ValueLen returns the length in bytes of a value of type t that begins at b, or
// -1 where the bytes cannot be one. It looks at lengths and frames, not inside.
func ValueLen(t bson.Type, b []byte) int {
	switch t {
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		return fixed(b, 8)
	case bson.TypeInt32:
		return fixed(b, 4)
	case bson.TypeBoolean:
		return fixed(b, 1)
	case bson.TypeObjectID:
		return fixed(b, 12)
	case bson.TypeDecimal128:
		return fixed(b, 16)
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
		return 0
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		return stringLen(b)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return frameLen(b, 5)
	case bson.TypeCodeWithScope:
		return frameLen(b, 14)
	case bson.TypeBinary:
		return prefixed(b, 5)
	case bson.TypeRegex:
		return regexLen(b)
	case bson.TypeDBPointer:
		if n := stringLen(b); n > 0 && len(b) >= n+12 {
			return n + 12
		}
	}
	return -1
}

func fixed(b []byte, n int) int {
	if len(b) < n {
		return -1
	}
	return n
}

func prefixed(b []byte, extra int) int {
	if len(b) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < 0 || n > len(b)-extra {
		return -1
	}
	return n + extra
}

func stringLen(b []byte) int {
	n := prefixed(b, 4)
	if n < 5 || b[n-1] != 0 {
		return -1
	}
	return n
}

func frameLen(b []byte, least int) int {
	if len(b) < least {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < least || n > len(b) || b[n-1] != 0 {
		return -1
	}
	return n
}

func regexLen(b []byte) int {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return -1
	}
	j := bytes.IndexByte(b[i+1:], 0)
	if j < 0 {
		return -1
	}
	return i + j + 2
}

// Lookup returns the first element called name; ok is false where there is none
// or the document is malformed before it.
func (d Doc) Lookup(name string) (e Elem, ok bool) {
	it := d.Iter()
	for it.Next(&e) {
		if string(e.Name) == name {
			return e, true
		}
	}
	return Elem{}, false
}

// First returns the document's first element.
func (d Doc) First() (e Elem, ok bool) {
	it := d.Iter()
	ok = it.Next(&e)
	return e, ok
}

// Validate walks the document and all that is in it: frames, types, and at most
// depth levels of nesting.
func (d Doc) Validate(depth int) error {
	it := d.Iter()
	var e Elem
	for it.Next(&e) {
		if e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray {
			continue
		}
		if depth <= 0 {
			return ErrTooDeep
		}
		if err := Doc(e.Value).Validate(depth - 1); err != nil {
			return err
		}
	}
	return it.Err()
}

// ErrTooDeep says that a document nests deeper than allowed.
var ErrTooDeep = errors.New("wire: document exceeds maximum nested object depth")

// Doc returns the value as a document; ok is false for other types.
func (e Elem) Doc() (Doc, bool) {
	return Doc(e.Value), e.Type == bson.TypeEmbeddedDocument
}

// Str returns the value as text; ok is false for other types.
func (e Elem) Str() (string, bool) {
	if e.Type != bson.TypeString || len(e.Value) < 5 {
		return "", false
	}
	return string(e.Value[4 : len(e.Value)-1]), true
}

// StrBytes is Str without a copy.
func (e Elem) StrBytes() ([]byte, bool) {
	if e.Type != bson.TypeString || len(e.Value) < 5 {
		return nil, false
	}
	return e.Value[4 : len(e.Value)-1], true
}

// Int64 returns any number as int64, doubles truncated and clamped; ok is false
// for other types and for Decimal128, which no command option needs.
func (e Elem) Int64() (int64, bool) {
	switch e.Type {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.Value))), true
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(e.Value)), true
	case bson.TypeDouble:
		f := math.Float64frombits(binary.LittleEndian.Uint64(e.Value))
		switch {
		case math.IsNaN(f):
			return 0, true
		case f >= math.MaxInt64:
			return math.MaxInt64, true
		case f <= math.MinInt64:
			return math.MinInt64, true
		}
		return int64(f), true
	default:
		return 0, false
	}
}

// Bool returns the value as MongoDB reads flags: booleans, and numbers other
// than zero; ok is false for other types.
func (e Elem) Bool() (v, ok bool) {
	if e.Type == bson.TypeBoolean {
		return e.Value[0] != 0, true
	}
	if e.Type == bson.TypeDouble {
		return math.Float64frombits(binary.LittleEndian.Uint64(e.Value)) != 0, true
	}
	n, ok := e.Int64()
	return n != 0, ok
}

// Timestamp returns a BSON timestamp as seconds<<32 | ordinal.
func (e Elem) Timestamp() (uint64, bool) {
	if e.Type != bson.TypeTimestamp {
		return 0, false
	}
	return binary.LittleEndian.Uint64(e.Value), true
}

// RawValue returns the value in the driver's form, aliasing the document.
func (e Elem) RawValue() bson.RawValue {
	return bson.RawValue{Type: e.Type, Value: e.Value}
}

// IsNull reports whether an optional argument is absent: BSON null or undefined
// (MONGOSH.md §1.4).
func (e Elem) IsNull() bool {
	return e.Type == bson.TypeNull || e.Type == bson.TypeUndefined
}
