package compat

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/pg"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// movements are rows of movements in the catalog that no router works on: a test's own.
type movements struct {
	t     testing.TB
	store *pg.Store
	locks []catalog.Lock
	rows  []catalog.Movement
}

// newMovements opens the catalog. What is put there goes with the test.
func newMovements(t testing.TB) *movements {
	t.Helper()

	store, err := pg.New(opContext(t, opLimit), pg.Options{DSN: shared.cluster.CatalogDSN()})
	require.NoError(t, err)

	m := &movements{t: t, store: store}

	t.Cleanup(func() {
		m.end(context.Background())
		store.Close()
	})

	return m
}

// collection reads a collection's row and chunks.
func (m *movements) collection(ns string) catalog.CollectionChunks {
	m.t.Helper()

	delta, err := m.store.Load(opContext(m.t, opLimit), 0)
	require.NoError(m.t, err)

	at := slices.IndexFunc(delta.Collections, func(c catalog.CollectionDelta) bool { return c.NS == ns })
	require.GreaterOrEqual(m.t, at, 0)

	return delta.Collections[at].CollectionChunks
}

// left has every chunk on the shard after its own, too: as an incoming copy, or left behind.
func (m *movements) left(ns string) {
	m.t.Helper()

	ctx := opContext(m.t, opLimit)
	c := m.collection(ns)
	routers, err := m.store.Routers(ctx)
	require.NoError(m.t, err)

	lock, err := m.store.Acquire(ctx, ns, routers[0].Incarnation, "a test's movements")
	require.NoError(m.t, err)

	m.locks = append(m.locks, lock)

	var rows []catalog.Movement

	for i, k := range c.Chunks {
		row := catalog.Movement{
			ID: uuid.New(), NS: ns, Collection: c.UUID, From: k.Shard, To: after(m.t, k.Shard), State: catalog.MovementCopying,
			Range: &catalog.Range{Min: k.Min, Max: k.Max, MinKey: k.MinKey, MaxKey: k.MaxKey}, Since: time.Now().Add(time.Hour), // none to look after
		}
		if i%2 == 1 {
			row.From, row.To, row.State = row.To, row.From, catalog.MovementLeaving
		}

		rows = append(rows, row)
	}

	v, err := m.store.Apply(ctx, catalog.Change{Movements: rows})
	require.NoError(m.t, err)

	m.rows = append(m.rows, rows...)

	eventually(m.t, time.Minute, "all routers know the movements", func() error { return acknowledged(ctx, m.store, v) })
}

// after is the shard behind one.
func after(t testing.TB, name string) string {
	t.Helper()
	return shardNames()[(shardIndex(t, name)+1)%shardCount]
}

// end takes the movements away and waits until all routers act by that.
func (m *movements) end(ctx context.Context) {
	var gone catalog.Change
	for i := range m.rows {
		gone.DropMovements = append(gone.DropMovements, m.rows[i].ID)
	}

	m.rows = nil
	v, err := m.store.Apply(ctx, gone)
	require.NoError(m.t, err)

	for _, l := range m.locks {
		require.NoError(m.t, m.store.Release(ctx, l))
	}

	m.locks = nil
	eventually(m.t, time.Minute, "no router knows the movements any more", func() error { return acknowledged(ctx, m.store, v) })
}

// plant puts copies of documents on the shards that left speaks of.
func (m *movements) plant(ns string, docs []bson.Raw) {
	m.t.Helper()

	c := m.collection(ns)
	table, err := shardkey.NewTable(c)
	require.NoError(m.t, err)

	db, coll, _ := strings.Cut(ns, ".")

	for _, d := range docs {
		key, err := table.Pattern().AppendKey(nil, d)
		require.NoError(m.t, err)

		to := after(m.t, table.Chunk(table.Find(key)).Shard)
		_, err = shard(m.t, shardIndex(m.t, to)).Database(db).Collection(coll).InsertOne(opContext(m.t, opLimit), d)
		require.NoError(m.t, err)
	}
}

// planted reads what there is of the copies on the shards, by _id.
func planted(t testing.TB, ns string) map[string]string {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), opLimit) // the test may be over
	defer cancel()

	db, coll, _ := strings.Cut(ns, ".")
	found := map[string]string{}

	for i := range shardCount {
		cur, err := shard(t, i).Database(db).Collection(coll).Find(ctx, bson.D{{"copy", true}})
		require.NoError(t, err)

		var docs []bson.Raw
		require.NoError(t, cur.All(ctx, &docs))

		for _, d := range docs {
			found[d.Lookup("_id").String()] = d.String()
		}
	}

	return found
}

// copied marks documents as copies.
func copied(docs []bson.Raw) []bson.Raw {
	var list []bson.Raw

	for _, d := range docs {
		out := slices.Concat(d[:len(d)-1], []byte{8}, []byte("copy\x00\x01\x00"))
		out[0], out[1] = byte(len(out)), byte(len(out)>>8)
		list = append(list, out)
	}

	return list
}

