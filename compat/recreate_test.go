package compat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// layouts are the ways in which a collection is made again after a drop.
var layouts = []struct {
	name string
	key  bson.D // nil: not sharded
}{
	{"hashed k", bson.D{{"k", "hashed"}}},
	{"unsharded", nil},
	{"hashed u", bson.D{{"u", "hashed"}}},
	{"ranged u", bson.D{{"u", 1}}},
}

// remake drops a collection and makes it anew through one router.
func remake(t testing.TB, r int, db, coll string, key bson.D) {
	t.Helper()

	d := router(t, r).Database(db)
	require.NoError(t, d.Collection(coll).Drop(opContext(t, opLimit)))

	if key == nil {
		require.NoError(t, d.CreateCollection(opContext(t, opLimit), coll))
		return
	}

	shardCollection(t, r, db+"."+coll, key)
}

// onShards asks every shard directly for a collection's documents.
func onShards(t testing.TB, db, coll string) map[string][]bson.Raw {
	t.Helper()

	docs := map[string][]bson.Raw{}

	for i, name := range shardNames() {
		cur, err := shard(t, i).Database(db).Collection(coll).Find(t.Context(), bson.D{})
		docs[name] = all(t, cur, err)
	}

	return docs
}

// Case A24: what one router drops and makes anew is used at once through another that still knew the old one.
func TestRecreatedAtOneRouterUsedAtAnother(t *testing.T) {
	const loops = 50

	db := newDB(t)
	there := router(t, 1).Database(db).Collection("c")

	remake(t, 0, db, "c", layouts[0].key)

	for round := range loops {
		layout := layouts[round%len(layouts)]
		cursor := openCursor(t, there, round)

		remake(t, 0, db, "c", layout.key)

		docs := make([]any, 0, 12)
		for i := range 12 {
			docs = append(docs, bson.D{{"_id", fmt.Sprint(round, " ", i)}, {"k", i}, {"u", -i}, {"round", round}})
		}

		// Half the time the other router's first look at the new collection is a read.
		if round%8 >= 4 {
			here := router(t, 0).Database(db).Collection("c")
			_, err := here.InsertOne(opContext(t, opLimit), bson.D{{"_id", "first"}, {"k", round}, {"u", round}, {"round", round}})
			require.NoError(t, err)

			cur, err := there.Find(t.Context(), bson.D{{"k", round}, {"u", round}})
			require.Len(t, all(t, cur, err), 1, "round %d, %s", round, layout.name)

			_, err = here.DeleteOne(opContext(t, opLimit), bson.D{{"k", round}, {"u", round}})
			require.NoError(t, err)
		}

		res, err := there.InsertMany(opContext(t, opLimit), docs)
		require.NoError(t, err, "round %d, %s", round, layout.name)
		require.Len(t, res.InsertedIDs, 12)

		cur, err := there.Find(t.Context(), bson.D{})
		require.Len(t, all(t, cur, err), 12, "no document of an earlier life")

		upd, err := there.UpdateMany(opContext(t, opLimit), bson.D{}, bson.D{{"$inc", bson.D{{"n", 1}}}})
		require.NoError(t, err)
		require.Equal(t, int64(12), upd.MatchedCount)

		_, err = there.Indexes().CreateOne(opContext(t, opLimit), mongo.IndexModel{Keys: bson.D{{"round", 1}}})
		require.NoError(t, err)

		total := 0
		for name, list := range onShards(t, db, "c") {
			total += len(list)
			for _, doc := range list {
				require.Equal(t, int32(round), doc.Lookup("round").Int32(), "on %s: %s", name, doc)
			}
		}

		require.Equal(t, 12, total, "all on the shards, once")

		if layout.key != nil && layout.key[0].Value == "hashed" {
			checkPlacementOn(t, db, "c", layout.key[0].Key, shardNames()...)
		}

		oldCursorEnds(t, cursor)
	}
}

// openCursor leaves a cursor open that has more to give, or returns nil.
func openCursor(t testing.TB, coll *mongo.Collection, round int) *mongo.Cursor {
	t.Helper()

	if round == 0 {
		return nil
	}

	cur, err := coll.Find(t.Context(), bson.D{}, options.Find().SetBatchSize(2))
	require.NoError(t, err)
	require.True(t, cur.Next(t.Context()))

	return cur
}

// oldCursorEnds checks that a cursor of a dropped collection fails, and with the right code.
func oldCursorEnds(t testing.TB, cur *mongo.Cursor) {
	t.Helper()

	if cur == nil {
		return
	}

	n := 1
	for cur.Next(t.Context()) {
		n++
	}

	require.Less(t, n, 12)
	require.Contains(t, []int{175, 43}, code(cur.Err()), "%v", cur.Err())
}

