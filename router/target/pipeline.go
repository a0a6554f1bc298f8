package target

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// pipeline says whether an update pipeline may change the key. $replaceWith and
// $replaceRoot always may, and so does what is not known.
func (g *guard) pipeline() bool {
	r := shardkey.NewReader(g.u.Mods.Value)
	for r.Next() {
		if r.Type != bson.TypeEmbeddedDocument || g.stage(r.Value) {
			return true
		}
	}
	return r.Err() != nil
}

func (g *guard) stage(stage []byte) bool {
	r := shardkey.NewReader(stage)
	if !r.Next() {
		return true
	}
	switch string(r.Name) {
	case "$set", "$addFields":
		return r.Type != bson.TypeEmbeddedDocument || g.computes(r.Value)
	case "$unset":
		return g.unsets(r.Type, r.Value)
	case "$project":
		return r.Type != bson.TypeEmbeddedDocument || g.projects(r.Value)
	default:
		return true
	}
}

// computes looks at {path: expression, …}.
func (g *guard) computes(paths []byte) bool {
	r := shardkey.NewReader(paths)
	for r.Next() {
		if g.touches(string(r.Name)) && (!isLiteral(r.Type, r.Value) || g.sets(&r)) {
			return true
		}
	}
	return r.Err() != nil
}

// isLiteral says whether an expression is a scalar that stands for itself.
func isLiteral(t bson.Type, value []byte) bool {
	switch t {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return false
	case bson.TypeString:
		const start = 4 // behind the length
		return len(value) > start && value[start] != '$'
	default:
		return true
	}
}

// unsets looks at the path or paths of $unset.
func (g *guard) unsets(t bson.Type, value []byte) bool {
	if t != bson.TypeArray {
		path, ok := bson.RawValue{Type: t, Value: value}.StringValueOK()
		return !ok || g.touches(path)
	}
	r := shardkey.NewReader(value)
	for r.Next() {
		if r.Type == bson.TypeArray || g.unsets(r.Type, r.Value) {
			return true
		}
	}
	return r.Err() != nil
}

// projects looks at $project. An exclusion may not name the key; an inclusion must
// keep every field of it.
func (g *guard) projects(spec []byte) bool {
	kept := make([]bool, g.p.Len())
	exclusion := true
	r := shardkey.NewReader(spec)
	for r.Next() {
		switch {
		case isFalse(r.Type, r.Value):
			if g.touches(string(r.Name)) {
				return true
			}
		case r.Type == bson.TypeBoolean, r.Type == bson.TypeInt32, r.Type == bson.TypeInt64, r.Type == bson.TypeDouble:
			exclusion = false
			for i := range kept {
				if _, ok := below(g.p.Field(i), string(r.Name)); ok {
					kept[i] = true
				}
			}
		default:
			exclusion = false
			if g.touches(string(r.Name)) {
				return true
			}
		}
	}
	if r.Err() != nil || exclusion {
		return r.Err() != nil
	}
	for i := range kept {
		if !kept[i] && g.p.Field(i).Path()[0] != "_id" {
			return true
		}
	}
	return false
}
