package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Writes that are repeated after their collection has got another name give what they gave, and write nothing: as on a mongod the
// session knows them, whatever has their name now.
func TestRepeatedWritesAfterRename(t *testing.T) {
	for name, key := range map[string]bson.D{"unsharded": nil, "sharded": {{"k", "hashed"}}} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			first, second := dialRaw(t, 0), dialRaw(t, 1)

			remake(t, 0, db, "a", key)
			ok(t, first.run(bson.D{{"insert", "a"}, {"documents", bson.A{bson.D{{"_id", 0}, {"k", 0}}, bson.D{{"_id", 3}, {"k", 3}, {"c", 0}}}}, {"$db", db}}))

			inc := bson.D{{"$inc", bson.D{{"c", 1}}}}
			writes := []bson.D{
				{{"insert", "a"}, {"documents", bson.A{bson.D{{"_id", 1}, {"k", 1}}, bson.D{{"_id", 2}, {"k", 2}}}}},
				{{"update", "a"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 1}, {"k", 1}}}, {"u", inc}}}}},
				{{"findAndModify", "a"}, {"query", bson.D{{"_id", 3}, {"k", 3}}}, {"update", inc}, {"new", true}},
				{{"delete", "a"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"_id", 0}, {"k", 0}}}, {"limit", 1}}}}},
				{{"update", "a"}, {"updates", bson.A{bson.D{{"q", bson.D{{"_id", 9}, {"k", 9}}}, {"u", inc}, {"upsert", true}}}}},
			}
			replies := make([]bson.Raw, len(writes))
			what := func(reply bson.Raw) []bson.RawValue {
				return []bson.RawValue{reply.Lookup("n"), reply.Lookup("nModified"), reply.Lookup("value"), reply.Lookup("upserted")}
			}

			for i := range writes {
				writes[i] = append(writes[i], bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: session()}, bson.E{Key: "txnNumber", Value: int64(1)})
				replies[i] = ok(t, first.run(writes[i]))

				if i == 1 && key == nil { // what came before, another shard knows
					require.NoError(t, moveTo(t, 0, db+".a", otherThan(homeOf(t, 0, db+".a"))))
				}
			}

			before := documentsOf(t, db, "a")

			require.NoError(t, rename(t, 0, db, "a", "b"))
			require.Equal(t, before, documentsOf(t, db, "b"))

			for i := range writes {
				for _, conn := range []*rawConn{second, first} {
					require.Equal(t, what(replies[i]), what(ok(t, conn.run(writes[i]))), "%v", writes[i])
				}
			}

			require.Empty(t, documentsOf(t, db, "a"))
			require.Equal(t, before, documentsOf(t, db, "b"))
		})
	}
}

// documentsOf reads all documents of a collection, by _id.
func documentsOf(t *testing.T, db, coll string) []bson.Raw {
	t.Helper()

	cur, err := router(t, 2).Database(db).Collection(coll).Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))

	return all(t, cur, err)
}