// Writes that run all the time through one router while the other drops and remakes: whatever was acknowledged after the new
// collection was is there, and nothing is where no routing table leads to.
func TestWritersWhileRecreating(t *testing.T) {
	db := newDB(t)
	there := router(t, 1).Database(db).Collection("c")

	remake(t, 0, db, "c", layouts[0].key)

	for round := range 8 {
		var (
			remade atomic.Bool
			mu     sync.Mutex
			acked  []string
		)

		ctx, cancel := context.WithTimeout(t.Context(), opLimit)
		done := make(chan error, 1)

		go func() {
			for i := 0; ; i++ {
				after, id := remade.Load(), fmt.Sprint("w", round, " ", i)

				_, err := there.InsertOne(ctx, bson.D{{"_id", id}, {"k", i}, {"u", -i}})
				if ctx.Err() != nil {
					done <- nil
					return
				}

				// While it is dropped and remade the write may be refused, later not.
				if err != nil && (after || code(err) != 117 && code(err) != 361) {
					done <- fmt.Errorf("round %d, insert %d: %w", round, i, err)
					return
				}

				if err == nil && after {
					mu.Lock()
					acked = append(acked, id)
					mu.Unlock()
				}
			}
		}()

		layout := layouts[(round+1)%len(layouts)]
		remakeUnder(t, db, layout.key)
		remade.Store(true)

		eventually(t, 20*time.Second, "enough writes", func() error {
			mu.Lock()
			defer mu.Unlock()

			if len(acked) < 50 && len(done) == 0 {
				return errors.New("not yet")
			}

			return nil
		})
		cancel()
		require.NoError(t, <-done)

		for _, id := range acked {
			require.Equal(t, int64(1), count(t, router(t, 0).Database(db).Collection("c"), bson.D{{"_id", id}}), "%s, %s", id, layout.name)
		}

		n := 0
		for _, list := range onShards(t, db, "c") {
			n += len(list)
		}

		require.Equal(t, int64(n), count(t, there, bson.D{}), "what is on the shards is what the router shows")

		if layout.key != nil && layout.key[0].Value == "hashed" {
			require.Len(t, checkPlacementOn(t, db, "c", layout.key[0].Key, shardNames()...), n)
		}
	}
}

// remakeUnder drops and remakes while others write: they may have made the collection by then, which is then not empty.
func remakeUnder(t testing.TB, db string, key bson.D) {
	t.Helper()

	for range 20 {
		d := router(t, 0).Database(db)
		require.NoError(t, d.Collection("c").Drop(opContext(t, opLimit)))

		var err error
		if key == nil {
			err = d.CreateCollection(opContext(t, opLimit), "c")
		} else {
			err = router(t, 0).Database("admin").
				RunCommand(opContext(t, opLimit), bson.D{{"shardCollection", db + ".c"}, {"key", key}}).Err()
		}

		switch code(err) {
		case 0:
			return
		case 72: // not empty by then, and without an index on the key
		default:
			require.NoError(t, err)
		}
	}

	t.Fatal("the writers never let the collection be made")
}

// All shards have a collection's indexes with the same collations, the simple one among them.
func TestIndexesOfACollatedCollection(t *testing.T) {
	db := newDB(t)
	d := router(t, 0).Database(db)
	en, simple := bson.D{{"locale", "en"}, {"strength", 2}}, bson.D{{"locale", "simple"}}

	require.NoError(t, d.RunCommand(opContext(t, opLimit), bson.D{{"create", "c"}, {"collation", en}}).Err())
	require.NoError(t, d.RunCommand(opContext(t, opLimit), bson.D{{"createIndexes", "c"}, {"indexes", bson.A{
		bson.D{{"key", bson.D{{"a", 1}}}, {"name", "own"}},
		bson.D{{"key", bson.D{{"a", 1}}}, {"name", "simple"}, {"collation", simple}},
		bson.D{{"key", bson.D{{"b", "text"}}}, {"name", "text"}, {"collation", simple}},
	}}}).Err())
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}}, bson.E{Key: "collation", Value: simple})

	list := func(i int) map[string]string {
		cur, err := shard(t, i).Database(db).Collection("c").Indexes().List(opContext(t, opLimit))
		found := map[string]string{}

		for _, x := range all(t, cur, err) {
			found[x.Lookup("name").StringValue()] = x.Lookup("collation").String()
		}

		return found
	}

	require.Len(t, list(0), 5)

	for i := 1; i < shardCount; i++ {
		require.Equal(t, list(0), list(i), "shard %d", i)
	}
}
