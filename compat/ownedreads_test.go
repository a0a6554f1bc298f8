package compat

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// coloured makes a collection of 30 documents over all shards, each with a copy on a shard that
// does not own it, and indexes of every kind. All documents are red.
func coloured(t *testing.T) (coll *mongo.Collection, ns string, moving *movements) {
	t.Helper()

	db := router(t, 0).Database(newDB(t))
	ns = db.Name() + ".c"
	coll = db.Collection("c")

	shardCollection(t, 0, ns, bson.D{{"spread", "hashed"}})

	_, err := coll.Indexes().CreateMany(t.Context(), []mongo.IndexModel{
		{Keys: bson.D{{"k", 1}}}, {Keys: bson.D{{"place", "2dsphere"}}}, {Keys: bson.D{{"words", "text"}}},
	})
	require.NoError(t, err)
	rekey(t, ns, &shape{key: bson.D{{"k", 1}}, cuts: []bson.D{{{"k", 10}}, {{"k", 20}}, {{"k", 25}}}})

	var docs []bson.Raw
	for i := range 30 {
		docs = append(docs, raw(t, bson.D{
			{"_id", i},
			{"k", i},
			{"color", "red"},
			{"words", "one two"},
			{"list", bson.A{1, 2, 3}},
			{"n", 0},
			{"place", bson.D{{"type", "Point"}, {"coordinates", bson.A{float64(i) / 10, 0}}}},
		}))
	}

	_, err = coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	require.NoError(t, db.CreateView(t.Context(), "v", "c", bson.A{bson.D{{"$match", bson.D{{"color", "red"}}}}}))

	moving = newMovements(t)
	moving.plant(ns, copied(docs))
	moving.left(ns)

	return coll, ns, moving
}

var near = bson.D{{"$geometry", bson.D{{"type", "Point"}, {"coordinates", bson.A{0, 0}}}}}

