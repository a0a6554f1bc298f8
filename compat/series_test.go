package compat

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// measurement is a document of the time series collections of these tests.
func measurement(id any, second int, sensor int) bson.D {
	return bson.D{{"_id", id}, {"t", time.Date(2024, 1, 1, 0, 0, second, 0, time.UTC)}, {"m", bson.D{{"s", sensor}}}, {"v", second}}
}

// An unsharded time series collection is what it is on a mongod.
func TestTimeSeriesAsOnAMongod(t *testing.T) {
	db := newDB(t)
	conns := [2]*rawConn{dialRaw(t, 0), dialJudge(t)}

	var first, mixed bson.A
	for i := range 12 {
		first = append(first, measurement(i, i, i%3))
	}

	mixed = bson.A{measurement("a", 20, 7), bson.D{{"x", 1}}, measurement("b", 21, 7)}
	update := func(q, u bson.D, more ...bson.E) bson.A {
		return bson.A{append(bson.D{{"q", q}, {"u", u}}, more...)}
	}
	multi := bson.E{Key: "multi", Value: true}
	meta := bson.D{{"m.s", 1}}
	series := bson.D{{"timeField", "t"}, {"metaField", "m"}}
	sorted := bson.A{bson.D{{"$sort", bson.D{{"t", 1}}}}, bson.D{{"$project", bson.D{{"_id", 0}, {"t", 1}, {"m", 1}, {"v", 1}}}}}

	for _, cmd := range []bson.D{
		{{"create", "bad"}, {"timeseries", bson.D{}}},
		{{"create", "bad"}, {"timeseries", bson.D{{"timeField", "a.b"}}}},
		{{"create", "bad"}, {"timeseries", series}, {"capped", true}, {"size", 1000}},
		{{"create", "bad"}, {"timeseries", series}, {"viewOn", "x"}},
		{{"create", "bad"}, {"expireAfterSeconds", 100}},
		{{"create", "c"}, {"timeseries", append(series[:2:2], bson.E{Key: "granularity", Value: "minutes"})}, {"expireAfterSeconds", int64(1e9)}},
		{{"create", "plain"}, {"timeseries", bson.D{{"timeField", "t"}}}, {"collation", bson.D{{"locale", "de"}}}, {"storageEngine", bson.D{{"wiredTiger", bson.D{}}}}},
		{{"create", "c"}, {"timeseries", append(series[:2:2], bson.E{Key: "granularity", Value: "minutes"})}, {"expireAfterSeconds", int64(1e9)}},
		{{"create", "c"}},
		{{"create", "c"}, {"viewOn", "x"}, {"pipeline", bson.A{}}},
		{{"create", "o"}},
		{{"create", "o"}, {"timeseries", series}},
		{{"listCollections", 1}, {"filter", bson.D{{"name", bson.D{{"$ne", "system.views"}}}}}},
		{{"listCollections", 1}, {"filter", bson.D{{"type", "timeseries"}}}, {"nameOnly", true}},
		{{"insert", "c"}, {"documents", first}},
		{{"insert", "c"}, {"documents", mixed}},
		{{"insert", "c"}, {"documents", mixed}, {"ordered", false}},
		{{"insert", "c"}, {"documents", bson.A{bson.D{{"t", time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)}, {"v", 0}}}}},
		{{"insert", "c"}, {"documents", bson.A{bson.D{{"v", 0}}}}},
		{{"aggregate", "c"}, {"pipeline", sorted}, {"cursor", bson.D{}}},
		{{"find", "c"}, {"filter", bson.D{{"v", bson.D{{"$gt", 8}}}}}, {"projection", bson.D{{"_id", 0}, {"v", 1}}}, {"sort", bson.D{{"v", 1}}}},
		{{"find", "c"}, {"filter", bson.D{{"$bad", 1}}}},
		{{"count", "c"}},
		{{"count", "c"}, {"query", meta}},
		{{"distinct", "c"}, {"key", "none"}},
		{{"aggregate", "c"}, {"pipeline", bson.A{bson.D{{"$group", bson.D{{"_id", "$m.s"}, {"n", bson.D{{"$sum", "$v"}}}}}}, bson.D{{"$sort", bson.D{{"_id", 1}}}}}}, {"cursor", bson.D{}}},
		{{"create", "v"}, {"viewOn", "c"}, {"pipeline", bson.A{bson.D{{"$match", bson.D{{"v", bson.D{{"$gt", 5}}}}}}}}},
		{{"aggregate", "v"}, {"pipeline", sorted}, {"cursor", bson.D{}}},
		{{"update", "c"}, {"updates", update(meta, bson.D{{"$set", bson.D{{"m.s", 5}}}}, multi)}},
		{{"update", "c"}, {"updates", update(meta, bson.D{{"$set", bson.D{{"m.s", 5}}}})}},
		{{"update", "c"}, {"updates", update(bson.D{{"v", 1}}, bson.D{{"$set", bson.D{{"m.s", 5}}}}, multi)}},
		{{"update", "c"}, {"updates", update(meta, bson.D{{"$set", bson.D{{"v", 5}}}}, multi)}},
		{{"update", "c"}, {"updates", update(meta, bson.D{{"$set", bson.D{{"m.s", 5}}}}, multi, bson.E{Key: "upsert", Value: true})}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"m.s", 2}}}, {"limit", 0}}}}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"m.s", 0}}}, {"limit", 1}}}}},
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"v", 0}}}, {"limit", 0}}}}},
		{{"findAndModify", "c"}, {"query", meta}, {"update", bson.D{{"$set", bson.D{{"m.s", 9}}}}}},
		{{"findAndModify", "c"}, {"query", meta}, {"remove", true}},
		{{"aggregate", "c"}, {"pipeline", sorted}, {"cursor", bson.D{}}},
		{{"createIndexes", "c"}, {"indexes", bson.A{bson.D{{"key", bson.D{{"m.s", 1}, {"t", 1}}}, {"name", "x"}}}}},
		{{"createIndexes", "c"}, {"indexes", bson.A{bson.D{{"key", bson.D{{"v", 1}}}, {"name", "u"}, {"unique", true}}}}},
		{{"listIndexes", "c"}},
		{{"dropIndexes", "c"}, {"index", "none"}},
		{{"dropIndexes", "c"}, {"index", "x"}},
		{{"listIndexes", "c"}},
		{{"collMod", "c"}, {"expireAfterSeconds", int64(2e9)}},
		{{"collMod", "c"}, {"timeseries", bson.D{{"granularity", "hours"}}}},
		{{"collMod", "c"}, {"timeseries", bson.D{{"granularity", "seconds"}}}},
		{{"collMod", "c"}, {"validator", bson.D{}}},
		{{"collMod", "c"}, {"viewOn", "x"}, {"pipeline", bson.A{}}},
		{{"collMod", "plain"}, {"expireAfterSeconds", int64(1e9)}},
		{{"collMod", "plain"}, {"expireAfterSeconds", "off"}},
		{{"listCollections", 1}, {"filter", bson.D{{"name", bson.D{{"$ne", "system.views"}}}}}},
		{{"validate", "c"}},
		{{"explain", bson.D{{"update", "c"}, {"updates", update(meta, bson.D{{"$set", bson.D{{"m.s", 5}}}}, multi)}}}, {"verbosity", "queryPlanner"}},
		{{"aggregate", "c"}, {"pipeline", bson.A{bson.D{{"$collStats", bson.D{{"count", bson.D{}}}}}}}, {"cursor", bson.D{}}},
		{{"renameCollection", db + ".c"}, {"to", db + ".d"}},
		{{"renameCollection", db + ".o"}, {"to", db + ".c"}, {"dropTarget", true}},
		{{"renameCollection", db + ".o"}, {"to", db + ".o2"}},
		// Who knows the buckets may read them, and put some back.
		{{"count", "system.buckets.c"}},
		{{"find", "system.buckets.c"}, {"sort", bson.D{{"meta", 1}}}, {"projection", bson.D{{"_id", 0}, {"meta", 1}, {"control.max.v", 1}}}},
		{{"insert", "system.buckets.c"}, {"documents", bson.A{bson.D{{"_id", bson.ObjectID{}}, {"a", 1}}}}},
		{{"drop", "c"}, {"collectionUUID", bson.Binary{Subtype: 4, Data: make([]byte, 16)}}},
		{{"drop", "system.buckets.c"}},
		{{"drop", "plain"}},
		{{"listCollections", 1}, {"filter", bson.D{{"type", bson.D{{"$ne", "view"}}}, {"name", bson.D{{"$ne", "system.views"}}}}}, {"nameOnly", true}},
		{{"find", "c"}},
		{{"create", "c"}},
		{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", 1}}}}},
	} {
		where := db
		if cmd[0].Key == "renameCollection" {
			where = "admin"
		}

		var got [2]string
		for i, c := range conns {
			got[i] = said(t, c.run(append(cmd[:len(cmd):len(cmd)], bson.E{Key: "$db", Value: where})))
		}

		require.Equal(t, got[1], got[0], "%v", cmd)
	}
}