// withCopies makes a pair of which every sharded collection has a copy of each document on a
// shard that does not own it. What all of them must be at the end is checked.
func withCopies(t *testing.T) *pair {
	t.Helper()

	p := newPair(t)
	p.moving = true

	moving := newMovements(t)

	for _, s := range shapes[1:] {
		ns := p.db + "." + s.name
		p.refill(t, s)

		copies := copied(p.now[s.name])
		moving.plant(ns, copies)
		moving.left(ns)

		var before []string
		for _, d := range copies {
			before = append(before, d.String())
		}

		t.Cleanup(func() {
			// An insert may have had to clear its way.
			left := planted(t, ns)
			for _, d := range left {
				require.Contains(t, before, d, "%s: a write has met a copy", s.name)
			}

			require.GreaterOrEqual(t, len(left), len(copies)*3/4, "%s: of %d copies", s.name, len(copies))
		})
	}

	return p
}

// TestUnownedCases: where every document has a copy on a shard that does not own it, all
// commands do what they do without.
func TestUnownedCases(t *testing.T) {
	p := withCopies(t)
	files, err := filepath.Glob("testdata/differential/*.txt")
	require.NoError(t, err)

	for _, s := range shapes[1:] {
		if os.Getenv("COMPAT_CHAOS") == "" && s.name != "id_hashed" && s.name != "ranged" && s.name != "compound" {
			continue // random calls have these, too
		}

		t.Run(s.name, func(t *testing.T) {
			p := p.again(t)

			for _, path := range files {
				if filepath.Base(path) == "indexes.txt" { // DDL and movements exclude each other
					continue
				}

				for _, l := range caseLines(t, path) {
					if strings.Contains(l.text, `"w": "nope"`) { // what does not pass through names the shard
						continue
					}

					if !l.goes {
						p.refill(t, s)
					}

					if c := p.run(t, s, parse(t, l.text), l.loose); c.diff != "" {
						t.Errorf("%s on %s: %s\n%s", l.where, s.name, l.text, c.diff)
					}
				}
			}
		})
	}

	t.Log(p.tally)
}

// TestUnownedRandom is the same with random calls.
func TestUnownedRandom(t *testing.T) { withCopies(t).random(t, 600) }

// lettered makes a collection with a collation of its own, spread by the bytes of strings.
func lettered(t *testing.T, collation *options.Collation) (coll *mongo.Collection, ns string) {
	t.Helper()

	db := router(t, 0).Database(newDB(t))
	ns = db.Name() + ".c"

	require.NoError(t, db.CreateCollection(t.Context(), "c", options.CreateCollection().SetCollation(collation)))
	shardCollection(t, 0, ns, bson.D{{"spread", "hashed"}}, bson.E{Key: "collation", Value: bson.D{{"locale", "simple"}}})

	coll = db.Collection("c")
	_, err := coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{"s", 1}}, Options: options.Index().SetCollation(&options.Collation{Locale: "simple"}),
	})
	require.NoError(t, err)
	rekey(t, ns, &shape{key: bson.D{{"s", 1}}, cuts: []bson.D{{{"s", "B"}}, {{"s", "a"}}, {{"s", "b"}}, {{"s", "z"}}}})

	return coll, ns
}

// TestUnownedCollations: bounds that are strings tell copies apart under every collation, of
// the command or of the collection; and once the movements are over nothing is told apart.
func TestUnownedCollations(t *testing.T) {
	coll, ns := lettered(t, &options.Collation{Locale: "en", Strength: 2})
	words := []any{"", "A", "B", "Z", "a", "b", "á", "Á", "ab", "AB", "z", "Zoë", "zoe", "\x00", "b\x00", "é", "e\u0301", nil, 5, bson.D{{"x", "A"}}}

	var docs, raws []bson.Raw
	for i, w := range words {
		docs = append(docs, raw(t, bson.D{{"_id", i}, {"s", w}, {"n", 1}}))
	}

	_, err := coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)

	raws = copied(docs)
	moving := newMovements(t)
	moving.plant(ns, raws)
	moving.left(ns)

	times := 0

	for _, c := range []*options.Collation{nil, {Locale: "simple"}, {Locale: "en", Strength: 1}, {Locale: "sv", Strength: 2}, {Locale: "de", Strength: 3}} {
		n, err := coll.CountDocuments(t.Context(), bson.D{}, options.Count().SetCollation(c))
		require.NoError(t, err)
		require.EqualValues(t, len(words), n)

		cur, err := coll.Find(t.Context(), bson.D{{"n", bson.D{{"$gt", 0}}}}, options.Find().SetCollation(c))
		found := all(t, cur, err)
		require.Len(t, found, len(words))

		for _, d := range found {
			require.Error(t, d.Lookup("copy").Validate(), "%s", d)
		}

		cur, err = coll.Aggregate(t.Context(), bson.A{bson.D{{"$group", bson.D{{"_id", "$n"}, {"count", bson.D{{"$sum", 1}}}}}}}, options.Aggregate().SetCollation(c))
		groups := all(t, cur, err)

		var total int64
		for _, g := range groups {
			total += g.Lookup("count").AsInt64()
		}

		require.EqualValues(t, len(words), total, "%v", groups)

		res, err := coll.UpdateMany(t.Context(), bson.D{{"s", bson.D{{"$in", words}}}}, bson.D{{"$inc", bson.D{{"n", 1}}}}, options.UpdateMany().SetCollation(c))
		require.NoError(t, err)
		require.EqualValues(t, len(words), res.ModifiedCount)

		times++
	}

	n, err := coll.EstimatedDocumentCount(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, len(words), n)

	var values []any
	require.NoError(t, coll.Distinct(t.Context(), "n", bson.D{}).Decode(&values))
	require.Equal(t, []any{int32(1 + times)}, values)

	explained := func() string {
		cmd := bson.D{{"explain", bson.D{{"find", "c"}, {"filter", bson.D{{"n", 1}}}}}, {"verbosity", "queryPlanner"}}
		raw, err := coll.Database().RunCommand(t.Context(), cmd).Raw()
		require.NoError(t, err)

		return raw.String()
	}
	require.Contains(t, explained(), "$expr")

	require.Len(t, planted(t, ns), len(words))
	moving.end(t.Context())
	require.NotContains(t, explained(), "$expr")

	n, err = coll.EstimatedDocumentCount(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2*len(words), n, "the copies are there: something has told them apart")
}

