package shardkey

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Strings longer than this are cut in messages.
const (
	longString = 160
	cutString  = 150
)

// Format prints a document as MongoDB's messages do, for example { x: 50 } or
// { _id: ObjectId('…') }. It is for people: long strings are cut.
func Format(doc bson.Raw) string {
	return string(appendDocument(nil, doc, true, 0))
}

// FormatValue prints one value as Format does.
func FormatValue(v bson.RawValue) string {
	return string(appendFormat(nil, v.Type, v.Value, 0))
}

func appendDocument(dst, doc []byte, names bool, depth int) []byte {
	open, end := "{ ", " }"
	if !names {
		open, end = "[ ", " ]"
	}
	first := true
	if depth < MaxDepth {
		r := NewReader(doc)
		for ; r.Next(); first = false {
			if first {
				dst = append(dst, open...)
			} else {
				dst = append(dst, ", "...)
			}
			if names {
				dst = append(append(dst, r.Name...), ": "...)
			}
			dst = appendFormat(dst, r.Type, r.Value, depth+1)
		}
	}
	if first {
		return append(dst, open[0], end[1])
	}
	return append(dst, end...)
}

func appendFormat(dst []byte, t bson.Type, value []byte, depth int) []byte {
	switch t {
	case bson.TypeDouble:
		return appendDouble(dst, floatOf(value))
	case bson.TypeInt32, bson.TypeInt64:
		i, _ := integer(t, value)
		return strconv.AppendInt(dst, i, 10)
	case bson.TypeDecimal128:
		if len(value) < 16 {
			return dst
		}
		return append(dst, bson.NewDecimal128(le64(value[8:]), le64(value)).String()...)
	case bson.TypeString, bson.TypeSymbol:
		return appendQuoted(dst, text(value))
	case bson.TypeJavaScript:
		return append(dst, text(value)...)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return appendDocument(dst, value, t == bson.TypeEmbeddedDocument, depth)
	case bson.TypeBinary:
		return appendBinary(dst, value)
	case bson.TypeObjectID:
		return fmt.Appendf(dst, "ObjectId('%x')", value)
	case bson.TypeBoolean:
		return strconv.AppendBool(dst, len(value) > 0 && value[0] != 0)
	case bson.TypeDateTime:
		return fmt.Appendf(dst, "new Date(%d)", int64(le64(value)))
	case bson.TypeTimestamp:
		return fmt.Appendf(dst, "Timestamp(%d, %d)", le64(value)>>32, uint32(le64(value)))
	case bson.TypeRegex:
		pattern, options, _ := bytes.Cut(bytes.TrimSuffix(value, []byte{0}), []byte{0})
		return fmt.Appendf(dst, "/%s/%s", pattern, options)
	default:
		return appendRare(dst, t, value, depth)
	}
}

func appendRare(dst []byte, t bson.Type, value []byte, depth int) []byte {
	switch t {
	case bson.TypeNull:
		return append(dst, "null"...)
	case bson.TypeUndefined:
		return append(dst, "undefined"...)
	case bson.TypeMinKey:
		return append(dst, "MinKey"...)
	case bson.TypeMaxKey:
		return append(dst, "MaxKey"...)
	case bson.TypeCodeWithScope:
		code, scope := codeWithScope(value)
		dst = append(append(append(dst, "CodeWScope( "...), code...), ", "...)
		return append(appendDocument(dst, scope, true, depth), ')')
	case bson.TypeDBPointer:
		if n := prefixed(value, 1, 16); n > 0 && n <= len(value) {
			return fmt.Appendf(dst, "DBRef('%s',%x)", text(value[:n-12]), value[n-12:n])
		}
	}
	return append(dst, '?')
}

// appendDouble prints 16 digits, and .0 behind what looks like an integer.
func appendDouble(dst []byte, f float64) []byte {
	s := strings.ToLower(strconv.FormatFloat(f, 'g', 16, 64))
	if strings.Contains(s, ".") {
		return append(dst, s...)
	}
	return append(append(dst, strings.TrimPrefix(s, "+")...), ".0"...)
}

func appendQuoted(dst, s []byte) []byte {
	dst = append(dst, '"')
	if len(s) >= longString {
		return append(append(dst, s[:cutString]...), `..."`...)
	}
	return append(append(dst, s...), '"')
}

// appendBinary prints UUID("…") or BinData(subtype, HEX).
func appendBinary(dst, value []byte) []byte {
	const uuidSubtype, uuidLen, longBinary = 4, 16, 80
	if len(value) < 5 {
		return append(dst, '?')
	}
	subtype, data := value[4], value[5:]
	if subtype == uuidSubtype && len(data) == uuidLen {
		return fmt.Appendf(dst, `UUID("%x-%x-%x-%x-%x")`, data[:4], data[4:6], data[6:8], data[8:10], data[10:])
	}
	dst = fmt.Appendf(dst, "BinData(%d, ", subtype)
	if len(data) > longBinary {
		return append(hex.AppendEncode(dst, data[:longBinary]), "...)"...)
	}
	return fmt.Appendf(dst, "%X)", data)
}