// said is what a server says in a reply, without what a router says in another way. The order of fields is not compared: that of
// measurements is by chance.
func said(t *testing.T, reply bson.Raw) string {
	t.Helper()

	var d bson.D

	require.NoError(t, bson.Unmarshal(reply, &d))

	if get(d, "ok") == 0.0 {
		return fmt.Sprint(get(d, "code"), " ", get(d, "codeName"))
	}

	return fieldsOf(without(fromRaw(d), "ok", "shards", "$clusterTime", "operationTime", "electionId", "opTime", "nIndexesWas"))
}

// fieldsOf prints a value with the fields of all documents sorted, and what is listed sorted, too.
func fieldsOf(v any) string {
	var parts []string

	switch v := v.(type) {
	case bson.D:
		for _, e := range v {
			switch {
			case e.Key == "uuid": // each server's own
			case e.Key == "errInfo", e.Key == "ns":
			default:
				parts = append(parts, e.Key+": "+fieldsOf(e.Value))
			}
		}
	case bson.A:
		for _, e := range v {
			parts = append(parts, fieldsOf(e))
		}
	default:
		return fmt.Sprintf("%T(%v)", v, v)
	}

	slices.Sort(parts)

	return "{" + strings.Join(parts, ", ") + "}"
}

// What one router drops and makes anew, as a time series collection and not as one, is used at once through another; shards have
// it once; and nothing of it is left.
func TestTimeSeriesAtTwoRouters(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	here, there := router(t, 0).Database(db), router(t, 1).Database(db)
	create := bson.D{{"create", "c"}, {"timeseries", bson.D{{"timeField", "t"}, {"metaField", "m"}}}}

	errs := atOnce(t, db, create, create)
	require.ElementsMatch(t, []int{0, 48}, []int{code(errs[0]), code(errs[1])}, "%v", errs)

	for round := range 6 {
		var docs []any
		for i := range 10 {
			docs = append(docs, measurement(fmt.Sprint(round, " ", i), i, i%2))
		}

		_, err := there.Collection("c").InsertMany(ctx, docs, options.InsertMany().SetOrdered(round%2 == 0))
		require.NoError(t, err, "round %d", round)
		require.Equal(t, int64(10), count(t, here.Collection("c"), bson.D{}), "round %d", round)

		cur, err := there.Collection("c").Find(ctx, bson.D{}, options.Find().SetBatchSize(2))
		require.NoError(t, err)
		require.Len(t, all(t, cur, nil), 10)

		buckets := 0
		for i := range shardCount {
			names, err := shard(t, i).Database(db).ListCollectionNames(ctx, bson.D{{"name", "system.buckets.c"}})
			require.NoError(t, err)

			buckets += len(names)
		}

		require.Equal(t, 1-round%2, buckets)

		d := router(t, round%2).Database(db)
		require.NoError(t, d.Collection("c").Drop(ctx))

		if round%2 == 0 {
			require.NoError(t, d.CreateCollection(ctx, "c"))
		} else {
			require.NoError(t, d.RunCommand(ctx, create).Err())
		}
	}

	// It stays where it is.
	home := homeOf(t, 0, db+".c")
	err := moveTo(t, 0, db+".c", otherThan(home))
	require.Equal(t, 238, code(err), "%v", err)

	err = router(t, 0).Database("admin").RunCommand(ctx, bson.D{{"shardCollection", db + ".c"}, {"key", bson.D{{"m", 1}}}}).Err()
	require.Equal(t, 238, code(err), "%v", err)

	err = router(t, 1).Database(db).CreateView(ctx, "w", "system.buckets.c", bson.A{})
	require.Equal(t, 238, code(err), "%v", err)

	require.NoError(t, here.Drop(ctx))
	databaseIsGone(t, db)
}

