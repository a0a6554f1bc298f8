package compat

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// rename renames a collection of a database through one router.
func rename(t testing.TB, r int, db, from, to string, more ...bson.E) error {
	t.Helper()

	cmd := append(bson.D{{"renameCollection", db + "." + from}, {"to", db + "." + to}}, more...)

	return router(t, r).Database("admin").RunCommand(opContext(t, opLimit), cmd).Err()
}

// configured is a collection as config has it, but for what a rename changes.
func configured(t testing.TB, r int, ns string) (uuid bson.RawValue, chunks []string) {
	t.Helper()

	config := router(t, r).Database("config")

	var row bson.Raw

	require.NoError(t, config.Collection("collections").FindOne(t.Context(), bson.D{{"_id", ns}}).Decode(&row))

	cur, err := config.Collection("chunks").Find(t.Context(), bson.D{{"ns", ns}}, options.Find().SetProjection(bson.D{{"ns", 0}}).SetSort(bson.D{{"min", 1}}))
	for _, c := range all(t, cur, err) {
		chunks = append(chunks, c.String())
	}

	return row.Lookup("uuid"), chunks
}

// What is renamed stays what it is, sharded or not, on all its shards, and every router knows it by its new name at once. What had
// that before is gone.
func TestRenameCollection(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	here, there := router(t, 0).Database(db), router(t, 1).Database(db)

	make := func(coll string, key bson.D) {
		remake(t, 0, db, coll, key)

		var docs []any
		for i := range 40 {
			docs = append(docs, bson.D{{"_id", fmt.Sprint(coll, " ", i)}, {"k", i}, {"u", i}, {"of", coll}})
		}

		_, err := there.Collection(coll).InsertMany(ctx, docs)
		require.NoError(t, err)
		_, err = here.Collection(coll).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"of", 1}, {"k", 1}}})
		require.NoError(t, err)
	}

	logged := func() []bson.Raw {
		cur, err := router(t, 0).Database("config").Collection("changelog").Find(ctx, bson.D{{"ns", db + ".a"}, {"what", bson.D{{"$regex", "^renameCollection"}}}})
		return all(t, cur, err)
	}
	before := len(logged())

	for i, source := range layouts {
		target := layouts[(i+1)%len(layouts)]
		name := source.name + " over " + target.name

		make("a", source.key)
		make("b", target.key)

		id, chunks := configured(t, 0, db+".a")
		indexes := indexNames(t, there.Collection("a"))
		cursor := openCursor(t, there.Collection("a"), 1)

		require.Equal(t, 48, code(rename(t, 0, db, "a", "b")), name)
		require.NoError(t, rename(t, i%2, db, "a", "b", bson.E{Key: "dropTarget", Value: true}), name)
		oldCursorEnds(t, cursor)

		for r := range 2 {
			d := router(t, r).Database(db)
			require.Equal(t, int64(40), count(t, d.Collection("b"), bson.D{{"of", "a"}}), name)
			require.Zero(t, count(t, d.Collection("b"), bson.D{{"of", "b"}}), name)
			require.Zero(t, count(t, d.Collection("a"), bson.D{}), name)

			now, same := configured(t, r, db+".b")
			require.Equal(t, id.String(), now.String(), name)
			require.Equal(t, chunks, same, name)

			names, err := d.ListCollectionNames(ctx, bson.D{})
			require.NoError(t, err)
			require.Equal(t, []string{"b"}, names)
		}

		require.ElementsMatch(t, indexes, indexNames(t, there.Collection("b")), name)
		oneUUID(t, db, "b")

		total := 0
		for on, docs := range onShards(t, db, "b") {
			total += len(docs)
			for _, doc := range docs {
				require.Equal(t, "a", doc.Lookup("of").StringValue(), "%s: on %s: %s", name, on, doc)
			}
		}

		require.Equal(t, 40, total, name)

		for i := range shardCount {
			names, err := shard(t, i).Database(db).ListCollectionNames(ctx, bson.D{{"name", bson.D{{"$ne", "b"}}}})
			require.NoError(t, err)
			require.Empty(t, names, "%s: on shard %d", name, i)
		}

		// Both names are used at once: one is the collection's, the other nobody's.
		_, err := there.Collection("b").UpdateMany(ctx, bson.D{}, bson.D{{"$set", bson.D{{"of", "b"}}}})
		require.NoError(t, err)
		_, err = there.Collection("a").InsertOne(ctx, bson.D{{"new", true}})
		require.NoError(t, err)
		require.Equal(t, int64(40), count(t, here.Collection("b"), bson.D{{"of", "b"}}), name)
		require.Equal(t, int64(1), count(t, here.Collection("a"), bson.D{}), name)

		log := logged()
		require.Len(t, log, before+2*(i+1))
		require.Equal(t, db+".b", log[len(log)-1].Lookup("details", "destination").StringValue())
	}
}

