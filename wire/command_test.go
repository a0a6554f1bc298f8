package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// generic are the names of the generic arguments by their bits.
func generic() map[Generic]string {
	return map[Generic]string{
		ArgDB: "$db", ArgLSID: "lsid", ArgClusterTime: "$clusterTime", ArgReadPreference: "$readPreference",
		ArgReadConcern: "readConcern", ArgWriteConcern: "writeConcern", ArgMaxTimeMS: "maxTimeMS",
		ArgTxnNumber: "txnNumber", ArgAutocommit: "autocommit", ArgStartTransaction: "startTransaction",
		ArgAPIVersion: "apiVersion", ArgAPIStrict: "apiStrict", ArgAPIDeprecation: "apiDeprecationErrors",
		ArgComment: "comment", ArgStmtID: "stmtId", ArgStmtIDs: "stmtIds", ArgCollectionUUID: "collectionUUID",
	}
}

func TestCommandParse(t *testing.T) {
	t.Parallel()
	elems := []bson.E{e("find", "c"), e("filter", bson.D{{Key: "lsid", Value: "not this one"}})}
	for _, name := range generic() {
		value := any("v of " + name)
		elems = append(elems, e(name, value))
	}
	elems = append(elems, e("limit", int64(5)))
	d := doc(t, elems...)
	var c Command
	require.NoError(t, c.Parse(d))
	require.Equal(t, "find", string(c.First.Name))
	coll, ok := c.First.Str()
	require.True(t, ok)
	require.Equal(t, "c", coll)
	require.Equal(t, "v of $db", string(c.DB))
	require.Equal(t, d, c.Body)
	for arg, name := range generic() {
		require.True(t, c.Has(arg), name)
		el, ok := c.Arg(arg)
		require.True(t, ok, name)
		require.Equal(t, name, string(el.Name))
		s, ok := el.Str()
		require.True(t, ok, name)
		require.Equal(t, "v of "+name, s)
	}
	require.Len(t, generic(), numArgs)

	require.NoError(t, c.Parse(doc(t, e("ping", int32(1)), e("$db", "admin"))))
	require.False(t, c.Has(^ArgDB), "nothing is left of the last")
	_, ok = c.Arg(ArgLSID)
	require.False(t, ok)
}

// TestCommandParseNull: null means absent, but is not passed on where the argument is
// replaced.
func TestCommandParseNull(t *testing.T) {
	t.Parallel()
	var c Command
	require.NoError(t, c.Parse(doc(t, e("ping", int32(1)), e("lsid", nil), e("comment", bson.Undefined{}), e("$db", "d"))))
	require.False(t, c.Has(ArgLSID|ArgComment))
	_, ok := c.Arg(ArgLSID)
	require.False(t, ok)
	at, out := AppendDocStart(nil)
	require.Equal(t, doc(t, e("ping", int32(1)), e("comment", bson.Undefined{}), e("$db", "d")), Doc(AppendDocEnd(c.AppendWithout(out, ArgLSID), at)))
	requireCode(t, 40413, c.Parse(doc(t, e("ping", int32(1)), e("lsid", nil), e("lsid", "x"), e("$db", "d"))))
	requireCode(t, 14, c.Parse(doc(t, e("ping", int32(1)), e("$db", nil))))
}

func TestCommandParseRefuses(t *testing.T) {
	t.Parallel()
	var c Command
	for _, name := range generic() {
		requireCode(t, 40413, c.Parse(doc(t, e("ping", int32(1)), e(name, "a"), e("x", "y"), e(name, "b"))))
	}
	requireCode(t, 40571, c.Parse(doc(t, e("ping", int32(1)))))
	requireCode(t, 40571, c.Parse(doc(t, e("$db", "admin"))))
	requireCode(t, 14, c.Parse(doc(t, e("ping", int32(1)), e("$db", int32(5)))))
	requireCode(t, 59, c.Parse(doc(t)))
	cut := append(Doc(nil), doc(t, e("ping", int32(1)), e("$db", "admin"))...)
	cut[len(cut)-2] = 'x' // the string's end
	requireCode(t, 22, c.Parse(cut))
	requireCode(t, 22, c.Parse(Doc{5, 0, 0, 0, 1}))
	requireCode(t, 22, c.Parse(Doc{6, 0, 0, 0, 1, 0}))
	requireCode(t, 22, c.Parse(nil))
}

func TestAppendWithout(t *testing.T) {
	t.Parallel()
	d := doc(t, e("insert", "c"), e("lsid", "l"), e("ordered", true), e("$db", "d"), e("comment", "k"), e("txnNumber", int64(1)))
	for drop, want := range map[Generic]Doc{
		0:                    d,
		ArgLSID:              doc(t, e("insert", "c"), e("ordered", true), e("$db", "d"), e("comment", "k"), e("txnNumber", int64(1))),
		ArgTxnNumber:         doc(t, e("insert", "c"), e("lsid", "l"), e("ordered", true), e("$db", "d"), e("comment", "k")),
		ArgDB | ArgComment:   doc(t, e("insert", "c"), e("lsid", "l"), e("ordered", true), e("txnNumber", int64(1))),
		ArgReadPreference:    d,
		^Generic(0):          doc(t, e("insert", "c"), e("ordered", true)),
		ArgDB | ArgTxnNumber: doc(t, e("insert", "c"), e("lsid", "l"), e("ordered", true), e("comment", "k")),
	} {
		var c Command
		require.NoError(t, c.Parse(d))
		at, out := AppendDocStart([]byte("before"))
		out = AppendDocEnd(c.AppendWithout(out, drop), at)
		require.Equal(t, "before", string(out[:6]))
		require.Equal(t, want, Doc(out[6:]), "%b", drop)
	}
}

// BenchmarkParse is what every request costs before anything is decided.
func BenchmarkParse(b *testing.B) {
	msg := opMsg(0, body(doc(b,
		e("find", "users"),
		e("filter", bson.D{{Key: "_id", Value: bson.NewObjectID()}}),
		e("limit", int64(1)),
		e("singleBatch", true),
		e("lsid", bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}),
		e("$clusterTime", bson.D{{Key: "clusterTime", Value: bson.Timestamp{T: 1, I: 2}}}),
		e("$db", "app"))))
	var m Msg
	var c Command
	out := make([]byte, 0, 1024)
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if err := ParseMsg(msg, &m); err != nil {
			b.Fatal(err)
		}
		if err := c.Parse(m.Body); err != nil {
			b.Fatal(err)
		}
		out = c.AppendWithout(out[:0], ArgLSID|ArgClusterTime)
	}
}

// TestParseAllocatesNothing keeps the hot path's shape.
func TestParseAllocatesNothing(t *testing.T) {
	msg := opMsg(0, body(doc(t, e("insert", "c"), e("lsid", bson.D{}), e("$db", "d"))), seq("documents", doc(t, e("_id", int32(1)))))
	var m Msg
	var c Command
	out := make([]byte, 0, 1024)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if ParseMsg(msg, &m) != nil || c.Parse(m.Body) != nil {
			t.Error("does not parse")
		}
		out = c.AppendWithout(out[:0], ArgLSID)
	}))
}
