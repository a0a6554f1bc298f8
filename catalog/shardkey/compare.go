package shardkey

import (
	"bytes"
	"cmp"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Compare orders two BSON values as AppendOrdered's bytes are ordered, without
// making them. It allocates nothing unless a Decimal128 is beyond 128-bit
// arithmetic.
func Compare(t1 bson.Type, v1 []byte, t2 bson.Type, v2 []byte) int {
	return compareValues(t1, v1, t2, v2, 0)
}

func compareValues(t1 bson.Type, v1 []byte, t2 bson.Type, v2 []byte, depth int) int {
	class := Class(t1)
	if c := cmp.Compare(class, Class(t2)); c != 0 {
		return c
	}
	switch class {
	case classNum:
		return compareNumbers(t1, v1, t2, v2)
	case classString, classCode:
		return bytes.Compare(text(v1), text(v2))
	case classDate:
		return cmp.Compare(int64(le64(v1)), int64(le64(v2)))
	case classTimestamp:
		return cmp.Compare(le64(v1), le64(v2))
	case classObject, classArray:
		return compareElements(v1, v2, class == classObject, depth)
	case classBinary, classDBPointer:
		if c := cmp.Compare(le32(v1), le32(v2)); c != 0 {
			return c
		}
		return bytes.Compare(v1[min(4, len(v1)):], v2[min(4, len(v2)):])
	case classCodeScope:
		code1, scope1 := codeWithScope(v1)
		code2, scope2 := codeWithScope(v2)
		if c := bytes.Compare(code1, code2); c != 0 {
			return c
		}
		return compareElements(scope1, scope2, true, depth)
	case ClassMinKey, classUndefined, classNull, ClassMaxKey:
		return 0
	default: // ObjectId, bool, regex
		return bytes.Compare(v1, v2)
	}
}

// compareElements compares documents (names count) or arrays.
func compareElements(doc1, doc2 []byte, names bool, depth int) int {
	if depth >= MaxDepth {
		return 0
	}
	r1, r2 := NewReader(doc1), NewReader(doc2)
	for {
		ok1, ok2 := r1.Next(), r2.Next()
		switch {
		case !ok1 && !ok2:
			return 0
		case !ok1:
			return -1
		case !ok2:
			return 1
		}
		c := cmp.Compare(Class(r1.Type), Class(r2.Type))
		if c == 0 && names {
			c = bytes.Compare(r1.Name, r2.Name)
		}
		if c == 0 {
			c = compareValues(r1.Type, r1.Value, r2.Type, r2.Value, depth+1)
		}
		if c != 0 {
			return c
		}
	}
}

func compareNumbers(t1 bson.Type, v1 []byte, t2 bson.Type, v2 []byte) int {
	i1, whole1 := integer(t1, v1)
	i2, whole2 := integer(t2, v2)
	switch {
	case whole1 && whole2:
		return cmp.Compare(i1, i2)
	case t1 == bson.TypeDouble && t2 == bson.TypeDouble:
		return cmp.Compare(floatOf(v1), floatOf(v2)) // NaN equals NaN and is least
	}
	var b1, b2 [32]byte
	return bytes.Compare(appendScalar(b1[:0], t1, v1), appendScalar(b2[:0], t2, v2))
}

// integer returns the number of an int32 or int64 value.
func integer(t bson.Type, value []byte) (int64, bool) {
	switch t {
	case bson.TypeInt32:
		return int64(int32(le32(value))), true
	case bson.TypeInt64:
		return int64(le64(value)), true
	default:
		return 0, false
	}
}