// TestUnownedReads: every way to read leaves copies out, also those in which the condition has
// its own place, or cannot stand in the filter.
func TestUnownedReads(t *testing.T) {
	coll, ns, moving := coloured(t)
	db := coll.Database()
	whole := func(docs []bson.Raw, n int) {
		t.Helper()
		require.Len(t, docs, n)

		for i, d := range docs {
			require.Error(t, d.Lookup("copy").Validate(), "%s", d)
			require.Error(t, d.Lookup("__shardgate").Validate(), "%s", d)

			if i > 0 {
				require.Less(t, docs[i-1].Lookup("_id").Int32(), d.Lookup("_id").Int32())
			}
		}
	}
	byID := bson.D{{"_id", 1}}
	find := func(filter any, o *options.FindOptionsBuilder) []bson.Raw {
		t.Helper()
		cur, err := coll.Find(t.Context(), filter, o)

		return all(t, cur, err)
	}

	whole(find(bson.D{{"place", bson.D{{"$near", near}}}}, options.Find()), 30)
	whole(find(bson.D{{"place", bson.D{{"$near", near}}}, {"k", bson.D{{"$lt", 8}}}}, options.Find()), 8) // one shard
	whole(find(bson.D{{"$text", bson.D{{"$search", "two"}}}}, options.Find().SetSort(byID)), 30)
	whole(find(bson.D{}, options.Find().SetSort(byID).SetHint(bson.D{{"k", 1}}).SetMin(bson.D{{"k", 5}}).SetMax(bson.D{{"k", 25}})), 20)
	whole(find(bson.D{{"k", bson.D{{"$gte", 10}, {"$lt", 20}}}}, options.Find().SetSort(byID)), 10)
	whole(find(bson.D{{"$expr", bson.D{{"$lt", bson.A{"$k", 7}}}}}, options.Find().SetSort(byID)), 7)
	whole(find(bson.D{{"_id", bson.D{{"$in", bson.A{1, 12, 28}}}}}, options.Find().SetSort(byID)), 3)
	whole(find(bson.D{{"_id", 12}}, options.Find()), 1)
	whole(find(bson.D{{"k", 12}}, options.Find()), 1)

	shows := options.Find().SetProjection(bson.D{{"list.$", 1}})
	whole(find(bson.D{{"list", bson.D{{"$gt", 1}}}}, shows.SetSort(byID)), 30)
	whole(find(bson.D{{"list", 2}}, shows.SetSort(byID).SetSkip(3).SetLimit(9).SetBatchSize(2)), 9)
	whole(find(bson.D{{"list", 2}, {"k", bson.D{{"$lt", 8}}}}, shows.SetSkip(0).SetLimit(5)), 5)
	require.Len(t, find(bson.D{{"list", 2}}, options.Find().SetProjection(bson.D{{"list.$", 1}}).SetBatchSize(3)), 30)

	pipe := func(on string, stages ...bson.D) []bson.Raw {
		t.Helper()
		cur, err := db.Collection(on).Aggregate(t.Context(), stages)

		return all(t, cur, err)
	}
	geo := func(query bson.D) bson.D {
		spec := bson.D{{"near", near[0].Value}, {"distanceField", "d"}, {"spherical", true}}
		if query != nil {
			spec = append(spec, bson.E{Key: "query", Value: query})
		}

		return bson.D{{"$geoNear", spec}}
	}
	n := func(docs []bson.Raw) int64 { require.Len(t, docs, 1); return docs[0].Lookup("n").AsInt64() }
	total := bson.D{{"$count", "n"}}

	for _, on := range []string{"c", "v"} {
		require.EqualValues(t, 30, n(pipe(on, total)), on)
		require.EqualValues(t, 30, n(pipe(on, bson.D{{"$group", bson.D{{"_id", nil}, {"n", bson.D{{"$sum", 1}}}}}})), on)
		require.EqualValues(t, 90, n(pipe(on, bson.D{{"$unwind", "$list"}}, total)), on)
		require.EqualValues(t, 8, n(pipe(on, bson.D{{"$match", bson.D{{"k", bson.D{{"$lt", 8}}}}}}, total)), on)
		whole(pipe(on, bson.D{{"$sort", byID}}, bson.D{{"$limit", 7}}), 7)
	}

	whole(pipe("c", geo(nil)), 30)
	whole(pipe("c", geo(bson.D{{"color", "red"}, {"k", bson.D{{"$gte", 15}}}}), bson.D{{"$limit", 11}}), 11)
	whole(pipe("c", bson.D{{"$match", bson.D{{"$text", bson.D{{"$search", "one"}}}}}}, bson.D{{"$sort", byID}}), 30)
	require.EqualValues(t, 30, n(pipe("c", bson.D{{"$sample", bson.D{{"size", 100}}}}, total)))
	require.EqualValues(t, 30, n(pipe("c", bson.D{{"$facet", bson.D{{"x", bson.A{total}}}}}, bson.D{{"$unwind", "$x"}}, bson.D{{"$replaceWith", "$x"}})))

	var reply struct{ N int }
	require.NoError(t, db.RunCommand(t.Context(), bson.D{{"count", "v"}}).Decode(&reply))
	require.Equal(t, 30, reply.N)

	strict := bson.D{{"count", "c"}, {"apiVersion", "1"}, {"apiStrict", true}}
	require.NoError(t, db.RunCommand(t.Context(), strict).Decode(&reply))
	require.Equal(t, 30, reply.N)
	require.Len(t, planted(t, ns), 30)

	moving.end(t.Context())
	require.EqualValues(t, 60, n(pipe("c", total)))
	require.Len(t, find(bson.D{{"list", 2}}, shows.SetSort(byID).SetLimit(0)), 60)
}

