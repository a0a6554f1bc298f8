package commands

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// TestEmptyCluster is what a router without shards answers (MONGOS.md §1.6).
func TestEmptyCluster(t *testing.T) {
	t.Parallel()
	c := connect(t)
	cursor := func(d bson.Raw) int {
		require.Zero(t, code(t, d), "%s", d)
		require.Zero(t, d.Lookup("cursor", "id").Int64())
		values, err := d.Lookup("cursor", "firstBatch").Array().Values()
		require.NoError(t, err)
		return len(values)
	}
	require.Zero(t, cursor(c.run("d", e("find", "c"))))
	require.Zero(t, cursor(c.run("d", e("listCollections", int32(1)))))
	require.Zero(t, cursor(c.run("config", e("find", "shards"))))
	require.Equal(t, 1, cursor(c.run("config", e("find", "mongos"))))
	require.Positive(t, cursor(c.run("config", e("listCollections", int32(1)))))
	require.Equal(t, int32(0), c.run("d", e("count", "c")).Lookup("n").Int32())
	require.Equal(t, "[]", c.run("d", e("distinct", "c"), e("key", "x")).Lookup("values").String())
	require.Equal(t, int32(26), code(t, c.run("d", e("listIndexes", "c"))))
	require.Zero(t, code(t, c.run("d", e("dropDatabase", int32(1)))))
	require.Equal(t, "database does not exist", c.run("d", e("drop", "c")).Lookup("info").StringValue())
	require.Equal(t, int32(0), c.run("d", e("update", "c"), e("updates", bson.A{bson.D{e("q", bson.D{}), e("u", bson.D{e("$set", bson.D{e("a", 1)})})}})).Lookup("nModified").Int32())
	require.Equal(t, int32(70), code(t, c.run("d", e("insert", "c"), e("documents", bson.A{bson.D{}}))))
	require.Equal(t, "[]", c.run("admin", e("listShards", int32(1))).Lookup("shards").String())
	require.Equal(t, "off", c.run("admin", e("balancerStatus", int32(1))).Lookup("mode").StringValue())
}

// TestInternalDatabases are not for everybody to write to.
func TestInternalDatabases(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for _, db := range []string{"config", "admin"} {
		require.Equal(t, int32(238), code(t, c.run(db, e("insert", "c"), e("documents", bson.A{bson.D{}}))), db)
		require.Equal(t, int32(238), code(t, c.run(db, e("create", "c"))), db)
		require.Equal(t, int32(20), code(t, c.run(db, e("drop", "c"))), db)
		require.Equal(t, int32(20), code(t, c.run(db, e("dropDatabase", int32(1)))), db)
	}
	require.Equal(t, int32(2), code(t, c.run("d", e("dropDatabase", int32(2)))))
}

func TestShardCollectionOptions(t *testing.T) {
	t.Parallel()
	c := connect(t)
	hashed, ranged := e("key", bson.D{e("a", "hashed")}), e("key", bson.D{e("a", int32(1))})
	for _, tt := range []struct {
		name string
		ns   any
		args []bson.E
		want int32
	}{
		{"no key", "d.c", nil, 40414},
		{"key is no object", "d.c", []bson.E{e("key", "a")}, 14},
		{"empty key", "d.c", []bson.E{e("key", bson.D{})}, 2},
		{"two hashed", "d.c", []bson.E{e("key", bson.D{e("a", "hashed"), e("b", "hashed")})}, 2},
		{"descending", "d.c", []bson.E{e("key", bson.D{e("a", int32(-1))})}, 2},
		{"no collection", "d", []bson.E{hashed}, 73},
		{"not a text", int32(1), []bson.E{hashed}, 14},
		{"system", "d.system.x", []bson.E{hashed}, 20},
		{"config", "config.c", []bson.E{hashed}, 20},
		{"unknown option", "d.c", []bson.E{hashed, e("frobnicate", true)}, 40415},
		{"hashed and unique", "d.c", []bson.E{hashed, e("unique", true)}, 72},
		{"chunks of a ranged key", "d.c", []bson.E{ranged, e("numInitialChunks", int32(4))}, 72},
		{"negative chunks", "d.c", []bson.E{hashed, e("numInitialChunks", int32(-1))}, 72},
		{"too many chunks", "d.c", []bson.E{hashed, e("numInitialChunks", int32(1_000_001))}, 72},
		{"zones", "d.c", []bson.E{hashed, e("presplitHashedZones", true)}, 238},
		{"time series", "d.c", []bson.E{hashed, e("timeseries", bson.D{})}, 238},
		{"collation", "d.c", []bson.E{hashed, e("collation", bson.D{e("locale", "fr")})}, 2},
		{"no shards", "d.c", []bson.E{hashed}, 70},
	} {
		d := c.run("admin", append([]bson.E{e("shardCollection", tt.ns)}, tt.args...)...)
		require.Equal(t, tt.want, code(t, d), "%s: %s", tt.name, d)
	}
}

