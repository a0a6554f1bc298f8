package compat

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// hello's fields and their types (MONGOSH.md §1.3): drivers refuse or crash on others.
var helloTypes = map[string]bson.Type{ // the order is the router's affair
	"msg": bson.TypeString, "topologyVersion": bson.TypeEmbeddedDocument, "maxBsonObjectSize": bson.TypeInt32,
	"maxMessageSizeBytes": bson.TypeInt32, "maxWriteBatchSize": bson.TypeInt32, "localTime": bson.TypeDateTime,
	"logicalSessionTimeoutMinutes": bson.TypeInt32, "minWireVersion": bson.TypeInt32, "maxWireVersion": bson.TypeInt32,
	"ok": bson.TypeDouble,
}

// checkHello checks the reply of any spelling.
func checkHello(t *testing.T, name string, doc bson.Raw) {
	t.Helper()
	ok(t, doc)

	for field, kind := range helloTypes {
		require.Equal(t, kind, doc.Lookup(field).Type, "%s of %s", field, doc)
	}

	primary, other := "ismaster", "isWritablePrimary"
	if name == "hello" {
		primary, other = other, primary
	}

	require.True(t, doc.Lookup(primary).Boolean(), "%s", doc)
	require.Equal(t, bson.TypeObjectID, doc.Lookup("topologyVersion", "processId").Type)
	require.Equal(t, bson.TypeInt64, doc.Lookup("topologyVersion", "counter").Type)
	require.Contains(t, []bson.Type{bson.TypeInt32, bson.TypeInt64}, doc.Lookup("connectionId").Type)
	require.Equal(t, "isdbgrid", doc.Lookup("msg").StringValue())
	require.Equal(t, int32(17), doc.Lookup("maxWireVersion").Int32())
	require.Equal(t, int32(0), doc.Lookup("minWireVersion").Int32())
	require.Equal(t, int32(16777216), doc.Lookup("maxBsonObjectSize").Int32())
	require.Equal(t, int32(48000000), doc.Lookup("maxMessageSizeBytes").Int32())
	require.Equal(t, int32(100000), doc.Lookup("maxWriteBatchSize").Int32())
	require.Equal(t, int32(30), doc.Lookup("logicalSessionTimeoutMinutes").Int32())

	for _, never := range []string{other, "setName", "hosts", "me", "primary", "secondary", "readOnly", "isreplicaset", "serviceId"} {
		_, err := doc.LookupErr(never)
		require.Error(t, err, "%s of %s", never, doc)
	}
}

func TestHelloInAllSpellings(t *testing.T) {
	for _, name := range []string{"hello", "isMaster", "ismaster"} {
		for _, db := range []string{"admin", "anything"} {
			t.Run(name+" on "+db, func(t *testing.T) {
				c := dialRaw(t, 0)
				plain := bson.D{{name, 1}, {"$db", db}}
				rich := bson.D{
					{name, 1},
					{"backpressure", "2"},
					{"helloOk", true},
					{"client", bson.D{{"driver", bson.D{{"name", "x"}, {"version", "1"}}}}},
					{"compression", bson.A{"none"}},
					{"unknownField", bson.A{1}},
					{"loadBalanced", false},
				}

				checkHello(t, name, c.run(plain))

				reply := c.run(append(rich, bson.E{Key: "$db", Value: db}))
				checkHello(t, name, reply)
				require.True(t, reply.Lookup("helloOk").Boolean())

				c.write(c.query(db+".$cmd", bson.D{{name, 1}}))
				m := c.must()
				require.Equal(t, int32(opReply), m.Op)
				require.Equal(t, uint32(1), binary.LittleEndian.Uint32(m.payload[16:]), "one document")
				checkHello(t, name, m.Body)

				_, err := m.Body.LookupErr("helloOk")
				require.Error(t, err, "only who asks gets helloOk: %s", m.Body)

				c.write(c.query(db+".$cmd", rich))
				checkHello(t, name, c.must().Body)
			})
		}
	}
}

func TestOpQueryKnowsOnlyTheHandshake(t *testing.T) {
	c := dialRaw(t, 1)

	for _, name := range []string{"buildInfo", "buildinfo"} {
		c.write(c.query("admin.$cmd", bson.D{{name, 1}}))
		ok(t, c.must().Body)
	}

	for _, name := range []string{"ping", "find", "listDatabases", "getLastError"} {
		c.write(c.query("admin.$cmd", bson.D{{name, 1}}))
		m := c.must()
		require.Equal(t, int32(opReply), m.Op)
		refused(t, m.Body, 352, "UnsupportedOpQueryCommand")
	}

	// A query of a collection, as before 5.1, and OP_GET_MORE: an error reply with the flag QueryFailure.
	c.write(c.query("db.coll", bson.D{{"a", 1}}))
	require.Equal(t, uint32(2), c.must().Flags&2)

	c.write(c.frame(opGetMore, append([]byte{0, 0, 0, 0}, append([]byte("db.coll\x00"), make([]byte, 12)...)...), 0))

	m := c.must()
	require.Equal(t, uint32(2), m.Flags&2)
	require.Equal(t, int32(5739101), m.Body.Lookup("code").Int32(), "%s", m.Body)

	ok(t, c.run(bson.D{{"ping", 1}, {"$db", "admin"}}))

	insert := append([]byte{0, 0, 0, 0}, append([]byte("db.coll\x00"), raw(t, bson.D{{"a", 1}})...)...)
	c.write(c.frame(opInsert, insert, 0))
	c.closed("OP_INSERT")
}

