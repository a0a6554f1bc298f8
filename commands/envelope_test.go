package commands

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/tag"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
)

// TestEnvelope is MONGOS.md §0 and §4.1: what is refused before any command runs.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	c := connect(t)
	id := bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}
	lsid := e("lsid", bson.D{e("id", id)})
	txn := func(n int64, more ...bson.E) []bson.E { return append([]bson.E{lsid, e("txnNumber", n)}, more...) }
	auto, start := e("autocommit", false), e("startTransaction", true)
	wc := e("writeConcern", bson.D{e("w", "majority")})
	ping, find, insert := []bson.E{e("ping", int32(1))}, []bson.E{e("find", "c")}, []bson.E{e("insert", "c"), e("documents", bson.A{})}
	for _, tt := range []struct {
		name string
		db   string
		cmd  []bson.E
		more []bson.E
		want int32
	}{
		{"ok", "d", ping, nil, 0},
		{"unknown", "d", []bson.E{e("frobnicate", int32(1))}, nil, 59},
		{"other case", "d", []bson.E{e("PING", int32(1))}, nil, 59},
		{"not yet", "admin", []bson.E{e("removeShard", "s")}, nil, 238},
		{"refused", "d", []bson.E{e("compact", "c")}, nil, 115},
		{"given twice", "d", ping, []bson.E{lsid, lsid}, 40413},
		{"admin only", "d", []bson.E{e("listShards", int32(1))}, nil, 13},
		{"local", "local", find, nil, 20},
		{"bad database", "a.b", find, nil, 73},
		{"no database", "", find, nil, 73},
		{"bad collection", "d", []bson.E{e("find", ".a")}, nil, 73},
		{"no collection", "d", []bson.E{e("find", int32(1))}, nil, 2},

		{"lsid", "d", ping, []bson.E{lsid}, 0},
		{"lsid is no object", "d", ping, []bson.E{e("lsid", int32(1))}, 14},
		{"lsid without id", "d", ping, []bson.E{e("lsid", bson.D{})}, 40414},
		{"lsid is no uuid", "d", ping, []bson.E{e("lsid", bson.D{e("id", "x")})}, 207},
		{"lsid of 15 bytes", "d", ping, []bson.E{e("lsid", bson.D{e("id", bson.Binary{Subtype: 4, Data: make([]byte, 15)})})}, 207},
		{"lsid of a plain binary", "d", ping, []bson.E{e("lsid", bson.D{e("id", bson.Binary{Data: make([]byte, 16)})})}, 207},
		{"internal session", "d", ping, []bson.E{e("lsid", bson.D{e("id", id), e("txnUUID", id)})}, 72},
		{"lsid null", "d", ping, []bson.E{e("lsid", nil)}, 0},

		{"txnNumber without lsid", "d", insert, []bson.E{e("txnNumber", int64(1))}, 72},
		{"txnNumber with lsid null", "d", insert, []bson.E{e("lsid", nil), e("txnNumber", int64(1))}, 72},
		{"txnNumber negative", "d", insert, txn(-1), 72},
		{"txnNumber int", "d", insert, []bson.E{lsid, e("txnNumber", int32(1))}, 14},
		{"txnNumber on what is no write", "d", find, txn(1), 50768},
		{"txnNumber null", "d", find, []bson.E{lsid, e("txnNumber", nil)}, 0},
		{"autocommit without txnNumber", "d", find, []bson.E{lsid, auto}, 72},
		{"startTransaction without txnNumber", "d", find, []bson.E{lsid, start}, 72},
		{"startTransaction without autocommit", "d", insert, txn(1, start), 72},
		{"autocommit true", "d", find, txn(1, e("autocommit", true), start), 72},
		{"startTransaction false", "d", find, txn(1, auto, e("startTransaction", false)), 72},
		{"not in a transaction", "d", []bson.E{e("count", "c")}, txn(1, auto, start), 263},
		{"ping in a transaction", "d", ping, txn(1, auto, start), 263},
		{"config in a transaction", "config", []bson.E{e("find", "shards")}, txn(1, auto, start), 263},
		{"killCursors begins none", "d", []bson.E{e("killCursors", "c"), e("cursors", bson.A{})}, txn(1, auto, start), 263},
		{"commit begins none", "admin", []bson.E{e("commitTransaction", int32(1))}, txn(1, auto, start), 263},
		{"abort begins none", "admin", []bson.E{e("abortTransaction", int32(1))}, txn(1, auto, start), 263},
		{"commit outside", "admin", []bson.E{e("commitTransaction", int32(1))}, []bson.E{lsid}, 72},
		{"commit of none", "admin", []bson.E{e("commitTransaction", int32(1))}, txn(99, auto), 251},
		{"abort of none", "admin", []bson.E{e("abortTransaction", int32(1))}, txn(99, auto), 251},
		{"no such transaction", "d", find, txn(99, auto), 251},

		{"writeConcern", "d", []bson.E{e("drop", "c")}, []bson.E{wc}, 0},
		{"writeConcern on a read", "d", find, []bson.E{wc}, 72},
		{"writeConcern is no object", "d", []bson.E{e("drop", "c")}, []bson.E{e("writeConcern", "majority")}, 14},
		{"writeConcern null", "d", find, []bson.E{e("writeConcern", nil)}, 0},
		{"writeConcern is no object on a read", "d", find, []bson.E{e("writeConcern", "majority")}, 72},
		{"writeConcern of fields", "d", []bson.E{e("drop", "c")}, []bson.E{e("writeConcern", bson.D{e("w", 1.5), e("j", int32(1)), e("wtimeout", "x"), e("provenance", "clientSupplied"), e("getLastError", 1)})}, 0},
		{"writeConcern of null fields", "d", []bson.E{e("drop", "c")}, []bson.E{e("writeConcern", bson.D{e("w", nil), e("j", nil), e("wtimeout", nil)})}, 0},
		{"writeConcern of tags", "d", []bson.E{e("drop", "c")}, []bson.E{e("writeConcern", bson.D{e("w", bson.D{e("dc", 1)})})}, 0},
		{"writeConcern of no tags", "d", insert, []bson.E{e("writeConcern", bson.D{e("w", bson.D{})})}, 9},
		{"writeConcern of wrong tags", "d", insert, []bson.E{e("writeConcern", bson.D{e("w", bson.D{e("dc", "x")})})}, 9},
		{"writeConcern with too many members", "d", []bson.E{e("drop", "c")}, []bson.E{e("writeConcern", bson.D{e("w", int32(51))})}, 9},
		{"writeConcern with w of another type", "d", insert, []bson.E{e("writeConcern", bson.D{e("w", true)})}, 9},
		{"writeConcern with j of another type", "d", insert, []bson.E{e("writeConcern", bson.D{e("j", "x")})}, 14},
		{"writeConcern with fsync and j", "d", insert, []bson.E{e("writeConcern", bson.D{e("fsync", true), e("j", true)})}, 9},
		{"writeConcern with a long wtimeout", "d", insert, []bson.E{e("writeConcern", bson.D{e("wtimeout", 1e12)})}, 9},
		{"writeConcern of unknown provenance", "d", insert, []bson.E{e("writeConcern", bson.D{e("provenance", "x")})}, 2},
		{"writeConcern with an unknown field", "d", insert, []bson.E{e("writeConcern", bson.D{e("w", 1), e("frobnicate", 1)})}, 40415},
		{"readConcern that is no object", "d", find, []bson.E{e("readConcern", "local")}, 9},
		{"readConcern of any level", "d", find, []bson.E{e("readConcern", bson.D{e("level", "linearizable")})}, 0},
		{"readConcern of local", "d", []bson.E{e("drop", "c")}, []bson.E{e("readConcern", bson.D{e("level", "local"), e("afterClusterTime", bson.Timestamp{T: 1})})}, 0},
		{"readConcern of another level", "d", []bson.E{e("listCollections", 1)}, []bson.E{e("readConcern", bson.D{e("level", "snapshot")})}, 72},
		{"readConcern of no level", "d", find, []bson.E{e("readConcern", bson.D{e("level", "frobnicate")})}, 9},
		{"readConcern with level of another type", "d", find, []bson.E{e("readConcern", bson.D{e("level", 5)})}, 14},
		{"readConcern at no time", "d", find, []bson.E{e("readConcern", bson.D{e("afterClusterTime", bson.Timestamp{})})}, 72},
		{"readConcern at what is no time", "d", find, []bson.E{e("readConcern", bson.D{e("afterClusterTime", 5)})}, 14},
		{"readConcern with an unknown field", "d", find, []bson.E{e("readConcern", bson.D{e("frobnicate", 5)})}, 72},
		{"writeConcern in a transaction", "d", insert, txn(1, auto, start, wc), 72},
		{"readConcern in a transaction", "d", find, txn(1, auto, start, e("readConcern", bson.D{e("level", "linearizable")})), 72},

		{"apiVersion", "d", ping, []bson.E{e("apiVersion", "1"), e("apiStrict", true)}, 0},
		{"apiVersion 2", "d", ping, []bson.E{e("apiVersion", "2")}, 322},
		{"apiVersion is no text", "d", ping, []bson.E{e("apiVersion", int32(1))}, 322},
		{"apiStrict alone", "d", ping, []bson.E{e("apiStrict", true)}, 4886600},
		{"apiDeprecationErrors alone", "d", ping, []bson.E{e("apiDeprecationErrors", true)}, 4886600},
		{"apiStrict", "d", []bson.E{e("hostInfo", int32(1))}, []bson.E{e("apiVersion", "1"), e("apiStrict", true)}, 323},
		{"apiStrict false", "d", []bson.E{e("hostInfo", int32(1))}, []bson.E{e("apiVersion", "1"), e("apiStrict", false)}, 0},

		{"maxTimeMS", "d", find, []bson.E{e("maxTimeMS", int32(1000))}, 0},
		{"maxTimeMS 0", "d", find, []bson.E{e("maxTimeMS", 0.0)}, 0},
		{"maxTimeMS null", "d", find, []bson.E{e("maxTimeMS", nil)}, 0},
		{"maxTimeMS negative", "d", find, []bson.E{e("maxTimeMS", int64(-1))}, 2},
		{"maxTimeMS too large", "d", find, []bson.E{e("maxTimeMS", int64(1<<31))}, 2},
		{"maxTimeMS is no number", "d", find, []bson.E{e("maxTimeMS", "1s")}, 2},

		{"read preference", "d", find, []bson.E{e("$readPreference", bson.D{e("mode", "secondary")})}, 0},
		{"read preference of no such mode", "d", find, []bson.E{e("$readPreference", bson.D{e("mode", "tertiary")})}, 9},
		{"read preference is no object", "d", find, []bson.E{e("$readPreference", "secondary")}, 14},
		{"tags are no list", "d", find, []bson.E{e("$readPreference", bson.D{e("mode", "nearest"), e("tags", bson.D{})})}, 14},
		{"tags are numbers", "d", find, []bson.E{e("$readPreference", bson.D{e("mode", "nearest"), e("tags", bson.A{bson.D{e("a", int32(1))}})})}, 14},
		{"staleness of 89 s", "d", find, []bson.E{e("$readPreference", bson.D{e("mode", "nearest"), e("maxStalenessSeconds", int32(89))})}, 160},
		{"secondary in a transaction", "d", find, txn(1, auto, start, e("$readPreference", bson.D{e("mode", "secondary")})), 72},
	} {
		require.Equal(t, tt.want, code(t, c.run(tt.db, append(append([]bson.E{}, tt.cmd...), tt.more...)...)), tt.name)
	}
}

