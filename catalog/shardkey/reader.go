package shardkey

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrMalformed says that a document is not valid BSON.
var ErrMalformed = errors.New("shardkey: malformed BSON")

// MaxDepth is how deeply documents may be nested inside a key; mongod refuses
// to read anything deeper.
const MaxDepth = 200

// Reader walks the elements of a raw document or array without allocating:
//
//	r := NewReader(doc)
//	for r.Next() {
//		use(r.Type, r.Name, r.Value)
//	}
//
// Declare the Reader before the loop: a loop variable would be copied each time.
// Check Err after the loop where a broken document must be told from a short
// one. Only the framing of the elements is checked, nested documents are not.
type Reader struct {
	Type  bson.Type
	Name  []byte
	Value []byte

	rest []byte
	bad  bool
}

// NewReader starts at the first element of doc.
func NewReader(doc []byte) Reader {
	if len(doc) < 5 || int(binary.LittleEndian.Uint32(doc)) != len(doc) || doc[len(doc)-1] != 0 {
		return Reader{bad: true}
	}
	return Reader{rest: doc[4 : len(doc)-1]}
}

// Next goes to the next element; false at the end or where the bytes are broken.
func (r *Reader) Next() bool {
	b := r.rest
	if len(b) == 0 || r.bad {
		return false
	}
	end := nameLen(b[1:])
	if end < 0 {
		r.bad = true
		return false
	}
	value := b[end+2:]
	n := valueLen(bson.Type(b[0]), value)
	if n < 0 || n > len(value) {
		r.bad = true
		return false
	}
	r.Type, r.Name = bson.Type(b[0]), b[1:1+end]
	r.Value, r.rest = value[:n:n], value[n:]
	return true
}

// nameLen is the index of the first NUL, or -1. Names are short: two words of
// eight bytes find most ends faster than a call.
func nameLen(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	if len(b) >= 16 {
		v := binary.LittleEndian.Uint64(b)
		if z := (v - ones) &^ v & highs; z != 0 {
			return bits.TrailingZeros64(z) / 8
		}
		v = binary.LittleEndian.Uint64(b[8:])
		if z := (v - ones) &^ v & highs; z != 0 {
			return 8 + bits.TrailingZeros64(z)/8
		}
	}
	return bytes.IndexByte(b, 0)
}

// Err returns ErrMalformed if the walk ended before the document did.
func (r *Reader) Err() error {
	if r.bad {
		return ErrMalformed
	}
	return nil
}

// valueLen is the number of bytes that a value of type t at the beginning of b
// takes, or -1. It may exceed len(b).
func valueLen(t bson.Type, b []byte) int {
	switch t {
	case bson.TypeInt32:
		return 4
	case bson.TypeObjectID:
		return 12
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		return prefixed(b, 1, 4)
	case bson.TypeInt64, bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp:
		return 8
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return prefixed(b, 5, 0)
	case bson.TypeCodeWithScope:
		return prefixed(b, 14, 0)
	case bson.TypeBoolean:
		return 1
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
		return 0
	case bson.TypeBinary:
		return prefixed(b, 0, 5)
	case bson.TypeDecimal128:
		return 16
	case bson.TypeDBPointer:
		return prefixed(b, 1, 16)
	case bson.TypeRegex:
		return regexLen(b)
	}
	return -1
}

// prefixed is the length of a value that begins with its own int32 length n of
// at least least, plus extra bytes that n does not count.
func prefixed(b []byte, least, extra int) int {
	if len(b) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < least || n > len(b)-extra {
		return -1
	}
	return n + extra
}

// regexLen is the length of two C strings.
func regexLen(b []byte) int {
	first := bytes.IndexByte(b, 0)
	if first < 0 {
		return -1
	}
	second := bytes.IndexByte(b[first+1:], 0)
	if second < 0 {
		return -1
	}
	return first + second + 2
}

// le64 reads a little-endian 64-bit number; 0 if the value is too short, which
// only a caller's mistake can bring about.
func le64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// le32 is like le64 for 32 bits.
func le32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

// text is the content of a string value: without length and final NUL.
func text(value []byte) []byte {
	if len(value) < 5 {
		return nil
	}
	return value[4 : len(value)-1]
}

// codeWithScope takes a value of that type apart; nil, nil if it is broken.
func codeWithScope(value []byte) (code, scope []byte) {
	if len(value) < 14 {
		return nil, nil
	}
	n := prefixed(value[4:], 1, 4)
	if n < 0 || n > len(value)-4-5 {
		return nil, nil
	}
	return text(value[4 : 4+n]), value[4+n:]
}