func TestDiagnostics(t *testing.T) {
	t.Parallel()
	c := connect(t)
	d := c.run("d", e("startSession", int32(1)))
	require.Equal(t, int32(30), d.Lookup("timeoutMinutes").Int32())
	_, id := d.Lookup("id", "id").Binary()
	require.Len(t, id, 16)
	require.Zero(t, code(t, c.run("d", e("endSessions", bson.A{d.Lookup("id")}))))
	require.Equal(t, int32(14), code(t, c.run("d", e("endSessions", "x"))))
	require.Equal(t, int32(40414), code(t, c.run("d", e("refreshSessions", bson.A{bson.D{}}))))

	require.Equal(t, "6.0", c.run("admin", e("getParameter", int32(1)), e("featureCompatibilityVersion", int32(1))).Lookup("featureCompatibilityVersion", "version").StringValue())
	// Test suites of drivers read this one to see whether there are fail points.
	require.False(t, c.run("admin", e("getParameter", "*")).Lookup("enableTestCommands").Boolean())
	d = c.run("admin", e("getParameter", int32(1)), e("nosuch", int32(1)))
	require.Equal(t, "no option found to get", d.Lookup("errmsg").StringValue())
	_, err := d.LookupErr("code")
	require.Error(t, err)
	require.Equal(t, "mongos", c.run("d", e("serverStatus", int32(1))).Lookup("process").StringValue())
	require.Equal(t, c.nc.LocalAddr().String(), c.run("d", e("whatsmyuri", int32(1))).Lookup("you").StringValue())
	require.Len(t, c.run("d", e("getnonce", int32(1))).Lookup("nonce").StringValue(), 16)
	require.Equal(t, int32(1), c.run("d", e("isdbgrid", int32(1))).Lookup("isdbgrid").Int32())
	require.Equal(t, `["shardgate","serve"]`, c.run("admin", e("getCmdLineOpts", int32(1))).Lookup("argv").String())
	require.Equal(t, int32(43), code(t, c.run("d", e("getMore", int64(5)), e("collection", "c"))))
	d = c.run("d", e("killCursors", "c"), e("cursors", bson.A{int64(5)}))
	require.Equal(t, `[{"$numberLong":"5"}]`, d.Lookup("cursorsNotFound").String())
}

// TestCounters: every command is counted, failed ones too.
func TestCounters(t *testing.T) {
	t.Parallel()
	c := connect(t)
	c.run("d", e("find", "c"))
	c.run("d", e("frobnicate", int32(1)))
	d := c.run("d", e("serverStatus", int32(1)))
	require.Equal(t, int64(1), d.Lookup("opcounters", "query").Int64())
	require.Equal(t, int64(2), d.Lookup("metrics", "commands", "total").Int64())
	require.Equal(t, int64(1), d.Lookup("metrics", "commands", "failed").Int64())
}

// TestTimes are on every reply, errors included, as soon as there is a time to give.
func TestTimes(t *testing.T) {
	t.Parallel()
	c := connect(t)
	_, err := c.run("d", e("ping", int32(1))).LookupErr("$clusterTime")
	require.Error(t, err, "no shard has told one yet")
	c.handler.router.Clock.Advance(5<<32 | 6)
	for _, name := range []string{"ping", "frobnicate"} {
		d := c.run("d", e(name, int32(1)))
		at, i := d.Lookup("$clusterTime", "clusterTime").Timestamp()
		require.Equal(t, [2]uint32{5, 6}, [2]uint32{at, i}, name)
		at, i = d.Lookup("operationTime").Timestamp()
		require.Equal(t, [2]uint32{5, 6}, [2]uint32{at, i}, name)
	}
	// A time that this cluster has signed is learnt; another one is not.
	signed := *c.handler.router.Clock.Signed()
	forged := signed
	forged.Time += 1 << 32
	el := func(t wire.ClusterTime) bson.E {
		b := wire.AppendClusterTime(nil, &t)
		raw, _ := wire.FirstElem(b)
		return e("$clusterTime", bson.Raw(raw.Value))
	}
	d := c.run("d", e("ping", int32(1)), el(forged))
	at, _ := d.Lookup("$clusterTime", "clusterTime").Timestamp()
	require.Equal(t, uint32(5), at)
	signed.Time++ // within the range of one signature
	d = c.run("d", e("ping", int32(1)), el(signed))
	_, i := d.Lookup("$clusterTime", "clusterTime").Timestamp()
	require.Equal(t, uint32(7), i)
}