// TestTransactionNumbers of one session, without any shard.
func TestTransactionNumbers(t *testing.T) {
	t.Parallel()
	c := connect(t)
	find := func(n int64, more ...bson.E) bson.Raw {
		return c.run("d", append([]bson.E{
			e("find", "c"), e("lsid", bson.D{e("id", bson.Binary{Subtype: 4, Data: make([]byte, 16)})}),
			e("txnNumber", n), e("autocommit", false),
		}, more...)...)
	}
	start := e("startTransaction", true)
	local := e("readConcern", bson.D{e("level", "local")})
	require.Zero(t, code(t, find(5, start, local)))
	require.Zero(t, code(t, find(5)))
	require.Equal(t, int32(72), code(t, find(5, local)), "only the first statement has a readConcern")
	require.Equal(t, int32(117), code(t, find(5, start)), "started already")
	require.Equal(t, int32(225), code(t, find(4, start)), "too old")
	require.Equal(t, int32(251), code(t, find(6)), "not started")
	d := find(4)
	require.Equal(t, int32(251), code(t, d))
	require.Equal(t, `["TransientTransactionError"]`, d.Lookup("errorLabels").String())
	require.Zero(t, code(t, find(6, start)))
}

// envelopeOf reads a command's envelope.
func envelopeOf(t *testing.T, h *Handler, cmd ...bson.E) *request {
	t.Helper()
	body, err := bson.Marshal(append(bson.D(cmd), e("$db", "d")))
	require.NoError(t, err)
	cl := &client{session: router.UUID{9}}
	req := &request{Op: &router.Op{Cmd: &cl.cmd}, h: h}
	require.NoError(t, cl.cmd.Parse(body))
	req.row = h.table[string(cl.cmd.First.Name)]
	require.NoError(t, req.envelope(cl))
	return req
}