// TestUnownedWrites: no way to write meets a copy.
func TestUnownedWrites(t *testing.T) {
	coll, ns, _ := coloured(t)
	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}
	untouched := planted(t, ns)
	sum := func() int64 {
		t.Helper()
		cur, err := coll.Aggregate(t.Context(), bson.A{bson.D{{"$group", bson.D{{"_id", nil}, {"n", bson.D{{"$sum", "$n"}}}}}}})

		return all(t, cur, err)[0].Lookup("n").AsInt64()
	}
	want := int64(0)
	did := func(n int64, err error) {
		t.Helper()
		require.NoError(t, err)

		want += n
		require.Equal(t, want, sum())
		require.Equal(t, untouched, planted(t, ns))
	}

	for range 40 { // more often than there are documents
		res, err := coll.UpdateOne(t.Context(), bson.D{{"color", "red"}}, inc)
		require.NoError(t, err)
		did(res.ModifiedCount, err)
	}

	require.EqualValues(t, 40, want)

	small := bson.D{{"k", bson.D{{"$lt", 8}}}} // one shard
	for range 10 {
		res, err := coll.UpdateOne(t.Context(), small, inc)
		did(res.ModifiedCount, err)
		did(1, coll.FindOneAndUpdate(t.Context(), small, inc).Err())

		var shown bson.Raw
		err = coll.FindOneAndUpdate(t.Context(), append(bson.D{{"list", 2}}, small...), inc,
			options.FindOneAndUpdate().SetProjection(bson.D{{"list.$", 1}})).Decode(&shown)
		did(1, err)
		require.Equal(t, "[{\"$numberInt\":\"2\"}]", shown.Lookup("list").String())
	}

	many, err := coll.UpdateMany(t.Context(), bson.D{{"list", 2}}, bson.D{{"$inc", bson.D{{"n", 1}, {"list.$", 0}}}})
	did(many.ModifiedCount, err)
	require.EqualValues(t, 30, many.MatchedCount)

	bulk, err := coll.BulkWrite(t.Context(), []mongo.WriteModel{
		mongo.NewUpdateManyModel().SetFilter(small).SetUpdate(inc),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{"_id", 12}}).SetUpdate(inc),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{"k", 28}}).SetUpdate(inc),
		mongo.NewReplaceOneModel().SetFilter(bson.D{{"_id", 29}}).SetReplacement(bson.D{{"k", 29}, {"n", 0}, {"color", "blue"}}),
	})
	require.NoError(t, err)
	require.EqualValues(t, 11, bulk.ModifiedCount)

	session, err := router(t, 0).StartSession()
	require.NoError(t, err)

	defer session.EndSession(t.Context())

	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		res, err := coll.UpdateMany(ctx, small, inc)
		if err == nil {
			require.EqualValues(t, 8, res.ModifiedCount)
			require.EqualValues(t, 8, must(coll.CountDocuments(ctx, small)))
		}

		return nil, err
	})
	require.NoError(t, err)

	for _, cmd := range []bson.D{
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"color", "red"}}}, {"u", inc}, {"multi", true}}}}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"color", "red"}}}, {"limit", 0}}}}},
		{{"findAndModify", "c"}, {"query", small}, {"update", inc}},
		{{"count", "c"}, {"query", bson.D{{"color", "red"}}}},
		{{"distinct", "c"}, {"key", "n"}},
		{{"aggregate", "c"}, {"pipeline", bson.A{}}, {"cursor", bson.D{}}},
		{{"find", "c"}, {"filter", bson.D{{"color", "red"}}}},
	} {
		raw, err := coll.Database().RunCommand(t.Context(), bson.D{{"explain", cmd}, {"verbosity", "executionStats"}}).Raw()
		require.NoError(t, err, "%v", cmd)
		require.Contains(t, raw.String(), "$expr", "%v", cmd)
	}

	deleted, err := coll.DeleteOne(t.Context(), small)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted.DeletedCount)
	require.NoError(t, coll.FindOneAndDelete(t.Context(), bson.D{{"n", bson.D{{"$gte", 0}}}}).Err())

	gone, err := coll.DeleteMany(t.Context(), bson.D{})
	require.NoError(t, err)
	require.EqualValues(t, 28, gone.DeletedCount)
	require.Zero(t, must(coll.CountDocuments(t.Context(), bson.D{})))
	require.Zero(t, must(coll.EstimatedDocumentCount(t.Context())))
	require.Equal(t, untouched, planted(t, ns))
}

// must is a value whose error is a panic.
func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}

	return v
}
