package shardkey

import (
	"bytes"
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The classes of values, in BSON's order: the first byte of an encoding. They are
// stored in the catalog.
const (
	classEnd       = 0x00 // end of a document or array; no value
	ClassMinKey    = 0x02
	classUndefined = 0x08
	classNull      = 0x10
	classNum       = 0x18
	ClassHash      = 0x1C // a hashed field's hash; not a BSON value
	classString    = 0x20
	classObject    = 0x28
	classArray     = 0x30
	classBinary    = 0x38
	classObjectID  = 0x40
	classBool      = 0x48
	classDate      = 0x50
	classTimestamp = 0x58
	classRegex     = 0x60
	classDBPointer = 0x68
	classCode      = 0x70
	classCodeScope = 0x78
	ClassMaxKey    = 0xF0

	// After, put behind the first fields of a key, gives a bound above all keys
	// that begin with them.
	After = 0xFF
)

const signBit = 1 << 63

// Class is the first byte of the encoding of a value of type t: values compare
// by class first.
func Class(t bson.Type) byte {
	switch t {
	case bson.TypeMinKey:
		return ClassMinKey
	case bson.TypeNull:
		return classNull
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return classNum
	case bson.TypeString, bson.TypeSymbol:
		return classString
	case bson.TypeEmbeddedDocument:
		return classObject
	case bson.TypeArray:
		return classArray
	case bson.TypeBinary:
		return classBinary
	case bson.TypeObjectID:
		return classObjectID
	case bson.TypeBoolean:
		return classBool
	case bson.TypeDateTime:
		return classDate
	case bson.TypeTimestamp:
		return classTimestamp
	case bson.TypeRegex:
		return classRegex
	case bson.TypeDBPointer:
		return classDBPointer
	case bson.TypeJavaScript:
		return classCode
	case bson.TypeCodeWithScope:
		return classCodeScope
	case bson.TypeMaxKey:
		return ClassMaxKey
	default:
		return classUndefined
	}
}

// AppendOrdered appends the ordered bytes of a value (see the package comment).
// It allocates for documents and arrays, and if dst has no room. A value that is
// not valid BSON gives some bytes, never a panic.
func AppendOrdered(dst []byte, t bson.Type, value []byte) []byte {
	dst = append(dst, Class(t))
	if nested(t) {
		// Recursion would let dst escape, even when a scalar is encoded.
		return append(dst, appendNested(make([]byte, 0, len(value)+8), t, value, 0)...)
	}
	return appendScalar(dst, t, value)
}

// nested says whether values of type t contain others.
func nested(t bson.Type) bool {
	return t == bson.TypeEmbeddedDocument || t == bson.TypeArray || t == bson.TypeCodeWithScope
}

func appendScalar(dst []byte, t bson.Type, value []byte) []byte {
	switch t {
	case bson.TypeInt32:
		return appendExact(dst, float64(int32(le32(value))))
	case bson.TypeInt64:
		return appendInt64(dst, int64(le64(value)))
	case bson.TypeDouble:
		return appendExact(dst, floatOf(value))
	case bson.TypeDecimal128:
		return appendDecimal(dst, value)
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return appendText(dst, text(value))
	case bson.TypeObjectID, bson.TypeBoolean, bson.TypeRegex:
		return append(dst, value...)
	case bson.TypeDateTime:
		return binary.BigEndian.AppendUint64(dst, le64(value)^signBit)
	case bson.TypeTimestamp:
		return binary.BigEndian.AppendUint64(dst, le64(value))
	case bson.TypeBinary, bson.TypeDBPointer:
		dst = binary.BigEndian.AppendUint32(dst, le32(value))
		return append(dst, value[min(4, len(value)):]...)
	}
	return dst
}

// appendNested appends what follows the class of a document, array, or code with
// scope.
func appendNested(dst []byte, t bson.Type, value []byte, depth int) []byte {
	switch t {
	case bson.TypeEmbeddedDocument:
		return appendElements(dst, value, true, depth)
	case bson.TypeArray:
		return appendElements(dst, value, false, depth)
	default:
		code, scope := codeWithScope(value)
		return appendElements(appendText(dst, code), scope, true, depth)
	}
}

// appendText appends a string: NUL as 00 FF, the end as 00 00.
func appendText(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, 0)
		if i < 0 {
			break
		}
		dst = append(append(dst, s[:i]...), 0, 0xFF)
		s = s[i+1:]
	}
	return append(append(dst, s...), 0, 0)
}

// The byte behind a number's double: whether the double is the whole number. Of
// negative numbers everything is inverted.
const (
	numExact   = 0x00
	numCutOff  = 0x01
	exponentUp = 8192 // makes a decimal exponent positive
)

// appendExact appends a number that is a double.
func appendExact(dst []byte, f float64) []byte {
	switch {
	case f < 0:
		return append(binary.BigEndian.AppendUint64(dst, ^math.Float64bits(f)), ^byte(numExact))
	case f > 0:
		return append(binary.BigEndian.AppendUint64(dst, math.Float64bits(f)|signBit), numExact)
	case f == 0:
		return append(binary.BigEndian.AppendUint64(dst, signBit), numExact)
	default: // NaN
		return append(dst, 0, 0, 0, 0, 0, 0, 0, 0, numExact)
	}
}

func appendInt64(dst []byte, i int64) []byte {
	const whole = 1 << 53
	if -whole <= i && i <= whole {
		return appendExact(dst, float64(i))
	}
	d := decimal{neg: i < 0, coef: uint128{0, uint64(i)}}
	if d.neg {
		d.coef.lo = -d.coef.lo
	}
	return appendFinite(dst, d)
}

func appendDecimal(dst, value []byte) []byte {
	d := readDecimal(value)
	switch {
	case d.class == decNaN:
		return appendExact(dst, math.NaN())
	case d.class == decInf && d.neg:
		return appendExact(dst, math.Inf(-1))
	case d.class == decInf:
		return appendExact(dst, math.Inf(1))
	default:
		return appendFinite(dst, d)
	}
}

// appendFinite appends a number with its digits if it is no double.
func appendFinite(dst []byte, d decimal) []byte {
	f, exact := d.truncate()
	if exact {
		if d.neg {
			f = -f
		}
		return appendExact(dst, f)
	}
	coef, exp := d.normal()
	start := len(dst)
	dst = append(binary.BigEndian.AppendUint64(dst, math.Float64bits(f)|signBit), numCutOff)
	dst = binary.BigEndian.AppendUint16(dst, uint16(exp+exponentUp))
	dst = binary.BigEndian.AppendUint64(dst, coef.hi)
	dst = binary.BigEndian.AppendUint64(dst, coef.lo)
	if d.neg {
		for i := start; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}

// appendElements appends the elements of a document or array. They compare by
// class, then name (in documents), then value; a shorter one is less.
func appendElements(dst, doc []byte, names bool, depth int) []byte {
	if depth < MaxDepth {
		r := NewReader(doc)
		for r.Next() {
			dst = append(dst, Class(r.Type))
			if names {
				dst = append(append(dst, r.Name...), 0)
			}
			if nested(r.Type) {
				dst = appendNested(dst, r.Type, r.Value, depth+1)
			} else {
				dst = appendScalar(dst, r.Type, r.Value)
			}
		}
	}
	return append(dst, classEnd)
}