func TestEnvelopeIsRead(t *testing.T) {
	t.Parallel()
	h := connect(t).handler
	id := bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}
	req := envelopeOf(t, h, e("find", "c"), e("lsid", bson.D{e("id", id), e("uid", "made up")}), e("maxTimeMS", int32(60_000)),
		e("readConcern", bson.D{e("afterClusterTime", bson.Timestamp{T: 7, I: 8})}),
		e("$readPreference", bson.D{
			e("mode", "secondaryPreferred"), e("tags", bson.A{bson.D{e("dc", "east"), e("disk", "ssd")}, bson.D{}}), e("maxStalenessSeconds", int32(90)),
		}))
	require.Equal(t, id.Data, req.Session.ID[:])
	require.Equal(t, anonymousUID(), req.Session.UID, "never what the client says")
	require.False(t, req.Session.Implicit)
	require.Equal(t, uint64(7<<32|8), req.ReadTime)
	require.WithinDuration(t, time.Now().Add(time.Minute), req.Deadline, 10*time.Second)
	require.Equal(t, backend.ReadPref{
		Mode: backend.SecondaryPreferred, MaxStale: 90 * time.Second,
		Tags: []tag.Set{{{Name: "dc", Value: "east"}, {Name: "disk", Value: "ssd"}}, {}},
	}, req.Pref)
	require.Equal(t, "$readPreference", string(req.PrefRaw.Name))
	require.False(t, req.Write)

	req = envelopeOf(t, h, e("insert", "c"), e("writeConcern", bson.D{e("w", int32(0))}), e("$readPreference", bson.D{e("mode", "secondary")}))
	require.True(t, req.Session.Implicit)
	require.Equal(t, router.UUID{9}, req.Session.ID)
	require.True(t, req.Write)
	require.Equal(t, backend.Primary, req.Pref.Mode, "writes go to primaries")
	require.NotZero(t, req.Drop&wire.ArgWriteConcern, "shards are to answer")
	require.True(t, req.Deadline.IsZero())

	req = envelopeOf(t, h, e("insert", "c"), e("writeConcern", bson.D{e("w", int32(1))}), e("lsid", bson.D{e("id", id)}), e("txnNumber", int64(4)))
	require.Zero(t, req.Drop&wire.ArgWriteConcern)
	require.Equal(t, router.Txn{Number: 4, Present: true}, req.Txn)

	req = envelopeOf(t, h, e("getMore", int64(1)), e("maxTimeMS", int32(5)))
	require.True(t, req.Deadline.IsZero(), "how long to wait for data, not a limit")
	for mode, want := range map[string]backend.Mode{
		"primary": backend.Primary, "primaryPreferred": backend.PrimaryPreferred, "secondary": backend.Secondary,
		"secondaryPreferred": backend.SecondaryPreferred, "nearest": backend.Nearest,
	} {
		req = envelopeOf(t, h, e("find", "c"), e("$readPreference", bson.D{e("mode", mode)}))
		require.Equal(t, want, req.Pref.Mode)
	}
}
