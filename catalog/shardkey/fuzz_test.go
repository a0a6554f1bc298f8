package shardkey

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func FuzzAppendKey(f *testing.F) {
	patterns := []*Pattern{pattern(f, `{"v":1}`), pattern(f, `{"v":"hashed"}`), pattern(f, `{"v.a":1,"v.b0":"hashed"}`)}
	for _, l := range readGolden(f, "hashed_keys.jsonl") {
		b := newBuilder()
		b.value("v", l.typ, l.value)
		f.Add([]byte(b.done()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range patterns {
			key, err := p.AppendKey(nil, data)
			if err != nil {
				continue
			}
			hashed, err := p.KeyDocument(data, true)
			if err != nil {
				t.Fatal(err)
			}
			bound, err := p.AppendBound(nil, hashed)
			if err != nil || !bytes.Equal(bound, key) {
				t.Fatalf("bound %x, key %x, %v", bound, key, err)
			}
			_ = Format(data)
		}
		_, _ = ParsePattern(data)
	})
}

func FuzzAppendOrdered(f *testing.F) {
	for _, l := range readGolden(f, "bson_order.jsonl") {
		f.Add(byte(l.typ), l.value, byte(l.typ), l.value)
	}
	f.Fuzz(func(t *testing.T, t1 byte, v1 []byte, t2 byte, v2 []byte) {
		a, b := bson.Type(t1), bson.Type(t2)
		ka, kb := AppendOrdered(nil, a, v1), AppendOrdered(nil, b, v2)
		c := Compare(a, v1, b, v2)
		Hash(a, v1)
		FormatValue(bson.RawValue{Type: a, Value: v1})
		if valid(a, v1) && FieldLen(ka) != len(ka) {
			t.Fatalf("length %d of %x", FieldLen(ka), ka)
		}
		FieldLen(v1)
		if valid(a, v1) && valid(b, v2) && c != bytes.Compare(ka, kb) {
			t.Fatalf("Compare %d, bytes %x %x", c, ka, kb)
		}
	})
}

// valid says whether a value is whole, with all that is nested in it.
func valid(t bson.Type, value []byte) bool {
	if valueLen(t, value) != len(value) {
		return false
	}
	switch t {
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return value[len(value)-1] == 0
	case bson.TypeBoolean:
		return value[0] < 2
	}
	return bson.RawValue{Type: t, Value: value}.Validate() == nil
}