// What failed attempts to make a time series collection have left makes room, if it is empty.
func TestTimeSeriesOverLeftovers(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)
	create := func(coll string) bson.D {
		return bson.D{{"create", coll}, {"timeseries", bson.D{{"timeField", "t"}}}}
	}

	onEveryShard(t, db, func(s *mongo.Database) error {
		for _, coll := range []string{"a", "b", "full"} {
			if err := s.RunCommand(ctx, create(coll)).Err(); err != nil {
				return err
			}
		}

		_, err := s.Collection("full").InsertOne(ctx, bson.D{{"t", time.Now()}})

		return err
	})

	require.NoError(t, d.RunCommand(ctx, create("a")).Err())
	require.NoError(t, d.CreateCollection(ctx, "b"))
	require.Equal(t, 48, code(d.RunCommand(ctx, create("full")).Err()))
	require.Equal(t, 48, code(d.CreateCollection(ctx, "full")))

	_, err := d.Collection("a").InsertOne(ctx, bson.D{{"t", time.Now()}})
	require.NoError(t, err)
	_, err = d.Collection("b").InsertOne(ctx, bson.D{{"x", 1}})
	require.NoError(t, err)

	require.NoError(t, d.Drop(ctx))
	databaseIsGone(t, db)
}

// The router that makes or drops a time series collection dies: the name can be used, and has one life.
func TestTimeSeriesAfterADeath(t *testing.T) {
	db := newDB(t)
	v := shared.cluster.Router(victim)
	d := router(t, 0).Database(db)
	create := bson.D{{"create", "c"}, {"timeseries", bson.D{{"timeField", "t"}}}}
	end := make(chan struct{})
	done := make(chan struct{})

	go func() {
		defer close(done)

		for {
			select {
			case <-end:
				return
			default:
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				_ = router(t, victim).Database(db).RunCommand(ctx, create).Err()
				_ = router(t, victim).Database(db).Collection("c").Drop(ctx)

				cancel()
			}
		}
	}()

	time.Sleep(time.Duration(200+random(t).IntN(300)) * time.Millisecond)
	require.NoError(t, v.Kill())
	up(t, v)
	close(end)
	<-done

	eventually(t, recoverLimit, "it can be dropped", func() error {
		return d.Collection("c").Drop(opContext(t, opLimit))
	})
	eventually(t, recoverLimit, "and made", func() error {
		return d.RunCommand(opContext(t, opLimit), create).Err()
	})

	_, err := d.Collection("c").InsertOne(opContext(t, opLimit), measurement(1, 1, 1))
	require.NoError(t, err)
	require.Equal(t, int64(1), count(t, router(t, 1).Database(db).Collection("c"), bson.D{}))
	require.NoError(t, d.Drop(opContext(t, opLimit)))
	databaseIsGone(t, db)
}
