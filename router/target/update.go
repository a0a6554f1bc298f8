package target

import (
	"bytes"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Update is an update statement, as far as the shard key is concerned.
type Update struct {
	Filter   bson.Raw
	Collated bool          // a collation other than simple applies to Filter
	Mods     bson.RawValue // operators, a replacement, or a pipeline
	Upsert   bool
}

// Replaces says whether Mods is a replacement document.
func (u *Update) Replaces() bool {
	if u.Mods.Type != bson.TypeEmbeddedDocument {
		return false
	}
	r := shardkey.NewReader(u.Mods.Value)
	return !r.Next() || len(r.Name) == 0 || r.Name[0] != '$'
}

// MayChangeKey says whether an update may give a document another shard key
// value. Only false is certain: the statement touches no field of the key, or sets
// it to what the filter demands anyway. A filter that is broken counts as one that
// demands nothing.
func MayChangeKey(p *shardkey.Pattern, u Update) bool {
	g := guard{p: p, u: &u}
	switch {
	case u.Replaces():
		return !g.replacementKeeps()
	case u.Mods.Type == bson.TypeEmbeddedDocument:
		return g.operators()
	case u.Mods.Type == bson.TypeArray:
		return g.pipeline()
	default:
		return true
	}
}

// Malformed says what a mongod refuses about update operators whatever they are
// applied to, "" if nothing. Such an update changes no document, so no key either.
func Malformed(mods bson.RawValue) string {
	if mods.Type != bson.TypeEmbeddedDocument {
		return ""
	}
	r := shardkey.NewReader(mods.Value)
	for r.Next() {
		switch name := string(r.Name); {
		case !operatorKnown(name):
			return "Unknown modifier: " + name + ". Expected a valid update modifier or pipeline-style update specified as an array"
		case r.Type != bson.TypeEmbeddedDocument:
			return "Modifiers operate on fields but another type was found instead. For example: {$mod: {<field>: ...}} not {" + name + ": ...}"
		}
	}
	return ""
}

// operatorKnown reports whether MongoDB 6.0 has an update operator.
func operatorKnown(name string) bool {
	switch name {
	case "$set", "$setOnInsert", "$rename", "$unset", "$inc", "$mul", "$min", "$max", "$currentDate", "$bit",
		"$push", "$addToSet", "$pull", "$pullAll", "$pop":
		return true
	}
	return false
}

// guard examines one update.
type guard struct {
	p *shardkey.Pattern
	u *Update

	demanded box // what the filter says, once asked for
}

// demand returns the value that the filter demands of key field i.
func (g *guard) demand(i int) (bson.RawValue, bool) {
	if g.demanded == nil {
		g.demanded = wholeBox(g.p.Len())
		d := reading{p: g.p, collated: g.u.Collated}
		if boxes, err := d.document(orEmpty(g.u.Filter), 0); err == nil && len(boxes) == 1 {
			g.demanded = boxes[0]
		}
	}
	return g.demanded[i].value, g.demanded[i].pinned
}

// same says whether a value set at field i is the one that the filter demands. A
// demanded null may be a stored undefined, so it is never the same.
func (g *guard) same(i int, t bson.Type, value []byte) bool {
	v, ok := g.demand(i)
	return ok && v.Type != bson.TypeNull && shardkey.Compare(v.Type, v.Value, t, value) == 0 &&
		shardkey.Hash(v.Type, v.Value) == shardkey.Hash(t, value)
}

// operators looks at {$op: {path: value, …}, …}.
func (g *guard) operators() bool {
	r := shardkey.NewReader(g.u.Mods.Value)
	for r.Next() {
		if r.Type != bson.TypeEmbeddedDocument || g.operator(string(r.Name), r.Value) {
			return true
		}
	}
	return r.Err() != nil
}

// operator looks at one operator's paths.
func (g *guard) operator(op string, paths []byte) bool {
	if op == "$setOnInsert" && !g.u.Upsert {
		return false
	}
	r := shardkey.NewReader(paths)
	for r.Next() {
		if g.operand(op, &r) {
			return true
		}
	}
	return r.Err() != nil
}

// operand looks at one {path: value} of an operator.
func (g *guard) operand(op string, r *shardkey.Reader) bool {
	switch op {
	case "$set", "$setOnInsert":
		return g.sets(r)
	case "$rename":
		to, ok := bson.RawValue{Type: r.Type, Value: r.Value}.StringValueOK()
		return !ok || g.touches(string(r.Name)) || g.touches(to)
	case "$unset", "$inc", "$mul", "$min", "$max", "$currentDate", "$bit",
		"$push", "$pushAll", "$addToSet", "$pull", "$pullAll", "$pop":
		return g.touches(string(r.Name))
	default:
		return true
	}
}

// sets looks at {path: value} of $set.
func (g *guard) sets(r *shardkey.Reader) bool {
	if !g.touches(string(r.Name)) {
		return false
	}
	i := g.p.Index(r.Name)
	return i < 0 || !g.same(i, r.Type, r.Value)
}

// touches says whether a path equals, contains or is contained in the path of a
// key field. A positional part ($, $[], $[x]) may stand for any field.
func (g *guard) touches(path string) bool {
	if strings.HasPrefix(path, "$") {
		return false // a mongod refuses it (52)
	}
	for i := range g.p.Len() {
		if meets(g.p.Field(i).Path(), path) {
			return true
		}
	}
	return false
}

func meets(field []string, path string) bool {
	for _, part := range field {
		first, rest, more := strings.Cut(path, ".")
		if first != part && !strings.HasPrefix(first, "$") {
			return false
		}
		if !more {
			return true
		}
		path = rest
	}
	return true
}

// replacementKeeps says whether the replacement has the key that the filter
// demands.
func (g *guard) replacementKeeps() bool {
	doc := g.u.Mods.Value
	for i := range g.p.Len() {
		path := g.p.Field(i).Path()
		if path[0] == "_id" && !has(doc, "_id") {
			continue
		}
		t, value, found, err := shardkey.Lookup(doc, path)
		if err != nil {
			return false
		}
		if !found {
			t = bson.TypeNull
		}
		if !g.same(i, t, value) {
			return false
		}
	}
	return true
}

// has says whether a document has a field.
func has(doc []byte, name string) bool {
	r := shardkey.NewReader(doc)
	for r.Next() {
		if string(r.Name) == name {
			return true
		}
	}
	return false
}

// ReplacementKeepsKey says whether a replacement document has the key given in
// ordered bytes, that of the document which it replaces. A replacement without
// _id keeps the _id.
func ReplacementKeepsKey(p *shardkey.Pattern, key []byte, replacement bson.Raw) bool {
	var buf [64]byte
	for i := range p.Len() {
		n := shardkey.FieldLen(key)
		if n < 0 {
			return false
		}
		old := key[:n]
		key = key[n:]
		path := p.Field(i).Path()
		if path[0] == "_id" && !has(replacement, "_id") {
			continue
		}
		t, value, found, err := shardkey.Lookup(replacement, path)
		if err != nil {
			return false
		}
		if !found {
			t = bson.TypeNull
		}
		if !bytes.Equal(old, p.AppendField(buf[:0], i, t, value)) {
			return false
		}
	}
	return len(key) == 0
}

// ReplacementKey appends the key that a replacement will have. If it has no _id
// and the key needs it, it comes from the filter; if that does not demand one, the
// key is not known. The error is one of shardkey.AppendKey.
func ReplacementKey(p *shardkey.Pattern, dst []byte, u Update) (key []byte, known bool, err error) {
	g := guard{p: p, u: &u}
	key = dst
	for i := range p.Len() {
		path := p.Field(i).Path()
		t, value, found, err := shardkey.Lookup(u.Mods.Value, path)
		if err != nil {
			return dst, false, err
		}
		switch {
		case found:
		case path[0] == "_id" && !has(u.Mods.Value, "_id"):
			v, ok := g.demand(i)
			if !ok {
				return dst, false, nil
			}
			t, value = v.Type, v.Value
		default:
			t = bson.TypeNull
		}
		key = p.AppendField(key, i, t, value)
	}
	return key, true, nil
}
