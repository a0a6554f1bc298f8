package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// sameError requires that both sides answer with the same error, or both with none.
func sameError(t testing.TB, judge, routed bson.Raw, cmd bson.D) {
	t.Helper()

	for _, field := range []string{"ok", "code", "codeName", "errmsg"} {
		require.Equal(t, judge.Lookup(field), routed.Lookup(field), "%s of %v\nmongod: %s\nrouter: %s", field, cmd, judge, routed)
	}
}

// TestListSessions: the stages that list sessions take and refuse what they do at a mongod, and list clients' sessions alone.
func TestListSessions(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	judge, routed := dialJudge(t), dialRaw(t, 0)
	user := func(more ...bson.E) bson.D {
		return bson.D{{"users", bson.A{append(bson.D{{"user", "a"}}, more...)}}}
	}

	for _, stage := range []string{"$listLocalSessions", "$listSessions"} {
		for _, spec := range []any{
			bson.D{},
			bson.D{{"allUsers", true}},
			bson.D{{"allUsers", false}},
			bson.D{{"users", bson.A{}}},
			user(bson.E{Key: "db", Value: "b"}),
			1,
			bson.D{{"zork", 1}},
			bson.D{{"allUsers", 1}},
			bson.D{{"users", 5}},
			bson.D{{"users", bson.A{5}}},
			user(),
			user(bson.E{Key: "db", Value: 5}), user(bson.E{Key: "db", Value: "b"}, bson.E{Key: "c", Value: 1}),
		} {
			for _, at := range [][2]any{{"admin", 1}, {db, 1}, {db, "c"}, {db, "missing"}, {"config", "system.sessions"}, {"config", "shards"}, {"config", 1}} {
				cmd := bson.D{{"aggregate", at[1]}, {"pipeline", bson.A{bson.D{{stage, spec}}}}, {"cursor", bson.D{}}, {"$db", at[0]}}
				sameError(t, judge.run(cmd), routed.run(cmd), cmd)
			}
		}
	}

	local := bson.D{{"$listLocalSessions", bson.D{}}}

	for _, more := range []bson.D{
		{{"readConcern", bson.D{{"level", "local"}}}},
		{{"readConcern", bson.D{{"level", "majority"}}}},
		{{"apiVersion", "1"}, {"apiStrict", true}},
		{{"let", bson.D{{"a", 1}}}, {"allowDiskUse", true}, {"comment", "x"}},
	} {
		cmd := append(bson.D{{"aggregate", 1}, {"pipeline", bson.A{local}}, {"cursor", bson.D{}}, {"$db", "admin"}}, more...)
		sameError(t, judge.run(cmd), routed.run(cmd), cmd)
	}

	for _, rest := range []bson.A{{local}, {bson.D{{"$zork", 1}}}, {bson.D{{"$limit", 0}}}, {bson.D{{"$match", bson.D{}}}}} {
		cmd := bson.D{{"aggregate", 1}, {"pipeline", append(bson.A{local}, rest...)}, {"cursor", bson.D{}}, {"$db", "admin"}}
		sameError(t, judge.run(cmd), routed.run(cmd), cmd)
	}

	refused(t, routed.run(bson.D{{"aggregate", 1}, {"pipeline", bson.A{local, bson.D{{"$out", "x"}}}}, {"cursor", bson.D{}}, {"$db", "admin"}}), 238, "NotImplemented")
	refused(t, routed.run(bson.D{{"aggregate", "shards"}, {"pipeline", bson.A{bson.D{{"$out", "x"}}}}, {"cursor", bson.D{}}, {"$db", "config"}}), 238, "NotImplemented")

	// What a client uses is there at once, the router's own is not, and what has ended is not.
	for _, c := range []*rawConn{judge, routed} {
		mine := session()
		listed := func(stage, in string, coll any) int {
			reply := ok(t, c.run(bson.D{
				{"aggregate", coll}, {"pipeline", bson.A{bson.D{{stage, bson.D{}}}, bson.D{{"$match", bson.D{{"_id.id", mine[0].Value}}}}}}, {"cursor", bson.D{}}, {"$db", in},
			}))
			list := batch(t, reply, "firstBatch")

			if len(list) > 0 {
				require.Equal(t, bson.TypeDateTime, list[0].Document().Lookup("lastUse").Type)
				_, uid := list[0].Document().Lookup("_id", "uid").Binary()
				require.Len(t, uid, 32)
			}

			return len(list)
		}

		require.Zero(t, listed("$listLocalSessions", "admin", 1))
		ok(t, c.run(bson.D{{"find", "c"}, {"$db", db}, {"lsid", mine}}))
		require.Equal(t, 1, listed("$listLocalSessions", "admin", 1))

		if c == judge {
			continue // a mongod knows it in config.system.sessions five minutes later
		}

		require.Equal(t, 1, listed("$listSessions", "config", "system.sessions"))
		ok(t, c.run(bson.D{{"endSessions", bson.A{mine}}, {"$db", "admin"}}))
		require.Zero(t, listed("$listLocalSessions", "admin", 1))
	}
}

