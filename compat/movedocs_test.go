package compat

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Values of unique indexes, with and without a collation, wander between documents while these move: what is copied is in the
// way of what comes later all the time.
func TestMoveUniqueValuesWander(t *testing.T) {
	const size = 60

	db := newMoving(t)
	coll := router(t, 0).Database(db).Collection("c")
	_, err := coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys:    bson.D{{"x.v", 1}, {"k", -1}},
		Options: options.Index().SetUnique(true).SetCollation(&options.Collation{Locale: "de", Strength: 2}),
	})
	require.NoError(t, err)

	values := make([]int, size) // by document
	var docs []any

	set := func(i, v int) bson.D {
		return bson.D{{"u", v}, {"k", 1}, {"x", bson.D{{"v", fmt.Sprint("Straße ", v)}}}}
	}

	for i := range size {
		values[i] = i
		docs = append(docs, append(bson.D{{"_id", i}}, set(i, i)...))
	}

	_, err = coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)

	rnd := random(t)
	stop := make(chan struct{})

	var (
		done  sync.WaitGroup
		wrong error
		swaps int
	)

	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}

			i, j := rnd.IntN(size), rnd.IntN(size)
			if i == j {
				continue
			}

			for _, step := range []struct{ doc, value int }{{i, -1 - i}, {j, values[i]}, {i, values[j]}} {
				ctx, cancel := context.WithTimeout(context.Background(), opLimit)
				res, err := router(t, swaps%routerCount).Database(db).Collection("c").UpdateOne(ctx, bson.D{{"_id", step.doc}}, bson.D{{"$set", set(step.doc, step.value)}})

				cancel()

				if err != nil || res.ModifiedCount != 1 {
					wrong = fmt.Errorf("swap %d: %v, %w", swaps, res, err)
					return
				}
			}

			values[i], values[j] = values[j], values[i]
			swaps++
		}
	})

	for range 12 {
		require.NoError(t, moveTo(t, 1, db+".c", otherThan(homeOf(t, 0, db+".c"))))
	}

	close(stop)
	done.Wait()
	require.NoError(t, wrong)
	t.Logf("%d swaps", swaps)

	cur, err := coll.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
	got := all(t, cur, err)
	require.Len(t, got, size)

	for i, d := range got {
		require.Equal(t, int32(values[i]), d.Lookup("u").Int32(), "%s", d)
		require.Equal(t, fmt.Sprint("Straße ", values[i]), d.Lookup("x", "v").StringValue(), "%s", d)
	}
}

// All documents change what is unique of them after they were copied, each to what another one had.
func TestMoveUniqueValuesShift(t *testing.T) {
	const size = 700

	db := newMoving(t)
	coll := router(t, 0).Database(db).Collection("c")
	_, err := coll.Indexes().CreateMany(t.Context(), []mongo.IndexModel{
		{Keys: bson.D{{"s", 1}}, Options: options.Index().SetUnique(true).SetCollation(&options.Collation{Locale: "de", Strength: 2})},
		{Keys: bson.D{{"a", 1}}, Options: options.Index().SetUnique(true).SetSparse(true)},
	})
	require.NoError(t, err)

	doc := func(i, v int) bson.D {
		d := bson.D{{"_id", i}, {"u", v}, {"s", fmt.Sprint("ß", v)}}
		if v%3 == 0 {
			d = append(d, bson.E{Key: "a", Value: bson.A{v, v + 1000}})
		}

		return d
	}

	var docs, away, back []mongo.WriteModel

	for i := range size {
		byID := bson.D{{"_id", i}}
		docs = append(docs, mongo.NewInsertOneModel().SetDocument(doc(i, i)))
		away = append(away, mongo.NewReplaceOneModel().SetFilter(byID).SetReplacement(bson.D{{"u", -1 - i}, {"s", fmt.Sprint("-", i)}}))
		back = append(back, mongo.NewReplaceOneModel().SetFilter(byID).SetReplacement(doc(i, (i+301)%size)))
	}

	write := func(models []mongo.WriteModel) {
		t.Helper()

		_, err := coll.BulkWrite(opContext(t, opLimit), models)
		require.NoError(t, err)
	}

	write(docs)

	home := homeOf(t, 0, db+".c")
	stopped := stopAt(t, victim, "follow")
	result := stopped.begin(func() error { return moveTo(t, victim, db+".c", otherThan(home)) })

	write(away)
	write(back)
	stopped.release()
	require.NoError(t, <-result)

	cur, err := coll.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
	got := all(t, cur, err)
	require.Len(t, got, size)

	for i, d := range got {
		want, err := bson.Marshal(doc(i, (i+301)%size))
		require.NoError(t, err)
		require.Equal(t, bson.Raw(want), d)
	}
}