// A collection that has lately moved, or of which a chunk has, is renamed with what is left of it on its former shards.
func TestRenameAfterMoves(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)

	for _, key := range []bson.D{nil, {{"k", 1}}} {
		remake(t, 0, db, "a", key)

		for i := range 20 {
			_, err := d.Collection("a").InsertOne(ctx, bson.D{{"_id", i}, {"k", i}})
			require.NoError(t, err)
		}

		home := homeOf(t, 0, db+".a")

		if key == nil {
			require.NoError(t, moveTo(t, 0, db+".a", otherThan(home)))
		} else {
			admin(t, 0, bson.D{{"moveRange", db + ".a"}, {"min", bson.D{{"k", 10}}}, {"toShard", shardNames()[otherThan(home)]}})
		}

		require.NoError(t, rename(t, 1, db, "a", "b", bson.E{Key: "dropTarget", Value: true}))
		require.Equal(t, int64(20), count(t, router(t, 1).Database(db).Collection("b"), bson.D{}))

		// It can move on, also back.
		if key == nil {
			require.NoError(t, moveTo(t, 1, db+".b", home))
		} else {
			admin(t, 1, bson.D{{"moveRange", db + ".b"}, {"min", bson.D{{"k", 10}}}, {"toShard", shardNames()[home]}})
		}

		require.Equal(t, int64(20), count(t, d.Collection("b"), bson.D{}))
		require.NoError(t, rename(t, 0, db, "b", "a"))
		require.Equal(t, int64(20), count(t, router(t, 1).Database(db).Collection("a"), bson.D{}))
	}
}

