package shardkey

import (
	"crypto/md5"
	"encoding/binary"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Hash returns the key that mongod's hashed index has for a value: the first
// eight bytes of an MD5 over its type class and bytes, numbers as 64-bit
// integers. A missing field hashes as null. Doubles are cut towards zero and
// decimals rounded to even first, so 2, 2.9 and Decimal 2.5 hash alike while
// Decimal 2.9 does not; and the double 2^63 hashes as the least integer.
func Hash(t bson.Type, value []byte) int64 {
	var buf [128]byte
	if nested(t) || len(value) > len(buf)-8 {
		return hashLong(t, value)
	}
	// The four zero bytes are the seed.
	return digest(appendHashedScalar(appendHashClass(buf[:4], t), t, value))
}

// hashLong is Hash for values that need a larger buffer; one from the heap only
// for documents, arrays, and strings of a kilobyte.
func hashLong(t bson.Type, value []byte) int64 {
	if nested(t) {
		buf := appendHashClass(make([]byte, 4, 2*len(value)+64), t)
		return digest(appendHashedNested(buf, t, value, 0))
	}
	var buf [1024]byte
	b := buf[:4]
	if len(value) > len(buf)-8 {
		b = make([]byte, 4, len(value)+8)
	}
	return digest(appendHashedScalar(appendHashClass(b, t), t, value))
}

func digest(b []byte) int64 {
	sum := md5.Sum(b)
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

func appendHashClass(dst []byte, t bson.Type) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(hashClass(t)))
}

// appendHashedScalar appends what is digested of a value, after its class.
func appendHashedScalar(dst []byte, t bson.Type, value []byte) []byte {
	var i int64
	switch t {
	case bson.TypeInt32, bson.TypeInt64:
		i, _ = integer(t, value)
	case bson.TypeDouble:
		i = doubleForHash(floatOf(value))
	case bson.TypeDecimal128:
		i = readDecimal(value).int64()
	default:
		return append(dst, value...)
	}
	return binary.LittleEndian.AppendUint64(dst, uint64(i))
}

// appendHashedNested appends code, if any, then the elements with their names,
// then the class of the end, 0.
func appendHashedNested(dst []byte, t bson.Type, value []byte, depth int) []byte {
	if t == bson.TypeCodeWithScope {
		code, scope := codeWithScope(value)
		dst, value = append(append(dst, code...), 0), scope
	}
	if depth < MaxDepth {
		r := NewReader(value)
		for r.Next() {
			dst = appendHashClass(dst, r.Type)
			dst = append(append(dst, r.Name...), 0)
			if nested(r.Type) {
				dst = appendHashedNested(dst, r.Type, r.Value, depth+1)
			} else {
				dst = appendHashedScalar(dst, r.Type, r.Value)
			}
		}
	}
	return append(dst, 0, 0, 0, 0)
}

// doubleForHash is a double as the integer that is hashed.
func doubleForHash(f float64) int64 {
	const two63 = 1 << 63
	switch {
	case math.IsNaN(f):
		return 0
	case f == two63, f < -two63:
		return math.MinInt64
	case f > two63:
		return math.MaxInt64
	default:
		return int64(f)
	}
}

// hashClass is mongod's number for a class of types that compare with each
// other; it goes into hashes.
func hashClass(t bson.Type) int32 {
	switch t {
	case bson.TypeMinKey:
		return -1
	case bson.TypeMaxKey:
		return 127
	case bson.TypeUndefined:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	}
	return 0
}
