package owned

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ErrBound refuses a range whose bound no expression can be compared with under every
// collation. It is 20 IllegalOperation, as for chunks that cannot be merged: what is asked for is
// well formed, and nothing that the client could ask otherwise.
var ErrBound = mongoerr.New(mongoerr.IllegalOperation,
	"a bound of the range is an object or array with strings in it, or a DBPointer: its documents cannot be told apart under a collation")

// Expressible returns ErrBound if there is no condition for ranges with this bound.
func Expressible(p *shardkey.Pattern, bound bson.Raw) error {
	i := 0
	for r := shardkey.NewReader(bound); r.Next(); i++ {
		if i != p.HashedField() && bends(r.Type, r.Value, true, 0) {
			return ErrBound
		}
	}
	return nil
}

// bends reports whether a value may compare otherwise in an expression than in a key.
func bends(t bson.Type, value []byte, top bool, depth int) bool {
	switch t {
	case bson.TypeString, bson.TypeSymbol:
		return !top
	case bson.TypeDBPointer:
		return true
	case bson.TypeCodeWithScope:
		_, scope, ok := bson.RawValue{Type: t, Value: value}.CodeWithScopeOK()
		return !ok || bends(bson.TypeEmbeddedDocument, scope, false, depth+1)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		if depth >= shardkey.MaxDepth {
			return true
		}
		r := shardkey.NewReader(value)
		for r.Next() {
			if bends(r.Type, r.Value, false, depth+1) {
				return true
			}
		}
		return r.Err() != nil
	default:
		return false
	}
}

// compare compares a document's key with the first fields of a bound: as arrays, in which a
// missing field is null.
func compare(operator string, p *shardkey.Pattern, bound []bson.RawValue) bson.D {
	key, other := bson.A{}, bson.A{}
	for i, v := range bound {
		path := "$" + p.Field(i).Name
		switch {
		case i == p.HashedField():
			key, other = append(key, bson.D{{Key: "$toHashedIndexKey", Value: path}}), append(other, v)
		case v.Type == bson.TypeString, v.Type == bson.TypeSymbol:
			key, other = append(key, compareText(path, v)), append(other, int32(0))
		default:
			key, other = append(key, path), append(other, v)
		}
	}
	return bson.D{{Key: operator, Value: bson.A{key, literal(other)}}}
}

// compareText is -1, 0 or 1 as the value at a path is less than a text, equal or greater.
func compareText(path string, v bson.RawValue) bson.D {
	const lengthBytes = 4
	text := string(v.Value[lengthBytes : len(v.Value)-1])
	name := any(path)
	for _, r := range []struct{ from, to string }{{"\x01", "\x01\x02"}, {"\x00", "\x01\x01"}} {
		text = strings.ReplaceAll(text, r.from, r.to)
		name = bson.D{{Key: "$replaceAll", Value: bson.D{{Key: "input", Value: name}, {Key: "find", Value: r.from}, {Key: "replacement", Value: r.to}}}}
	}
	field := bson.D{{Key: "$arrayToObject", Value: bson.A{bson.A{bson.D{{Key: "k", Value: name}, {Key: "v", Value: int32(1)}}}}}}
	return bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: path}}, "string"}}},
		bson.D{{Key: "$cmp", Value: bson.A{field, literal(bson.D{{Key: text, Value: int32(1)}})}}},
		bson.D{{Key: "$cmp", Value: bson.A{path, literal(bson.RawValue{Type: bson.TypeSymbol, Value: v.Value})}}},
	}}}
}

func literal(value any) bson.D { return bson.D{{Key: "$literal", Value: value}} }