// What a mongod refuses is refused with its code, and what it takes is taken.
func TestRenameAsAMongodDoes(t *testing.T) {
	db := newDB(t)
	c, judge := dialRaw(t, 0), dialJudge(t)
	both := func(cmd bson.D) [2]bson.Raw {
		t.Helper()
		return [2]bson.Raw{c.run(cmd), judge.run(cmd)}
	}

	for _, cmd := range []bson.D{
		{{"create", "a"}, {"validator", bson.D{{"x", bson.D{{"$type", "int"}}}}}, {"collation", bson.D{{"locale", "de"}}}, {"$db", db}},
		{{"create", "b"}, {"capped", true}, {"size", 4096}, {"$db", db}},
		{{"create", "v"}, {"viewOn", "a"}, {"pipeline", bson.A{}}, {"$db", db}},
	} {
		for _, reply := range both(cmd) {
			ok(t, reply)
		}
	}

	ns := func(coll string) string { return db + "." + coll }
	other := bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	to := func(v any, more ...bson.E) bson.D { return append(bson.D{{"to", v}}, more...) }

	for _, test := range []struct {
		from any
		more bson.D
	}{
		{ns("a"), nil},
		{ns("a"), to(1)},
		{1, to(ns("x"))},
		{ns("a"), to(ns("b"))},
		{ns("a"), to(ns("b"), bson.E{Key: "dropTarget", Value: false})},
		{ns("a"), to(ns("a"))},
		{ns("a"), to(ns("a"), bson.E{Key: "dropTarget", Value: true})},
		{ns("z"), to(ns("y"))},
		{ns("z"), to(ns("z"))},
		{ns("z"), to(ns("b"))},
		{db + "_z.z", to(db + "_z.y")},
		{ns("v"), to(ns("w"))},
		{ns("a"), to(ns("v"))},
		{ns("a"), to(ns("v"), bson.E{Key: "dropTarget", Value: true})},
		{ns("a"), to(db)},
		{ns("a"), to(ns(""))},
		{ns("a"), to("")},
		{ns("a"), to(ns("$x"))},
		{ns("a"), to(ns(".x"))},
		{ns("a"), to(ns("x\x00y"))},
		{db, to(ns("x"))},
		{"", to(ns("x"))},
		{ns("$x"), to(ns("x"))},
		{ns("a"), to(ns("system.views"))},
		{ns("a"), to(ns("system.foo"))},
		{ns("system.views"), to(ns("x"))},
		{ns("system.buckets.x"), to(ns("x"))},
		{ns("a"), to(ns("x"), bson.E{Key: "collectionUUID", Value: other})},
		{ns("a"), to(ns("x"), bson.E{Key: "collectionUUID", Value: 3})},
		{ns("z"), to(ns("x"), bson.E{Key: "collectionUUID", Value: other})},
		{ns("a"), to("other.x", bson.E{Key: "collectionUUID", Value: other})},
		{ns("a"), to(ns("b"), bson.E{Key: "dropTarget", Value: other})},
		{ns("a"), to(ns("x"), bson.E{Key: "dropTarget", Value: other})},
		{ns("a"), to(ns("b"), bson.E{Key: "dropTarget", Value: 1})},
		{ns("a"), to(ns("b"), bson.E{Key: "dropTarget", Value: nil})},
		{ns("a"), to(ns("b"), bson.E{Key: "dropTarget", Value: bson.Binary{Data: make([]byte, 16)}})},
		{ns("a"), to(ns("b"), bson.E{Key: "dropTarget", Value: bson.Binary{Subtype: 4, Data: make([]byte, 3)}})},
		{ns("a"), to(ns("x"), bson.E{Key: "collectionUUID", Value: bson.Binary{Data: make([]byte, 16)}})},
		{ns("a"), to(ns("x"), bson.E{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: make([]byte, 3)}})},
		{ns("a"), to(ns("b"), bson.E{Key: "stayTemp", Value: 1})},
		{ns("a"), to(ns("b"), bson.E{Key: "stayTemp", Value: nil})},
		{ns("a"), to(ns("b"), bson.E{Key: "bogus", Value: 1})},
		{ns("a"), to(ns("x.."), bson.E{Key: "stayTemp", Value: true})},
		{ns("x.."), to(ns("a"), bson.E{Key: "writeConcern", Value: bson.D{{"w", 5}, {"wtimeout", 100}}})},
		{ns("b"), to(ns("c"), bson.E{Key: "dropTarget", Value: true})},
		{ns("c"), to(ns("a"), bson.E{Key: "dropTarget", Value: true})},
	} {
		got := both(append(append(bson.D{{"renameCollection", test.from}}, test.more...), bson.E{Key: "$db", Value: "admin"}))

		for _, field := range []string{"ok", "code", "codeName"} {
			require.Equal(t, got[1].Lookup(field).String(), got[0].Lookup(field).String(), "%v %v: %s", test.from, test.more, got[0])
		}

		require.Equal(t, got[1].Lookup("writeConcernError", "code").String(), got[0].Lookup("writeConcernError", "code").String(), "%s", got[0])
	}

	for _, reply := range both(bson.D{{"renameCollection", ns("a")}, {"to", ns("x")}, {"$db", db}}) {
		refused(t, reply, 13, "Unauthorized")
	}

	var left [2][]string

	for i, reply := range both(bson.D{{"listCollections", 1}, {"filter", bson.D{{"name", bson.D{{"$not", bson.Regex{Pattern: "^system"}}}}}}, {"$db", db}}) {
		for _, v := range batch(t, ok(t, reply), "firstBatch") {
			left[i] = append(left[i], v.Document().Lookup("name").String()+v.Document().Lookup("options").String())
		}

		slices.Sort(left[i])
	}

	require.Equal(t, left[1], left[0])

	// Across databases no mongos does it for collections that are sharded.
	shardCollection(t, 0, db+".s", bson.D{{"k", 1}})
	refused(t, c.run(bson.D{{"renameCollection", ns("s")}, {"to", "other.s"}, {"$db", "admin"}}), 125, "CommandFailed")
	refused(t, c.run(bson.D{{"renameCollection", ns("a")}, {"to", "config.s"}, {"$db", "admin"}}), 20, "IllegalOperation")
}

