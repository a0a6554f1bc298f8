package configdb

import (
	"cmp"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
)

func build(b *bsoncore.DocumentBuilder) bson.Raw { return bson.Raw(b.Build()) }

func appendTime(b *bsoncore.DocumentBuilder, key string, t catalog.Timestamp) {
	ts := t.BSON()
	b.AppendTimestamp(key, ts.T, ts.I)
}

func stringArray(all []string) bsoncore.Array {
	b := bsoncore.NewArrayBuilder()
	for _, s := range all {
		b.AppendString(s)
	}
	return b.Build()
}

// orEmpty makes no document an empty one.
func orEmpty(doc bson.Raw) bson.Raw {
	if len(doc) == 0 {
		return build(bsoncore.NewDocumentBuilder())
	}
	return doc
}

func each[T any](all []T, document func(*T) bson.Raw) []bson.Raw {
	var out []bson.Raw
	for i := range all {
		out = append(out, document(&all[i]))
	}
	return out
}

// sorted returns a copy in the order of a key.
func sorted[T any](all []T, key func(*T) string) []T {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b T) int { return cmp.Compare(key(&a), key(&b)) })
	return out
}
