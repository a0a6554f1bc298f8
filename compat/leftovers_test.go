package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// TestCopiesThatAMoveLeavesAreNotSeen: while the donor still has its copy, nothing counts,
// lists or groups it, whatever the read preference and concern (CASES.md A17).
func TestCopiesThatAMoveLeavesAreNotSeen(t *testing.T) {
	db := newDB(t)
	coll := router(t, 0).Database(db).Collection("c")

	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{"_id", i}, {"g", i % 5}})
	}

	_, err := coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)

	// A cursor of before keeps the copy.
	old, err := router(t, 1).Database(db).Collection("c").Find(t.Context(), bson.D{}, options.Find().SetBatchSize(2))
	require.NoError(t, err)
	require.True(t, old.Next(t.Context()))

	home := homeOf(t, 0, db+".c")
	require.NoError(t, moveTo(t, 0, db+".c", otherThan(home)))
	require.Equal(t, int64(100), count(t, shard(t, home).Database(db).Collection("c"), bson.D{}), "the copy is there")

	_, err = coll.DeleteMany(t.Context(), bson.D{{"_id", bson.D{{"$gte", 90}}}})
	require.NoError(t, err)
	_, err = coll.InsertOne(t.Context(), bson.D{{"_id", "new"}, {"g", 9}})
	require.NoError(t, err)

	for r := range routerCount {
		for _, pref := range []*readpref.ReadPref{readpref.Primary(), readpref.SecondaryPreferred()} {
			for _, concern := range []*readconcern.ReadConcern{nil, readconcern.Available(), readconcern.Majority()} {
				c := router(t, r).Database(db, options.Database().SetReadPreference(pref).SetReadConcern(concern)).Collection("c")

				n, err := c.EstimatedDocumentCount(t.Context())
				require.NoError(t, err)
				require.Equal(t, int64(91), n)
				require.Equal(t, int64(91), count(t, c, bson.D{}))
				require.Equal(t, int64(18), count(t, c, bson.D{{"g", 1}}))

				var groups []int32

				require.NoError(t, c.Distinct(t.Context(), "g", bson.D{}).Decode(&groups))
				require.Equal(t, []int32{0, 1, 2, 3, 4, 9}, groups)

				cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
				require.Len(t, all(t, cur, err), 91)

				cur, err = c.Aggregate(t.Context(), mongo.Pipeline{{{"$group", bson.D{{"_id", "$g"}}}}})
				require.Len(t, all(t, cur, err), 6)
			}
		}
	}

	require.Equal(t, int64(100), count(t, shard(t, home).Database(db).Collection("c"), bson.D{}), "the copy is there still")
	require.GreaterOrEqual(t, len(all(t, old, nil)), 99, "as it was when it was opened")
	aloneOn(t, db, "c", otherThan(home))
}