// Writes go on at one router while the other renames to and fro: what was acknowledged is there, once, and nothing where no routing
// table leads to.
func TestWritersWhileRenaming(t *testing.T) {
	db := newDB(t)
	rnd := random(t)
	ctx := opContext(t, 2*opLimit)

	shardCollection(t, 0, db+".a", bson.D{{"k", "hashed"}})

	var (
		acked []string
		end   = make(chan struct{})
		done  = make(chan error, 1)
	)

	go func() {
		for i := 0; ; i++ {
			select {
			case <-end:
				done <- nil
				return
			default:
			}

			id := fmt.Sprint("w", i)
			_, err := router(t, 1).Database(db).Collection([]string{"a", "b"}[i%2]).InsertOne(ctx, bson.D{{"_id", id}, {"k", i}})

			switch {
			case err == nil:
				acked = append(acked, id)
			case code(err) != 117 && code(err) != 361 && code(err) != 46:
				done <- fmt.Errorf("insert %d: %w", i, err)
				return
			}
		}
	}()

	// Each write makes a collection where there is none, so only a target that nobody has made in between is not there.
	names := []string{"a", "b"}
	for i := range 12 {
		from, to := names[i%2], "c"
		require.NoError(t, rename(t, rnd.IntN(2), db, from, to))
		require.Equal(t, int64(0), count(t, router(t, 0).Database(db).Collection(to), bson.D{{"none", true}}))

		err := rename(t, rnd.IntN(2), db, to, from)
		if code(err) == 48 { // a write has made one
			var docs []bson.Raw

			cur, err := router(t, 0).Database(db).Collection(to).Find(ctx, bson.D{})
			docs = all(t, cur, err)

			if len(docs) > 0 {
				_, err = router(t, 0).Database(db).Collection(from).InsertMany(ctx, docs)
				require.NoError(t, err)
			}

			require.NoError(t, router(t, 0).Database(db).Collection(to).Drop(ctx))
			continue
		}

		require.NoError(t, err)
	}

	close(end)
	require.NoError(t, <-done)
	require.NotEmpty(t, acked)

	found := map[string]int{}

	for _, coll := range names {
		cur, err := router(t, 0).Database(db).Collection(coll).Find(ctx, bson.D{})
		for _, doc := range all(t, cur, err) {
			found[doc.Lookup("_id").StringValue()]++
		}

		oneUUID(t, db, coll)
	}

	for _, id := range acked {
		require.Equal(t, 1, found[id], "%s", id)
	}
}

// Two routers rename at once: one does it, and both know the same afterwards.
func TestRenamesAtTwoRoutersAtOnce(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 2*opLimit)
	d := router(t, 0).Database(db)
	cmd := func(from, to string) bson.D {
		return bson.D{{"renameCollection", db + "." + from}, {"to", db + "." + to}, {"dropTarget", true}}
	}

	for i := range 6 {
		for _, coll := range []string{"a", "b"} {
			remake(t, 0, db, coll, layouts[i%len(layouts)].key)
			_, err := d.Collection(coll).InsertOne(ctx, bson.D{{"k", 1}, {"u", 1}, {"of", coll}})
			require.NoError(t, err)
		}

		var errs [2]error

		switch i % 3 {
		case 0: // the same
			errs = atOnce(t, "admin", cmd("a", "c"), cmd("a", "c"))
		case 1: // to and fro: what is second renames the other one away, or finds nothing
			errs = atOnce(t, "admin", cmd("a", "b"), cmd("b", "a"))
		case 2: // beside what makes the new name
			errs = atOnce(t, "admin", cmd("a", "c"), bson.D{{"shardCollection", db + ".c"}, {"key", bson.D{{"k", "hashed"}}}})
		}

		require.Contains(t, []int{code(errs[0]), code(errs[1])}, 0, "%v", errs)

		for _, err := range errs {
			require.Contains(t, []int{0, 26, 23, 117}, code(err), "%v", err)
		}

		var names [2][]string
		for r := range names {
			var err error
			names[r], err = router(t, r).Database(db).ListCollectionNames(ctx, bson.D{})
			require.NoError(t, err)
		}

		require.Equal(t, names[0], names[1])

		for _, coll := range names[0] {
			oneUUID(t, db, coll)
			require.Equal(t, count(t, d.Collection(coll), bson.D{}), count(t, router(t, 1).Database(db).Collection(coll), bson.D{}))
			require.NoError(t, d.Collection(coll).Drop(ctx))
		}
	}
}

