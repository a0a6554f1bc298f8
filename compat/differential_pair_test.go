package compat

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/pg"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// shape is a way in which a collection is spread.
type shape struct {
	name string
	key  bson.D // nil: unsharded
	// Chunks of a ranged key: cuts[i] is where the chunk of shard i+1 begins, around and around.
	cuts []bson.D
}

// shapes are the collections that every case runs on.
var shapes = []*shape{
	{name: "unsharded"},
	{name: "id_hashed", key: bson.D{{"_id", "hashed"}}},
	{name: "field_hashed", key: bson.D{{"k", "hashed"}}},
	{name: "dotted_hashed", key: bson.D{{"d.e", "hashed"}}},
	{name: "ranged", key: bson.D{{"r", 1}}, cuts: []bson.D{{{"r", 4}}, {{"r", 9}}, {{"r", "m"}}}},
	{name: "compound", key: bson.D{{"a", 1}, {"b", "hashed"}}, cuts: []bson.D{
		{{"a", 2}, {"b", bson.MinKey{}}}, {{"a", 2}, {"b", int64(0)}}, {{"a", 4}, {"b", bson.MinKey{}}},
	}},
}

// pair is shardgate and the judge, each with one database that holds a collection for every shape.
type pair struct {
	db      string
	routers [2]*rawConn
	judge   *rawConn
	turn    int
	now     map[string][]bson.Raw // what a shape's collection holds
	full    map[string][]string   // what dataset looks like in a shape's collection
	dirty   map[string]bool       // shapes whose documents are no longer those of dataset
	indexed map[string]bool       // shapes whose indexes may be more or less than that of the key
	moving  bool                  // movements exclude changes of indexes
	tally   *tally
}

// newPair starts a judge and makes the collections.
func newPair(t *testing.T) *pair {
	t.Helper()

	oneEngine(t)

	p := &pair{db: newDB(t), judge: dialJudge(t), tally: &tally{}}
	p = p.again(t)

	for _, s := range shapes {
		if s.key == nil {
			ok(t, p.routers[0].run(bson.D{{"create", s.name}, {"$db", p.db}}))
		} else {
			p.shard(t, s)
		}

		ok(t, p.judge.run(bson.D{{"create", s.name}, {"$db", p.db}}))
		p.keyIndex(t, s)
		p.fill(t, s)
	}

	return p
}

// oneEngine makes the shards use the older of mongod's engines for all, as the judge does: the newer one takes only whole pipelines,
// numbers errors in its own way, and has faults of its own (MinKey as {"": MinKey} after a $group over an index).
func oneEngine(t *testing.T) {
	t.Helper()

	set := func(on bool) {
		for i := range shardCount {
			cmd := bson.D{{"setParameter", 1}, {engineParameter, on}}
			require.NoError(t, shard(t, i).Database("admin").RunCommand(context.Background(), cmd).Err())
		}
	}

	set(true)
	t.Cleanup(func() { set(false) })
}

const engineParameter = "internalQueryForceClassicEngine"

// again returns the same pair over connections of its own, for a test that runs beside others.
func (p *pair) again(t *testing.T) *pair {
	t.Helper()

	q := &pair{db: p.db, now: map[string][]bson.Raw{}, full: map[string][]string{}, dirty: map[string]bool{}, indexed: map[string]bool{}, moving: p.moving, tally: p.tally}

	for i := range q.routers {
		q.routers[i] = dialRaw(t, i)
	}

	conn, err := net.DialTimeout("tcp", p.judge.RemoteAddr().String(), rawLimit)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	q.judge = &rawConn{Conn: conn, t: t, last: 1000}

	return q
}

// dialJudge starts a replica set of one mongod that ends with the test and opens a connection to it.
func dialJudge(t *testing.T) *rawConn {
	t.Helper()

	addr := startMongod(t, "--replSet", "judge", "--setParameter", engineParameter+"=true")

	var c *rawConn

	eventually(t, time.Minute, "the judge listens", func() error {
		conn, err := net.DialTimeout("tcp", addr, rawLimit)
		if err == nil {
			c = &rawConn{Conn: conn, t: t, last: 1000}
			t.Cleanup(func() { _ = conn.Close() })
		}

		return err
	})

	ok(t, c.run(bson.D{{"replSetInitiate", bson.D{
		{"_id", "judge"}, {"members", bson.A{bson.D{{"_id", 0}, {"host", addr}}}},
	}}, {"$db", "admin"}}))
	eventually(t, time.Minute, "the judge is primary", func() error {
		if r := c.run(bson.D{{"hello", 1}, {"$db", "admin"}}); !r.Lookup("isWritablePrimary").Boolean() {
			return fmt.Errorf("%s", r)
		}

		return nil
	})

	return c
}

// keyIndex gives the judge the index that shardCollection makes.
func (p *pair) keyIndex(t testing.TB, s *shape) {
	t.Helper()

	if s.key == nil {
		return
	}

	ok(t, p.judge.run(bson.D{{"createIndexes", s.name}, {"indexes", bson.A{bson.D{{"key", s.key}, {"name", keyIndexName(s)}}}}, {"$db", p.db}}))
}

// keyIndexName is the name that shardCollection gives to the index on the key.
func keyIndexName(s *shape) string {
	var parts []string
	for _, e := range s.key {
		parts = append(parts, fmt.Sprint(e.Key, "_", e.Value))
	}

	return strings.Join(parts, "_")
}

