package shardkey

import (
	"encoding/binary"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrArray says that a document has an array at a field of the shard key or on
// the way to it (code 61, ShardKeyNotFound).
var ErrArray = errors.New("Shard key cannot contain array values or array descendants.")

// Lookup finds the value at a dotted path. What is missing is not found, and so
// is what lies below a value that is no document. It returns ErrArray for an
// array at the path or on the way, and ErrMalformed; only what has to be read is
// checked. Of fields with the same name the first counts.
func Lookup(doc []byte, path []string) (t bson.Type, value []byte, found bool, err error) {
	for i, part := range path {
		r := NewReader(doc)
		for r.Next() {
			if string(r.Name) == part {
				found = true
				break
			}
		}
		switch {
		case !found:
			return 0, nil, false, r.Err()
		case r.Type == bson.TypeArray:
			return 0, nil, false, ErrArray
		case i == len(path)-1:
			return r.Type, r.Value, true, nil
		case r.Type != bson.TypeEmbeddedDocument:
			return 0, nil, false, nil
		}
		doc, found = r.Value, false
	}
	return 0, nil, false, nil
}

// AppendKey appends the ordered bytes of a document's key. A missing field counts
// as null. Nothing is allocated if dst has room.
func (p *Pattern) AppendKey(dst, doc []byte) ([]byte, error) {
	for i := range p.fields {
		t, value, err := p.field(i, doc)
		if err != nil {
			return dst, err
		}
		dst = p.AppendField(dst, i, t, value)
	}
	return dst, nil
}

// field finds the value of field i in a document.
func (p *Pattern) field(i int, doc []byte) (bson.Type, []byte, error) {
	t, value, found, err := Lookup(doc, p.fields[i].parts)
	if err != nil {
		return 0, nil, err
	}
	if !found {
		return bson.TypeNull, nil, nil
	}
	return t, value, nil
}

// AppendField appends a value as field i of a key: its hash if the field is
// hashed, otherwise its ordered bytes.
func (p *Pattern) AppendField(dst []byte, i int, t bson.Type, value []byte) []byte {
	if i == p.hashed {
		return AppendHash(dst, Hash(t, value))
	}
	return AppendOrdered(dst, t, value)
}

// AppendHash appends the ordered bytes of a hashed field.
func AppendHash(dst []byte, hash int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, ClassHash), uint64(hash)^signBit)
}

// KeyDocument returns a document's key as {path: value, …}, missing fields as
// null. With hashed, a hashed field's value is its hash, as in chunk bounds.
func (p *Pattern) KeyDocument(doc bson.Raw, hashed bool) (bson.Raw, error) {
	b := newBuilder()
	for i := range p.fields {
		t, value, err := p.field(i, doc)
		if err != nil {
			return nil, err
		}
		if hashed && i == p.hashed {
			b.int64(p.fields[i].Name, Hash(t, value))
		} else {
			b.value(p.fields[i].Name, t, value)
		}
	}
	return b.done(), nil
}

// builder makes a raw document.
type builder struct{ b []byte }

func newBuilder() builder { return builder{make([]byte, 4, 64)} }

func (b *builder) value(name string, t bson.Type, value []byte) {
	b.b = append(append(append(b.b, byte(t)), name...), 0)
	b.b = append(b.b, value...)
}

func (b *builder) int64(name string, i int64) {
	var value [8]byte
	binary.LittleEndian.PutUint64(value[:], uint64(i))
	b.value(name, bson.TypeInt64, value[:])
}

func (b *builder) done() bson.Raw {
	b.b = append(b.b, 0)
	binary.LittleEndian.PutUint32(b.b, uint32(len(b.b)))
	return b.b
}
