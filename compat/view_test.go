package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestViews: views on a sharded and on an unsharded collection, and on other views, read the
// same at every router; nothing else works on them.
func TestViews(t *testing.T) {
	db := newDB(t)
	d := router(t, 0).Database(db)
	shardCollection(t, 0, db+".sharded", bson.D{{"_id", "hashed"}})

	var docs []any
	for i := range 90 {
		docs = append(docs, bson.D{{"_id", i}, {"v", i * 37 % 90}, {"s", []string{"b", "A", "a", "B"}[i%4]}, {"tags", bson.A{i % 3, bson.D{{"x", i % 5}}}}})
	}

	for _, base := range []string{"sharded", "plain"} {
		_, err := d.Collection(base).InsertMany(t.Context(), docs)
		require.NoError(t, err)

		view := base + "View"
		require.NoError(t, d.CreateView(t.Context(), view, base, mongo.Pipeline{{{"$match", bson.D{{"v", bson.D{{"$lt", 80}}}}}}, {{"$set", bson.D{{"w", bson.D{{"$add", bson.A{"$v", 1}}}}}}}}))
		require.NoError(t, d.CreateView(t.Context(), view+"2", view, mongo.Pipeline{{{"$match", bson.D{{"w", bson.D{{"$gt", 10}}}}}}}))
		require.NoError(t, d.CreateView(t.Context(), view+"2", view, mongo.Pipeline{{{"$match", bson.D{{"w", bson.D{{"$gt", 10}}}}}}}), "the same again")

		v := router(t, 1).Database(db).Collection(view + "2")
		cur, err := v.Find(t.Context(), bson.D{{"v", bson.D{{"$gte", 20}}}}, options.Find().SetSort(bson.D{{"v", -1}}).SetSkip(5).SetLimit(40).
			SetProjection(bson.D{{"w", 1}}).SetBatchSize(7))
		found := all(t, cur, err)
		require.Len(t, found, 40)

		for i, x := range found {
			require.Equal(t, int32(75-i), x.Lookup("w").Int32())
			require.Equal(t, bson.RawValue{}, x.Lookup("v"))
		}

		require.Equal(t, int64(70), count(t, v, bson.D{}))
		n, err := v.EstimatedDocumentCount(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(70), n)

		raw := reply(t, router(t, 0).Database(db), bson.D{{"count", view}, {"query", bson.D{{"v", bson.D{{"$lt", 10}}}}}, {"skip", 3}, {"limit", 4}})
		require.Equal(t, int32(4), raw.Lookup("n").Int32())

		var values []int32

		require.NoError(t, v.Distinct(t.Context(), "tags.x", bson.D{}).Decode(&values))
		require.ElementsMatch(t, []int32{0, 1, 2, 3, 4}, values)

		cur, err = v.Aggregate(t.Context(), mongo.Pipeline{{{"$group", bson.D{{"_id", "$s"}, {"n", bson.D{{"$sum", 1}}}}}}, {{"$sort", bson.D{{"_id", 1}}}}})
		require.Len(t, all(t, cur, err), 4)

		first := reply(t, router(t, 2).Database(db), bson.D{{"find", view}, {"batchSize", 3}})
		require.Equal(t, db+"."+view, first.Lookup("cursor", "ns").StringValue())
		next := reply(t, router(t, 2).Database(db), bson.D{{"getMore", first.Lookup("cursor", "id").Int64()}, {"collection", view}, {"batchSize", 2}})
		require.Equal(t, db+"."+view, next.Lookup("cursor", "ns").StringValue())
		require.Len(t, batch(t, next, "nextBatch"), 2)

		for _, inner := range []bson.D{
			{{"find", view}, {"filter", bson.D{{"w", 5}}}}, {{"count", view}}, {{"distinct", view}, {"key", "s"}}, {{"aggregate", view}, {"pipeline", bson.A{}}, {"cursor", bson.D{}}},
		} {
			plan := reply(t, d, bson.D{{"explain", inner}, {"verbosity", "queryPlanner"}})
			require.Contains(t, plan.String(), base, "%v", inner)
			require.Equal(t, base, plan.Lookup("command", "aggregate").StringValue())
		}

		_, err = v.InsertOne(t.Context(), bson.D{})
		require.Equal(t, 166, code(err), "%v", err)
		_, err = v.UpdateOne(t.Context(), bson.D{}, bson.D{{"$set", bson.D{{"x", 1}}}})
		require.Equal(t, 166, code(err), "%v", err)
		require.Equal(t, 166, code(v.FindOneAndDelete(t.Context(), bson.D{}).Err()))
		_, err = v.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{"x", 1}}})
		require.Equal(t, 166, code(err), "%v", err)

		for _, bad := range []bson.D{
			{{"returnKey", true}}, {{"showRecordId", true}}, {{"tailable", true}}, {{"sort", bson.D{{"$natural", 1}}}}, {{"min", bson.D{{"_id", 1}}}, {"hint", bson.D{{"_id", 1}}}},
		} {
			err := d.RunCommand(t.Context(), append(bson.D{{"find", view}}, bad...)).Err()
			require.Equal(t, 168, code(err), "%v: %v", bad, err)
		}

		require.Equal(t, 167, code(d.RunCommand(t.Context(), bson.D{{"find", view}, {"collation", bson.D{{"locale", "fr"}}}}).Err()))
	}

	// With a collation, everything on the view compares by it.
	fold := &options.Collation{Locale: "en", Strength: 2}
	require.NoError(t, d.CreateView(t.Context(), "folded", "sharded", mongo.Pipeline{}, options.CreateView().SetCollation(fold)))
	require.Equal(t, int64(45), count(t, router(t, 1).Database(db).Collection("folded"), bson.D{{"s", "A"}}))

	var values []string

	require.NoError(t, d.Collection("folded").Distinct(t.Context(), "s", bson.D{}).Decode(&values))
	require.Len(t, values, 2)

	// Definitions: what a mongod refuses is refused, and circles.
	for _, bad := range []struct {
		code int
		cmd  bson.D
	}{
		{5, bson.D{{"create", "self"}, {"viewOn", "self"}}},
		{48, bson.D{{"create", "plain"}, {"viewOn", "sharded"}}},
		{48, bson.D{{"create", "plainView"}, {"viewOn", "sharded"}}},
		{48, bson.D{{"create", "plainView"}}},
		{167, bson.D{{"create", "other"}, {"viewOn", "folded"}}},
		{40324, bson.D{{"create", "bad"}, {"viewOn", "plain"}, {"pipeline", bson.A{bson.D{{"$nosuch", 1}}}}}},
		{167, bson.D{{"create", "out"}, {"viewOn", "plain"}, {"pipeline", bson.A{bson.D{{"$out", "x"}}}}}},
		{72, bson.D{{"collMod", "plainView"}, {"viewOn", "sharded"}}},
		{5, bson.D{{"collMod", "plainView"}, {"viewOn", "plainView2"}, {"pipeline", bson.A{}}}},
	} {
		err := d.RunCommand(t.Context(), bad.cmd).Err()
		require.Equal(t, bad.code, code(err), "%v: %v", bad.cmd, err)
	}

	reply(t, d, bson.D{{"collMod", "plainView"}, {"viewOn", "sharded"}, {"pipeline", bson.A{bson.D{{"$match", bson.D{{"_id", 7}}}}}}})
	require.Equal(t, int64(1), count(t, router(t, 2).Database(db).Collection("plainView"), bson.D{}))
	require.Equal(t, "view", listed(t, 1, db, "plainView").Lookup("type").StringValue())
	require.NoError(t, d.Collection("plainView").Drop(t.Context()))
	require.Zero(t, count(t, router(t, 1).Database(db).Collection("plainView"), bson.D{}))
	noneSpilled(t)
}

// A view over a view has its collation.
func TestViewsOfOneCollation(t *testing.T) {
	db := newDB(t)
	d := router(t, 0).Database(db)
	create := func(name, on string, collation bson.D) int {
		command := bson.D{{"create", name}, {"viewOn", on}, {"pipeline", bson.A{}}}
		if collation != nil {
			command = append(command, bson.E{Key: "collation", Value: collation})
		}

		return code(d.RunCommand(opContext(t, opLimit), command).Err())
	}

	require.Zero(t, create("plain", "c", nil))
	require.Zero(t, create("en", "c", bson.D{{"locale", "en"}, {"strength", 2}}))
	require.Zero(t, create("same", "en", bson.D{{"strength", 2}, {"locale", "en"}}))
	require.Zero(t, create("simple", "plain", bson.D{{"locale", "simple"}}))

	for _, other := range []bson.D{nil, {{"locale", "simple"}}, {{"locale", "en"}}, {{"locale", "fr"}}} {
		require.Equal(t, 167, create("other", "en", other), "%v", other)
	}

	require.Equal(t, 167, create("other", "plain", bson.D{{"locale", "en"}}))
}
