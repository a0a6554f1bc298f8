package target

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// HasNear reports whether a filter orders what it finds by distance: $near and its
// kind stand in conjunctions only (mongod refuses them elsewhere).
func HasNear(filter bson.Raw) bool { return hasNear(orEmpty(filter), 0) }

func hasNear(filter []byte, depth int) bool {
	r := shardkey.NewReader(filter)
	for r.Next() {
		switch {
		case string(r.Name) == "$and" && r.Type == bson.TypeArray && depth < maxNesting:
			for list := shardkey.NewReader(r.Value); list.Next(); {
				if list.Type == bson.TypeEmbeddedDocument && hasNear(list.Value, depth+1) {
					return true
				}
			}
		case isOperators(r.Type, r.Value):
			if has(r.Value, "$near") || has(r.Value, "$nearSphere") || has(r.Value, "$geoNear") {
				return true
			}
		}
	}
	return false
}
