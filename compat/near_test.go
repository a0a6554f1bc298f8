package compat

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// reply runs a command that must succeed.
func reply(t testing.TB, db *mongo.Database, cmd bson.D) bson.Raw {
	t.Helper()

	raw, err := db.RunCommand(t.Context(), cmd).Raw()
	require.NoError(t, err)

	return raw
}

// TestOrderWithoutSort: $near orders by distance and text scores descend, over shards as
// on one.
func TestOrderWithoutSort(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})
	coll := router(t, 0).Database(db).Collection("c")

	var docs []any
	for i := range 60 {
		docs = append(docs, bson.D{{"_id", i}, {"at", bson.A{float64(i*37%60) / 10, 0}}, {"text", strings.Repeat("word ", 1+i*37%60) + strings.Repeat("other ", 60-i*37%60)}})
	}

	_, err := coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	_, err = coll.Indexes().CreateMany(t.Context(), []mongo.IndexModel{
		{Keys: bson.D{{"at", "2d"}}}, {Keys: bson.D{{"text", "text"}}},
	})
	require.NoError(t, err)

	for _, size := range []int32{100, 7} {
		cur, err := coll.Find(t.Context(), bson.D{{"at", bson.D{{"$near", bson.A{0, 0}}}}}, options.Find().SetLimit(50).SetSkip(3).SetBatchSize(size))
		near := all(t, cur, err)
		require.Len(t, near, 50)

		for i, d := range near {
			require.InDelta(t, float64(i+3)/10, d.Lookup("at", "0").Double(), 0)
			require.Equal(t, bson.RawValue{}, d.Lookup("$sortKey"))
		}

		cur, err = router(t, 1).Database(db).Collection("c").Find(t.Context(), bson.D{{"$text", bson.D{{"$search", "word"}}}},
			options.Find().SetSort(bson.D{{"s", bson.D{{"$meta", "textScore"}}}}).SetProjection(bson.D{{"s", bson.D{{"$meta", "textScore"}}}}).SetBatchSize(size))
		scored := all(t, cur, err)
		require.Len(t, scored, 60)

		for i := 1; i < len(scored); i++ {
			require.LessOrEqual(t, scored[i].Lookup("s").Double(), scored[i-1].Lookup("s").Double())
		}
	}

	// A write of one document takes the nearest of all shards.
	for i := range 6 {
		near := bson.D{{"at", bson.D{{"$near", bson.A{0, 0}}}}, {"taken", nil}}
		take := bson.D{{"$set", bson.D{{"taken", i}}}}

		if i%2 == 0 {
			var doc bson.Raw

			require.NoError(t, coll.FindOneAndUpdate(t.Context(), near, take).Decode(&doc))
			require.InDelta(t, float64(i)/10, doc.Lookup("at", "0").Double(), 0)

			continue
		}

		res, err := coll.UpdateOne(t.Context(), near, take)
		require.NoError(t, err)
		require.Equal(t, int64(1), res.ModifiedCount)
		require.Equal(t, int64(1), count(t, coll, bson.D{{"at.0", float64(i) / 10}, {"taken", i}}))
	}
}