// TestListSessionsOfAllShards: a session that another router's client has used is known by the shards, which tell of it; a router's
// own are left out.
func TestListSessionsOfAllShards(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	there, here := dialRaw(t, 1), dialRaw(t, 0)
	mine := session()
	ok(t, there.run(bson.D{{"find", "c"}, {"$db", db}, {"lsid", mine}}))
	ok(t, there.run(bson.D{{"find", "c"}, {"$db", db}})) // in a session that the router makes

	own := 0

	for i := range shardCount {
		require.NoError(t, shard(t, i).Database("admin").RunCommand(t.Context(), bson.D{{"refreshLogicalSessionCacheNow", 1}}).Err())

		cur, err := shard(t, i).Database("config").Collection("system.sessions").Find(t.Context(), bson.D{})
		for _, doc := range all(t, cur, err) {
			if _, id := doc.Lookup("_id", "id").Binary(); id[6]>>4 != 4 {
				own++
			}
		}
	}

	require.NotZero(t, own, "the routers have sessions of their own")

	list := batch(t, ok(t, here.run(bson.D{
		{"aggregate", "system.sessions"}, {"pipeline", bson.A{bson.D{{"$listSessions", bson.D{{"allUsers", true}}}}}}, {"cursor", bson.D{{"batchSize", 100_000}}}, {"$db", "config"},
	})), "firstBatch")

	seen := 0

	for _, doc := range list {
		_, id := doc.Document().Lookup("_id", "id").Binary()
		require.Equal(t, byte(4), id[6]>>4, "%s is a router's own", doc)

		if doc.Document().Lookup("_id", "id").Equal(rawValue(t, mine[0].Value)) {
			seen++
		}
	}

	require.Equal(t, 1, seen)
}

// rawValue is a value as it is in documents.
func rawValue(t testing.TB, v any) bson.RawValue {
	t.Helper()
	return bson.Raw(raw(t, bson.D{{"v", v}})).Lookup("v")
}

