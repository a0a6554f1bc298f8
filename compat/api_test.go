package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Clients that declare the versioned API have transactions and cursors, and hear of mismatches what a mongod says.
func TestVersionedAPI(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	judge, routed := dialJudge(t), dialRaw(t, 0)
	v1 := bson.D{{"apiVersion", "1"}}
	strict := bson.D{{"apiVersion", "1"}, {"apiStrict", true}}

	var docs bson.A
	for i := range 30 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}

	ok(t, judge.run(bson.D{{"create", "c"}, {"$db", db}}))

	for _, c := range []*rawConn{judge, routed} {
		ok(t, c.run(append(bson.D{{"insert", "c"}, {"documents", docs}, {"$db", db}}, strict...)))

		// A cursor, over all shards.
		reply := ok(t, c.run(append(bson.D{{"find", "c"}, {"batchSize", 2}, {"$db", db}}, strict...)))
		reply = ok(t, c.run(append(bson.D{{"getMore", reply.Lookup("cursor", "id").Int64()}, {"collection", "c"}, {"$db", db}}, strict...)))
		rest, err := batchOf(reply)
		require.NoError(t, err)
		require.Len(t, rest, 28)

		for _, tt := range []struct {
			first, second, commit bson.D
			want                  [3]int32
		}{
			{v1, v1, v1, [3]int32{}},
			{strict, strict, strict, [3]int32{}},
			{v1, nil, v1, [3]int32{0, 347, 0}},
			{nil, v1, nil, [3]int32{0, 347, 0}},
			{v1, append(bson.D{{"apiStrict", false}}, v1...), v1, [3]int32{0, 347, 0}},
			{v1, v1, nil, [3]int32{0, 0, 347}},
		} {
			txn := bson.D{{"lsid", session()}, {"txnNumber", int64(1)}, {"autocommit", false}}
			update := bson.D{{"update", "c"}, {"updates", bson.A{bson.D{{"q", bson.D{{"k", 1}}}, {"u", bson.D{{"$inc", bson.D{{"n", 1}}}}}}}}, {"$db", db}}
			find := bson.D{{"find", "c"}, {"filter", bson.D{{"k", 1}}}, {"$db", db}}
			commit := bson.D{{"commitTransaction", 1}, {"$db", "admin"}}

			for _, order := range [][2]bson.D{{update, find}, {find, update}} {
				txn[0].Value = session()
				begin := append(bson.D{{"startTransaction", true}}, txn...)

				got := [3]int32{
					errorCode(c.run(join(order[0], begin, tt.first))), errorCode(c.run(join(order[1], txn, tt.second))), errorCode(c.run(join(commit, txn, tt.commit))),
				}
				require.Equal(t, tt.want, got, "%v", tt)
				c.run(join(bson.D{{"abortTransaction", 1}, {"$db", "admin"}}, txn, tt.first))
			}
		}

		for stage, want := range map[string]int32{"$listLocalSessions": 323, "$currentOp": 323} {
			cmd := bson.D{{"aggregate", 1}, {"pipeline", bson.A{bson.D{{stage, bson.D{}}}}}, {"cursor", bson.D{}}, {"$db", "admin"}}
			require.Equal(t, want, errorCode(c.run(join(cmd, strict))), stage)
		}
	}
}

// join puts documents together.
func join(parts ...bson.D) bson.D {
	var all bson.D
	for _, p := range parts {
		all = append(all, p...)
	}

	return all
}