// An open transaction holds a rename up, which leaves all as it was when its time is over.
func TestRenameWaitsForTransactions(t *testing.T) {
	db := newDB(t)
	d := router(t, 0).Database(db)
	cmd := bson.D{{"renameCollection", db + ".a"}, {"to", db + ".b"}, {"dropTarget", true}}

	for _, coll := range []string{"a", "b"} {
		require.NoError(t, d.CreateCollection(opContext(t, opLimit), coll))

		ctx, s := begin(t, router(t, 1).Database(db).Collection(coll), bson.D{{"_id", coll}})
		err := d.Client().Database("admin").RunCommand(t.Context(), append(cmd[:3:3], bson.E{Key: "maxTimeMS", Value: 300})).Err()
		require.Equal(t, 50, code(err), "%v", err)
		require.NoError(t, s.CommitTransaction(ctx))
		require.Equal(t, int64(1), count(t, d.Collection(coll), bson.D{}))
	}

	require.NoError(t, d.Client().Database("admin").RunCommand(opContext(t, opLimit), cmd).Err())
	require.Equal(t, int64(1), count(t, router(t, 1).Database(db).Collection("b"), bson.D{{"_id", "a"}}))
}

// stopAtStep has a router stop at a step of DDL, as stopAt has it at one of a movement.
func stopAtStep(t *testing.T, r int, step string) (reached, release func()) {
	t.Helper()

	file := filepath.Join(shared.failpoints, step)
	require.NoError(t, os.WriteFile(file, []byte(shared.cluster.Router(r).Addr()), 0o600))

	release = func() { _, _ = os.Remove(file), os.Remove(file+".reached") }
	t.Cleanup(release)

	return func() {
		eventually(t, recoverLimit, "the step "+step, func() error {
			_, err := os.Stat(file + ".reached")
			return err
		})
	}, release
}

// The router that renames dies, or is stopped and wakes late: others undo it, or finish it once something may be done.
func TestRenamerFaults(t *testing.T) {
	db := newDB(t)
	rnd := random(t)
	v := shared.cluster.Router(victim)
	d := router(t, 0).Database(db)

	for _, step := range someOf(rnd, "fenced", "marked", "shard", "done") {
		faults := []string{"kill", "pause"}
		if os.Getenv("COMPAT_CHAOS") == "" {
			faults = faults[:1] // to shut out one that is stopped takes its time
		}

		for _, fault := range faults {
			t.Run(step+"/"+fault, func(t *testing.T) {
				for i, coll := range []string{"a", "b"} {
					remake(t, 0, db, coll, layouts[i].key)
					_, err := d.Collection(coll).InsertMany(opContext(t, opLimit), []any{
						bson.D{{"k", 1}, {"of", coll}}, bson.D{{"k", 2}, {"of", coll}}, bson.D{{"k", 3}, {"of", coll}}, bson.D{{"k", 4}, {"of", coll}},
					})
					require.NoError(t, err)
				}

				reached, release := stopAtStep(t, victim, "rename-"+step)
				result := make(chan error, 1)

				go func() {
					cmd := bson.D{{"renameCollection", db + ".a"}, {"to", db + ".b"}, {"dropTarget", true}}
					result <- router(t, victim).Database("admin").RunCommand(context.Background(), cmd).Err()
				}()

				reached()

				if fault == "kill" {
					require.NoError(t, v.Kill())
					release()
					up(t, v)
				} else {
					require.NoError(t, v.Pause())
					release()
				}

				// Who comes next to either name, or nobody, ends it.
				name := []string{"a", "b"}[rnd.IntN(2)]
				eventually(t, recoverLimit, "it can be used", func() error {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					defer cancel()

					_, err := d.Collection(name).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"of", 1}}})

					return err
				})

				if fault == "pause" {
					require.NoError(t, v.Resume())
				}

				t.Log(<-result)

				// It was not begun, or is done.
				old := count(t, d.Collection("a"), bson.D{})
				of := map[int64]string{0: "a", 4: "b"}[old]
				require.True(t, of != "" && (of == "a" || step == "fenced"), "a has %d documents", old)

				for r := range 2 {
					require.Equal(t, old, count(t, router(t, r).Database(db).Collection("a"), bson.D{{"of", "a"}}))
					require.Equal(t, int64(4), count(t, router(t, r).Database(db).Collection("b"), bson.D{{"of", of}}))
					require.Equal(t, int64(4), count(t, router(t, r).Database(db).Collection("b"), bson.D{}))
				}

				require.NoError(t, d.Drop(opContext(t, opLimit)))
				databaseIsGone(t, db)
			})
		}
	}
}