// TestValidate: every shard that owns the collection checks its part; what a mongod refuses is refused.
func TestValidate(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	judge, routed := dialJudge(t), dialRaw(t, 0)

	var docs bson.A
	for i := range 60 {
		docs = append(docs, bson.D{{"_id", i}})
	}

	for _, c := range []*rawConn{judge, routed} {
		ok(t, c.run(bson.D{{"insert", "c"}, {"documents", docs}, {"$db", db}}))
		ok(t, c.run(bson.D{{"insert", "plain"}, {"documents", docs}, {"$db", db}}))
		ok(t, c.run(bson.D{{"create", "v"}, {"viewOn", "c"}, {"pipeline", bson.A{}}, {"$db", db}}))
		ok(t, c.run(bson.D{{"fsync", 1}, {"$db", "admin"}})) // for background
	}

	for _, coll := range []any{"c", "plain", "missing", "v", 5, ""} {
		for _, more := range []bson.D{
			nil,
			{{"full", true}},
			{{"background", true}},
			{{"background", true}, {"full", true}},
			{{"metadata", true}, {"full", true}},
			{{"zork", 1}},
			{{"readConcern", bson.D{{"level", "majority"}}}},
			{{"writeConcern", bson.D{{"w", 1}}}},
			{{"maxTimeMS", 10_000}, {"comment", "x"}},
		} {
			if coll != "c" && coll != "plain" && more != nil {
				continue // what is said first where two things are wrong
			}

			cmd := append(bson.D{{"validate", coll}, {"$db", db}}, more...)
			sameError(t, judge.run(cmd), routed.run(cmd), cmd)
		}
	}

	for coll, owners := range map[string]int{"c": shardCount, "plain": 1} {
		reply := ok(t, routed.run(bson.D{{"validate", coll}, {"$db", db}}))
		require.True(t, reply.Lookup("valid").Boolean())

		shards, err := reply.Lookup("raw").Document().Elements()
		require.NoError(t, err)
		require.Len(t, shards, owners)

		var records int64

		for _, s := range shards {
			require.Contains(t, shardNames(), s.Key())
			records += s.Value().Document().Lookup("nrecords").AsInt64()
		}

		require.Equal(t, int64(len(docs)), records)
	}

	reply := ok(t, routed.run(bson.D{{"fsync", 1}, {"$db", "admin"}}))
	shards, err := reply.Lookup("all").Document().Elements()
	require.NoError(t, err)
	require.Len(t, shards, shardCount)
	require.Zero(t, routed.run(bson.D{{"fsync", 1}, {"lock", true}, {"$db", "admin"}}).Lookup("ok").Double())

	// A shard that cannot answer is the whole command's failure.
	require.NoError(t, failCommand(t, 1, "validate"))
	refused(t, routed.run(bson.D{{"validate", "c"}, {"$db", db}}), 96, "OperationFailed")
}

// failCommand makes a shard refuse a command once.
func failCommand(t testing.TB, i int, command string) error {
	t.Helper()

	return shard(t, i).Database("admin").RunCommand(t.Context(), bson.D{
		{"configureFailPoint", "failCommand"},
		{"mode", bson.D{{"times", 1}}},
		{"data", bson.D{{"failCommands", bson.A{command}}, {"errorCode", 96}}},
	}).Err()
}

// TestUsersInfo: there are no users yet; what is asked is read as a mongod reads it.
func TestUsersInfo(t *testing.T) {
	judge, routed := dialJudge(t), dialRaw(t, 0)

	for _, of := range []any{
		1, int64(1), 1.0, 1.5, 2, true, nil, "a",
		bson.D{{"user", "a"}, {"db", "b"}},
		bson.D{{"user", "a"}},
		bson.D{{"user", 5}, {"db", "b"}},
		bson.D{},
		bson.D{{"user", "a"}, {"db", "b"}, {"z", 1}},
		bson.A{},
		bson.A{"a"},
		bson.A{"a", 5},
		bson.D{{"forAllDBs", true}},
		bson.D{{"forAllDBs", false}},
	} {
		for _, more := range []bson.D{
			nil,
			{{"showCredentials", true}},
			{{"showPrivileges", true}},
			{{"showAuthenticationRestrictions", true}},
			{{"showCustomData", false}},
			{{"showCustomData", "x"}},
			{{"filter", bson.D{{"user", "a"}}}},
			{{"filter", bson.D{{"$zork", 1}}}},
			{{"filter", 5}},
			{{"zork", 1}},
			{{"showCredentials", nil}},
		} {
			cmd := append(bson.D{{"usersInfo", of}, {"$db", "d"}}, more...)
			want, got := judge.run(cmd), routed.run(cmd)
			require.Equal(t, errorCode(want), errorCode(got), "%v\nmongod: %s\nrouter: %s", cmd, want, got)
			require.Equal(t, want.Lookup("users"), got.Lookup("users"), "%v", cmd)
		}
	}
}