// Documents up to the greatest size move, by the scan and by the change stream.
func TestMoveLargeDocuments(t *testing.T) {
	db := newMoving(t)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")
	rnd := rand.New(rand.NewPCG(1, 1))

	fill := func(n int) string {
		return strings.Repeat(string(rune('a'+rnd.IntN(26))), n)
	}

	const greatest = 16<<20 - 100

	want := map[int32]string{}

	put := func(i int32, n int) {
		want[i] = fill(n)
		_, err := coll.ReplaceOne(ctx, bson.D{{"_id", i}}, bson.D{{"u", i}, {"s", want[i]}}, options.Replace().SetUpsert(true))
		require.NoError(t, err)
	}

	for i := range int32(4) {
		put(i, greatest)
	}

	for i := range int32(12) {
		put(10+i, 1<<20)
	}

	home := homeOf(t, 0, db+".c")
	stopped := stopAt(t, victim, "follow")
	result := stopped.begin(func() error { return moveTo(t, victim, db+".c", otherThan(home)) })

	for i := range int32(12) {
		put(10+i, 1<<20)
	}

	put(1, greatest)
	put(5, greatest)
	_, err := coll.DeleteOne(ctx, bson.D{{"_id", 2}})
	require.NoError(t, err)
	delete(want, 2)
	stopped.release()
	require.NoError(t, <-result)

	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(1))
	require.NoError(t, err)

	got := map[int32]string{}
	for cur.Next(ctx) {
		got[cur.Current.Lookup("_id").Int32()] = cur.Current.Lookup("s").StringValue()
	}

	require.NoError(t, cur.Err())
	require.Len(t, got, len(want))

	for i, s := range want {
		require.True(t, s == got[i], "document %d", i) //nolint:testifylint // too long to be shown
	}
}

// Sharded right after a move, a collection still knows where it was: repeated writes give their first results.
func TestMoveThenShard(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	coll := router(t, 0).Database(db).Collection("c")
	lsid := session()

	_, err := coll.InsertMany(ctx, []any{bson.D{{"_id", 1}, {"n", 0}}, bson.D{{"_id", 2}, {"n", 0}}})
	require.NoError(t, err)
	_, err = coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"k", "hashed"}}})
	require.NoError(t, err)

	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}

	for i, write := range []bson.D{
		{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 1}}}, {"u", inc}}}}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 2}}}, {"update", inc}, {"new", true}},
	} {
		write = append(write, bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: lsid}, bson.E{Key: "txnNumber", Value: int64(i + 1)})
		first := withoutTimes(t, ok(t, dialRaw(t, 0).run(write)))

		if i == 0 {
			require.NoError(t, moveTo(t, 1, db+".c", otherThan(homeOf(t, 0, db+".c"))))
			shardCollection(t, 2, db+".c", bson.D{{"k", "hashed"}})
		}

		for r := range routerCount {
			require.Equal(t, first, withoutTimes(t, ok(t, dialRaw(t, r).run(write))), "router %d", r)
		}

		var doc struct{ N int }
		require.NoError(t, coll.FindOne(ctx, bson.D{{"_id", i + 1}}).Decode(&doc))
		require.Equal(t, 1, doc.N)
	}

	require.Equal(t, int64(2), count(t, coll, bson.D{}))
}