// Case A1: some clients send the documents first.
func TestSequencesBeforeTheBody(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)
	send := func(first sequence, body bson.D) bson.Raw {
		c.write(c.msg(0, c.seq(first), c.body(append(body, bson.E{Key: "$db", Value: db}))))
		return ok(t, c.must().Body)
	}

	var docs []any
	for i := range 50 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}

	for _, coll := range []string{"c", "unsharded"} {
		reply := send(sequence{"documents", docs}, bson.D{{"insert", coll}})
		require.Equal(t, int32(50), reply.Lookup("n").Int32(), "%s", reply)

		reply = send(sequence{"updates", []any{
			bson.D{{"q", bson.D{{"k", 7}}}, {"u", bson.D{{"$set", bson.D{{"x", 1}}}}}},
			bson.D{{"q", bson.D{{"k", 8}}}, {"u", bson.D{{"$set", bson.D{{"x", 1}}}}}},
			bson.D{{"q", bson.D{}}, {"u", bson.D{{"$set", bson.D{{"y", 1}}}}}, {"multi", true}},
		}}, bson.D{{"update", coll}})
		require.Equal(t, int32(52), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int32(52), reply.Lookup("nModified").Int32(), "%s", reply)

		reply = send(sequence{"deletes", []any{
			bson.D{{"q", bson.D{{"k", 7}}}, {"limit", 1}}, bson.D{{"q", bson.D{{"k", bson.D{{"$gte", 40}}}}}, {"limit", 0}},
		}}, bson.D{{"delete", coll}})
		require.Equal(t, int32(11), reply.Lookup("n").Int32(), "%s", reply)
		require.Equal(t, int64(39), count(t, router(t, 1).Database(db).Collection(coll), bson.D{{"y", 1}}))
	}

	require.Len(t, checkPlacement(t, db, "c", "k", "_id"), 39)
}

func TestMoreToComeIsNotAnswered(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)

	for i := range 20 {
		c.write(c.msg(flagMoreToCome, c.body(bson.D{{"insert", "c"}, {"$db", db}, {"writeConcern", bson.D{{"w", 0}}}}),
			c.seq(sequence{"documents", []any{bson.D{{"_id", i}, {"k", i}}}})))
		c.write(c.msg(flagMoreToCome, c.body(bson.D{{"noSuchCommand", 1}, {"$db", db}})))
		c.write(c.msg(flagMoreToCome, c.body(bson.D{{"endSessions", bson.A{}}, {"$db", "admin"}, {"writeConcern", bson.D{{"w", 0}}}})))
	}

	reply := ok(t, c.run(bson.D{{"count", "c"}, {"$db", db}}))
	require.Equal(t, int32(20), reply.Lookup("n").Int32(), "the next reply answers the next request, after all that came before")
	c.silent(200 * time.Millisecond)
}

func TestChecksums(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)
	check := func(sections ...[]byte) bson.Raw {
		c.write(c.msg(flagChecksum, sections...))

		m := c.must()
		require.Equal(t, uint32(flagChecksum), m.Flags&flagChecksum, "the answer has a checksum too")

		head := make([]byte, headerSize, headerSize+len(m.payload))
		binary.LittleEndian.PutUint32(head, uint32(headerSize+len(m.payload)))
		binary.LittleEndian.PutUint32(head[4:], uint32(m.ID))
		binary.LittleEndian.PutUint32(head[8:], uint32(m.To))
		binary.LittleEndian.PutUint32(head[12:], uint32(m.Op))
		whole := append(head, m.payload[:len(m.payload)-4]...)
		require.Equal(t, crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli)), binary.LittleEndian.Uint32(m.Trailer))

		return ok(t, m.Body)
	}

	check(c.body(bson.D{{"ping", 1}, {"$db", "t"}}))

	// One that must be split over shards, and so encoded anew.
	var docs []any
	for i := range 30 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}

	reply := check(c.body(bson.D{{"insert", "c"}, {"$db", db}}), c.seq(sequence{"documents", docs}))
	require.Equal(t, int32(30), reply.Lookup("n").Int32())

	bad := c.msg(flagChecksum, c.body(bson.D{{"insert", "c"}, {"$db", db}}), c.seq(sequence{"documents", []any{bson.D{{"_id", 99}}}}))
	bad[len(bad)-1] ^= 0x10
	c.write(bad)
	c.closed("a wrong checksum")
	require.Equal(t, int64(30), count(t, router(t, 1).Database(db).Collection("c"), bson.D{}))
}

