package shardkey

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// ErrBound says that a document is not a bound of the shard key: other fields,
// or a hashed field that is not a Long, MinKey or MaxKey.
var ErrBound = errors.New("shardkey: not a bound of the shard key")

// AppendBound appends the ordered bytes of a chunk bound, which has all fields of
// the key in their order.
func (p *Pattern) AppendBound(dst []byte, bound bson.Raw) ([]byte, error) {
	n, dst, err := p.appendBound(dst, bound)
	if err == nil && n != len(p.fields) {
		err = p.boundError(bound)
	}
	return dst, err
}

// AppendPrefix is AppendBound for a document with only the first fields of the
// key. It returns their number as well.
func (p *Pattern) AppendPrefix(dst []byte, bound bson.Raw) (int, []byte, error) {
	return p.appendBound(dst, bound)
}

func (p *Pattern) appendBound(dst []byte, bound bson.Raw) (n int, key []byte, err error) {
	r := NewReader(bound)
	for r.Next() {
		if n == len(p.fields) || p.fields[n].Name != string(r.Name) {
			return n, dst, p.boundError(bound)
		}
		switch {
		case n != p.hashed, r.Type == bson.TypeMinKey, r.Type == bson.TypeMaxKey:
			dst = AppendOrdered(dst, r.Type, r.Value)
		case r.Type == bson.TypeInt64:
			dst = AppendHash(dst, int64(le64(r.Value)))
		default:
			return n, dst, p.boundError(bound)
		}
		n++
	}
	return n, dst, r.Err()
}

func (p *Pattern) boundError(bound bson.Raw) error {
	return fmt.Errorf("%w: %s, key %s", ErrBound, Format(bound), p)
}

// ExtendBound completes a bound that has only the first fields of the key with
// MinKey, as zones and refined keys need it.
func (p *Pattern) ExtendBound(bound bson.Raw) (bson.Raw, error) {
	if _, _, err := p.appendBound(nil, bound); err != nil {
		return nil, err
	}
	b := newBuilder()
	n := 0
	r := NewReader(bound)
	for ; r.Next(); n++ {
		b.value(p.fields[n].Name, r.Type, r.Value)
	}
	for ; n < len(p.fields); n++ {
		b.value(p.fields[n].Name, bson.TypeMinKey, nil)
	}
	return b.done(), nil
}

// MinBound is {a: MinKey, …}, the lower bound of the first chunk.
func (p *Pattern) MinBound() bson.Raw { return p.uniform(bson.TypeMinKey) }

// MaxBound is {a: MaxKey, …}, the upper bound of the last chunk.
func (p *Pattern) MaxBound() bson.Raw { return p.uniform(bson.TypeMaxKey) }

func (p *Pattern) uniform(t bson.Type) bson.Raw {
	b := newBuilder()
	for i := range p.fields {
		b.value(p.fields[i].Name, t, nil)
	}
	return b.done()
}

// FillBounds sets MinKey and MaxKey of chunks from their Min and Max.
func FillBounds(p *Pattern, chunks []catalog.Chunk) error {
	for i := range chunks {
		var err error
		if chunks[i].MinKey, err = p.AppendBound(nil, chunks[i].Min); err != nil {
			return err
		}
		if chunks[i].MaxKey, err = p.AppendBound(nil, chunks[i].Max); err != nil {
			return err
		}
	}
	return nil
}

// Bound makes a bound of a document that has the fields of the key in whatever order, and
// its ordered bytes. In a hashed field any whole number stands for that hash.
func (p *Pattern) Bound(doc bson.Raw) (bound bson.Raw, key []byte, err error) {
	b := newBuilder()
	n := 0
	r := NewReader(doc)
	for r.Next() {
		n++
	}
	if r.Err() != nil {
		return nil, nil, r.Err()
	}
	if n != len(p.fields) {
		return nil, nil, p.boundError(doc)
	}
	for i := range p.fields {
		t, value, found, err := Lookup(doc, []string{p.fields[i].Name})
		if err != nil || !found {
			return nil, nil, p.boundError(doc)
		}
		if hash, whole := integer(t, value); i == p.hashed && whole {
			b.int64(p.fields[i].Name, hash)
		} else {
			b.value(p.fields[i].Name, t, value)
		}
	}
	bound = b.done()
	key, err = p.AppendBound(nil, bound)
	return bound, key, err
}
