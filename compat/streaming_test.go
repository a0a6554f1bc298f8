package compat

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A monitor's hello waits, and keeps answering without being asked again.
func TestStreamingHello(t *testing.T) {
	c := dialRaw(t, 0)
	version := ok(t, c.run(bson.D{{"hello", 1}, {"$db", "admin"}})).Lookup("topologyVersion").Document()

	const wait = 400 * time.Millisecond

	begin := time.Now()
	c.write(c.msg(flagExhaustAllowed, c.body(bson.D{
		{"hello", 1}, {"topologyVersion", version}, {"maxAwaitTimeMS", wait.Milliseconds()}, {"$db", "admin"},
	})))

	to := c.last

	for i := range 3 {
		m, err := c.read()
		require.NoError(t, err)
		require.Equal(t, to, m.To, "reply %d answers the one before", i)
		require.Equal(t, uint32(flagMoreToCome), m.Flags, "reply %d", i)
		require.GreaterOrEqual(t, time.Since(begin), time.Duration(i+1)*wait-50*time.Millisecond)
		checkHello(t, "hello", m.Body)
		require.Equal(t, version, m.Body.Lookup("topologyVersion").Document())

		to = m.ID
	}

	// Another connection is served meanwhile.
	ok(t, dialRaw(t, 0).run(bson.D{{"ping", 1}, {"$db", "admin"}}))
}

func TestAwaitableHelloWithoutExhaust(t *testing.T) {
	c := dialRaw(t, 1)
	version := ok(t, c.run(bson.D{{"hello", 1}, {"$db", "admin"}})).Lookup("topologyVersion").Document()
	wait := bson.E{Key: "maxAwaitTimeMS", Value: int64(300)}
	admin := bson.E{Key: "$db", Value: "admin"}

	begin := time.Now()
	c.write(c.msg(0, c.body(bson.D{{"hello", 1}, {"topologyVersion", version}, wait, admin})))
	require.Equal(t, uint32(0), c.must().Flags)
	require.GreaterOrEqual(t, time.Since(begin), 250*time.Millisecond)

	// A version of another process is news, and is told at once.
	begin = time.Now()
	other := bson.D{{"processId", bson.NewObjectID()}, {"counter", int64(0)}}
	ok(t, c.run(bson.D{{"hello", 1}, {"topologyVersion", other}, {"maxAwaitTimeMS", int64(60000)}, admin}))
	require.Less(t, time.Since(begin), 15*time.Second)

	for _, bad := range []struct {
		doc  bson.D
		code int32
	}{
		{bson.D{{"hello", 1}, {"topologyVersion", version}, admin}, 51760},
		{bson.D{{"hello", 1}, wait, admin}, 51760},
		{bson.D{{"hello", 1}, {"topologyVersion", version}, {"maxAwaitTimeMS", int64(-1)}, admin}, 51759},
		{bson.D{{"hello", 1}, {"topologyVersion", bson.D{{"processId", bson.NewObjectID()}, {"counter", int64(-1)}}}, wait, admin}, 51758},
	} {
		reply := c.run(bad.doc)
		require.Equal(t, bad.code, reply.Lookup("code").Int32(), "%v: %s", bad.doc, reply)
	}
}

// getMore with exhaustAllowed: one reply without moreToCome, and nothing left over for other requests (case A5).
func TestExhaustIsNotPassedOn(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)

	var docs []any
	for i := range 12 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}

	for _, coll := range []string{"c", "unsharded"} {
		ok(t, c.run(bson.D{{"insert", coll}, {"$db", db}}, sequence{"documents", docs}))

		reply := ok(t, c.run(bson.D{{"find", coll}, {"batchSize", 2}, {"$db", db}}))
		seen, id := len(batch(t, reply, "firstBatch")), reply.Lookup("cursor", "id").Int64()

		for id != 0 {
			c.write(c.msg(flagExhaustAllowed, c.body(bson.D{{"getMore", id}, {"collection", coll}, {"batchSize", 2}, {"$db", db}})))
			m := c.must()
			require.Equal(t, uint32(0), m.Flags&flagMoreToCome)

			seen, id = seen+len(batch(t, m.Body, "nextBatch")), m.Body.Lookup("cursor", "id").Int64()

			require.Equal(t, int32(12), ok(t, c.run(bson.D{{"count", coll}, {"$db", db}})).Lookup("n").Int32())
		}

		require.Equal(t, 12, seen)
	}
}

// batch returns a cursor reply's documents.
func batch(t testing.TB, reply bson.Raw, name string) []bson.RawValue {
	t.Helper()

	values, err := reply.Lookup("cursor", name).Array().Values()
	require.NoError(t, err, "%s", reply)

	return values
}