func TestBrokenMessagesCloseTheConnection(t *testing.T) {
	le := binary.LittleEndian
	ping := bson.D{{"ping", 1}, {"$db", "admin"}}

	for _, test := range []struct {
		name string
		make func(c *rawConn) []byte
	}{
		{"length 0", func(c *rawConn) []byte { b := c.msg(0, c.body(ping)); le.PutUint32(b, 0); return b }},
		{"length 15", func(c *rawConn) []byte { b := c.msg(0, c.body(ping)); le.PutUint32(b, 15); return b }},
		{"negative length", func(c *rawConn) []byte { b := c.msg(0, c.body(ping)); le.PutUint32(b, 1<<31|5); return b }},
		{"2 GiB", func(c *rawConn) []byte { b := c.msg(0, c.body(ping)); le.PutUint32(b, 1<<31-1); return b }},
		{"over 48 MB", func(c *rawConn) []byte { b := c.msg(0, c.body(ping)); le.PutUint32(b, 48000001); return b }},
		{"unknown opcode", func(c *rawConn) []byte { return c.frame(4711, c.msg(0, c.body(ping))[headerSize:], 0) }},
		{"unknown required flag", func(c *rawConn) []byte { return c.msg(4, c.body(ping)) }},
		{"compressed, not agreed on", func(c *rawConn) []byte {
			return c.frame(opCompressed, append(le.AppendUint32(nil, opMsg), 1, 0, 0, 0, 2, 1, 2, 3), 0)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dialRaw(t, 0)
			ok(t, c.run(ping))
			c.write(test.make(c))
			c.closed(test.name)
		})
	}

	// An unknown flag that is optional is none of our business.
	c := dialRaw(t, 0)
	c.write(c.msg(1<<20, c.body(ping)))
	ok(t, c.must().Body)
}

func TestErrorsLeaveTheConnectionUsable(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	c := dialRaw(t, 0)
	ok(t, c.run(bson.D{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", 1}, {"k", 1}}}}, {"$db", db}}))

	for _, test := range []struct {
		cmd  bson.D
		code int32
		name string
	}{
		{bson.D{{"noSuchCommand", 1}, {"$db", "admin"}}, 59, "CommandNotFound"},
		{bson.D{{"replSetFreeze", 1}, {"$db", "admin"}}, 59, "CommandNotFound"},
		{bson.D{{"removeShard", "nosuch"}, {"$db", "admin"}}, 238, "NotImplemented"},
		{bson.D{{"renameCollection", db + ".c"}, {"to", "other.d"}, {"$db", "admin"}}, 125, "CommandFailed"},
		{bson.D{{"compact", "c"}, {"$db", db}}, 115, "CommandNotSupported"},
		{bson.D{{"listShards", 1}, {"$db", db}}, 13, "Unauthorized"},
		{bson.D{{"find", "c"}, {"filter", bson.D{{"$noSuchOperator", 1}}}, {"$db", db}}, 2, "BadValue"},
		{bson.D{{"find", "c"}, {"filter", bson.D{{"k", bson.D{{"$noSuchOperator", 1}}}}}, {"$db", db}}, 2, "BadValue"},
		{bson.D{{"aggregate", "c"}, {"pipeline", bson.A{bson.D{{"$noSuchStage", 1}}}}, {"cursor", bson.D{}}, {"$db", db}}, 40324, "Location40324"},
		{bson.D{{"getMore", int64(12345)}, {"collection", "c"}, {"$db", db}}, 43, "CursorNotFound"},
		{bson.D{{"find", "c"}, {"$db", "local"}}, 20, "IllegalOperation"},
		{bson.D{{"find", "c"}, {"$db", "a.b"}}, 73, "InvalidNamespace"},
		{bson.D{{"ping", 1}}, 40571, "Location40571"},
	} {
		t.Run(fmt.Sprint(test.cmd[0].Key, " ", test.code), func(t *testing.T) {
			for range 10 {
				refused(t, c.run(test.cmd), test.code, test.name)
				require.Equal(t, int32(1), ok(t, c.run(bson.D{{"count", "c"}, {"$db", db}})).Lookup("n").Int32())
			}
		})
	}
}

func TestReplyCarriesClusterTime(t *testing.T) {
	c := dialRaw(t, 0)

	for _, cmd := range []string{"ping", "noSuchCommand", "listShards"} {
		reply := c.run(bson.D{{cmd, 1}, {"$db", "admin"}})
		require.Equal(t, bson.TypeTimestamp, reply.Lookup("operationTime").Type, "%s", reply)
		require.Equal(t, bson.TypeTimestamp, reply.Lookup("$clusterTime", "clusterTime").Type, "%s", reply)
		require.Equal(t, bson.TypeInt64, reply.Lookup("$clusterTime", "signature", "keyId").Type, "%s", reply)
	}
}