// shard shards a collection of a shape, a ranged one over all shards.
func (p *pair) shard(t *testing.T, s *shape) {
	t.Helper()

	ns := p.db + "." + s.name
	if s.cuts == nil {
		shardCollection(t, 0, ns, s.key)
		return
	}

	// No command of shardgate's spreads a ranged key yet. A hashed one brings the collection to all shards; then the catalog
	// gets the key and the chunks that are wanted.
	shardCollection(t, 0, ns, bson.D{{"spread", "hashed"}})
	ok(t, p.routers[0].run(bson.D{{"createIndexes", s.name}, {"indexes", bson.A{bson.D{{"key", s.key}, {"name", keyIndexName(s)}}}}, {"$db", p.db}}))
	rekey(t, ns, s)

	for i := range shardCount {
		require.NoError(t, shard(t, i).Database(p.db).Collection(s.name).Indexes().DropOne(t.Context(), "spread_hashed"))
	}
}

// rekey gives a collection another key and chunks, and waits until all routers act by them.
func rekey(t *testing.T, ns string, s *shape) {
	t.Helper()

	ctx := opContext(t, opLimit)
	store, err := pg.New(ctx, pg.Options{DSN: shared.cluster.CatalogDSN()})
	require.NoError(t, err)

	defer store.Close()

	delta, err := store.Load(ctx, 0)
	require.NoError(t, err)

	at := slices.IndexFunc(delta.Collections, func(c catalog.CollectionDelta) bool { return c.NS == ns })
	require.GreaterOrEqual(t, at, 0)

	coll := delta.Collections[at].CollectionChunks
	coll.Key = raw(t, s.key)
	coll.Chunks = nil

	pattern, err := shardkey.ParsePattern(coll.Key)
	require.NoError(t, err)

	names, lower := shardNames(), pattern.MinBound()
	for i := range len(s.cuts) + 1 {
		upper := pattern.MaxBound()
		if i < len(s.cuts) {
			upper = raw(t, s.cuts[i])
		}

		coll.Chunks = append(coll.Chunks, catalog.Chunk{
			ID: bson.NewObjectID(), Min: lower, Max: upper, Shard: names[i%len(names)], LastMod: catalog.Timestamp(1<<32 | i), OnShardSince: coll.Timestamp,
			History: []catalog.Owner{{Shard: names[i%len(names)], ValidAfter: coll.Timestamp}},
		})
		lower = upper
	}

	require.NoError(t, shardkey.FillBounds(pattern, coll.Chunks))

	_, err = shardkey.NewTable(coll)
	require.NoError(t, err)

	v, err := store.Apply(ctx, catalog.Change{Put: []catalog.CollectionChunks{coll}})
	require.NoError(t, err)

	eventually(t, time.Minute, "all routers act by the new key", func() error { return acknowledged(ctx, store, v) })
}

// acknowledged reports whether all routers act by a version of the catalog.
func acknowledged(ctx context.Context, store *pg.Store, v catalog.Version) error {
	routers, err := store.Routers(ctx)
	if err != nil {
		return err
	}

	for _, r := range routers {
		if r.Ack.Version < v {
			return fmt.Errorf("%s acts by version %d, not %d", r.Name, r.Ack.Version, v)
		}
	}

	return nil
}

// refill gives a shape's collections on both sides the documents of dataset again, and only the index of the key.
func (p *pair) refill(t testing.TB, s *shape) {
	t.Helper()

	if p.indexed[s.name] {
		for _, c := range []*rawConn{p.routers[0], p.judge} {
			ok(t, c.run(bson.D{{"dropIndexes", s.name}, {"index", "*"}, {"$db", p.db}}))
		}

		p.keyIndex(t, s)
	}

	if p.dirty[s.name] {
		p.fill(t, s)
	}

	if p.dirty[s.name] || p.full[s.name] == nil {
		p.now[s.name] = p.contents(t, p.judge, s)
		p.full[s.name] = texts(p.now[s.name], false)
	}

	p.dirty[s.name], p.indexed[s.name] = false, false
}

// quick makes a write not wait for the journal; another one that does follows.
var quick = bson.E{Key: "writeConcern", Value: bson.D{{"w", 1}, {"j", false}}}

// fill gives a shape's collections the documents of dataset.
func (p *pair) fill(t testing.TB, s *shape) {
	t.Helper()

	for _, c := range []*rawConn{p.routers[0], p.judge} {
		r := ok(t, c.run(bson.D{{"delete", s.name}, {"deletes", bson.A{bson.D{{"q", bson.D{}}, {"limit", 0}}}}, quick, {"$db", p.db}}))
		require.Error(t, r.Lookup("writeErrors").Validate(), "%s", r)

		r = ok(t, c.run(bson.D{{"insert", s.name}, {"documents", dataset}, {"$db", p.db}}))
		require.Error(t, r.Lookup("writeErrors").Validate(), "%s", r)
	}
}

// contents reads a shape's whole collection, ordered by _id.
func (p *pair) contents(t testing.TB, c *rawConn, s *shape) []bson.Raw {
	t.Helper()

	reply := ok(t, c.run(bson.D{{"find", s.name}, {"sort", bson.D{{"_id", 1}}}, {"batchSize", 10000}, {"$db", p.db}}))
	require.Zero(t, reply.Lookup("cursor", "id").AsInt64())

	docs, err := batchOf(reply)
	require.NoError(t, err)

	return docs
}

// batchOf returns the documents of a cursor's reply.
func batchOf(reply bson.Raw) ([]bson.Raw, error) {
	batch, err := reply.LookupErr("cursor", "firstBatch")
	if err != nil {
		batch, err = reply.LookupErr("cursor", "nextBatch")
	}

	if err != nil {
		return nil, err
	}

	values, err := batch.Array().Values()
	if err != nil {
		return nil, err
	}

	docs := make([]bson.Raw, len(values))
	for i, v := range values {
		docs[i] = v.Document()
	}

	return docs, nil
}