// TestUnownedIsNotInTheWay: an insert or upsert that meets a copy takes it away; one that
// meets a document which its shard owns fails.
func TestUnownedIsNotInTheWay(t *testing.T) {
	coll, ns := lettered(t, &options.Collation{Locale: "en", Strength: 2})
	// "a…" lies on shard 2, "b…" on the next one, where copies of it are planted.
	var docs []bson.Raw
	for i := range 40 {
		docs = append(docs, raw(t, bson.D{{"_id", fmt.Sprint("Copy", i)}, {"s", fmt.Sprint("a", i)}, {"copy", true}}))
	}

	moving := newMovements(t)
	moving.plant(ns, docs)
	moving.left(ns)

	owner := shardNames()[3%shardCount]
	next := 0
	copyID := func() string { next++; return fmt.Sprint("copy", next-1) } // equal by the collation
	left := func() int { return len(planted(t, ns)) }
	doc := func(id string) bson.D { return bson.D{{"_id", id}, {"s", "b" + id}, {"new", true}} }
	require.Equal(t, 40, left())

	_, err := coll.InsertOne(t.Context(), doc(copyID()))
	require.NoError(t, err)
	require.Equal(t, 39, left())

	for _, ordered := range []bool{true, false} {
		list := []any{doc(copyID()), doc(copyID()), doc(fmt.Sprint("other", ordered)), doc(copyID())}
		res, err := coll.InsertMany(t.Context(), list, options.InsertMany().SetOrdered(ordered))
		require.NoError(t, err)
		require.Len(t, res.InsertedIDs, 4)
	}

	require.Equal(t, 33, left())

	// A true twin: what is behind it in an ordered batch does not run, in another one it does.
	for _, ordered := range []bool{true, false} {
		first := copyID()
		_, err := coll.InsertMany(t.Context(), []any{doc(first), doc("COPY0"), doc(fmt.Sprint("last", ordered))}, options.InsertMany().SetOrdered(ordered))
		require.Equal(t, 11000, code(err))
		require.EqualValues(t, 1, count(t, coll, bson.D{{"_id", first}, {"new", true}}))

		want := int64(1)
		if ordered {
			want = 0
		}

		require.Equal(t, want, count(t, coll, bson.D{{"_id", fmt.Sprint("last", ordered)}}))
	}

	require.Equal(t, 31, left())

	set := bson.D{{"$set", bson.D{{"new", true}}}}
	id := copyID()
	up, err := coll.UpdateOne(t.Context(), bson.D{{"_id", id}, {"s", "b" + id}}, set, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.EqualValues(t, 1, up.UpsertedCount)

	id = copyID()
	require.ErrorIs(t, coll.FindOneAndUpdate(t.Context(), bson.D{{"_id", id}, {"s", "b" + id}}, set, options.FindOneAndUpdate().SetUpsert(true)).Err(), mongo.ErrNoDocuments)

	id = copyID() // the whole key is not in the filter
	up, err = coll.UpdateOne(t.Context(), bson.D{{"_id", id}}, bson.D{{"$setOnInsert", bson.D{{"s", "b" + id}}}, {"$set", bson.D{{"new", true}}}}, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.EqualValues(t, 1, up.UpsertedCount)
	require.Equal(t, 28, left())

	// A transaction is run again by its driver.
	session, err := router(t, 0).StartSession()
	require.NoError(t, err)

	defer session.EndSession(t.Context())

	tries := 0
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		tries++
		return coll.InsertOne(ctx, doc("copy30"))
	})
	require.NoError(t, err)
	require.Equal(t, 2, tries)
	require.Equal(t, 27, left())

	n, err := shard(t, shardIndex(t, owner)).Database(coll.Database().Name()).Collection("c").CountDocuments(t.Context(), bson.D{{"new", true}})
	require.NoError(t, err)
	require.Equal(t, n, count(t, coll, bson.D{{"new", true}}), "all of them belong to one shard")
	require.EqualValues(t, n, count(t, coll, bson.D{}))
}
