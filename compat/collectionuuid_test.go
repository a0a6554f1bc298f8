package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Who says which collection is meant reaches that one or nothing, and learns what it is called by now (codes and forms of runs on
// mongod 6.0.5).
func TestCollectionUUID(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, opLimit)

	for _, layout := range layouts {
		remake(t, 0, db, "a", layout.key)
		remake(t, 0, db, "b", nil)

		_, err := router(t, 0).Database(db).Collection("a").InsertOne(ctx, bson.D{{"_id", 1}, {"k", 1}, {"u", 1}})
		require.NoError(t, err)

		id, _ := configured(t, 0, db+".a")
		c := dialRaw(t, 1)

		run := func(coll string, cmd bson.D) bson.Raw {
			cmd[0].Value = coll

			return c.run(append(cmd, bson.E{Key: "collectionUUID", Value: id}, bson.E{Key: "$db", Value: db}))
		}

		for _, cmd := range []func() bson.D{
			func() bson.D {
				return bson.D{{"insert", nil}, {"documents", bson.A{bson.D{{"_id", 2}, {"k", 2}, {"u", 2}}}}}
			},
			func() bson.D {
				return bson.D{{"update", nil}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 2}, {"k", 2}, {"u", 2}}}, {"u", bson.D{{"$set", bson.D{{"x", 1}}}}}, {"upsert", true}}}}}
			},
			func() bson.D {
				return bson.D{{"delete", nil}, {"deletes", bson.A{bson.D{{"q", bson.D{{"_id", 2}}}, {"limit", 0}}}}}
			},
			func() bson.D { return bson.D{{"find", nil}} },
			func() bson.D { return bson.D{{"aggregate", nil}, {"pipeline", bson.A{}}, {"cursor", bson.D{}}} },
			func() bson.D {
				return bson.D{{"createIndexes", nil}, {"indexes", bson.A{bson.D{{"key", bson.D{{"z", 1}}}, {"name", "z"}}}}}
			},
			func() bson.D { return bson.D{{"dropIndexes", nil}, {"index", "z"}} },
			func() bson.D { return bson.D{{"collMod", nil}} },
		} {
			for _, coll := range []string{"b", "none"} {
				reply := run(coll, cmd())
				e := reply

				if l, is := reply.Lookup("writeErrors").ArrayOK(); is {
					require.Zero(t, reply.Lookup("n").AsInt64(), "%s", reply)

					e = l.Index(0).Document()
				}

				require.Equal(t, int32(361), e.Lookup("code").Int32(), "%v: %s", cmd(), reply)
				require.Equal(t, coll, e.Lookup("expectedCollection").StringValue(), "%s", reply)
				require.Equal(t, "a", e.Lookup("actualCollection").StringValue(), "%s", reply)
			}

			reply := ok(t, run("a", cmd()))
			require.NotContains(t, reply.String(), "writeErrors", "%v", cmd())
		}

		for _, cmd := range []bson.D{{{"count", nil}}, {{"distinct", nil}, {"key", "k"}}, {{"listIndexes", nil}}} {
			refused(t, run("a", cmd), 40415, "Location40415")
		}

		names, err := router(t, 0).Database(db).ListCollectionNames(ctx, bson.D{{"name", "none"}})
		require.NoError(t, err)
		require.Empty(t, names)
	}
}
