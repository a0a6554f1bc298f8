package compat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestWriteOfOneDocumentWhileShardsFail: a retryable write whose claim, record or trial meets a shard's failure is repeated by
// the router, as one by the shard key is, and takes effect once.
func TestWriteOfOneDocumentWhileShardsFail(t *testing.T) {
	_, coll := jobs(t, 5)
	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}

	for _, command := range []string{"findAndModify", "insert"} { // of claims and upserts' trials, of records
		for _, failure := range []bson.E{{Key: "closeConnection", Value: true}, {Key: "errorCode", Value: 11600}} {
			namespaces := []string{"__shardgate.claims"}
			if command == "findAndModify" && failure.Key == "closeConnection" {
				namespaces = append(namespaces, "__shardgate.scratch")
			}

			for _, ns := range namespaces {
				fail := func(mode any) {
					for i := range shardCount {
						require.NoError(t, shard(t, i).Database("admin").RunCommand(opContext(t, opLimit), bson.D{
							{"configureFailPoint", "failCommand"},
							{"mode", mode},
							{"data", bson.D{{"failCommands", bson.A{command}}, {"namespace", ns}, {"failInternalCommands", true}, failure}},
						}).Err())
					}
				}

				fail(bson.D{{"times", 1}})

				res, err := coll.UpdateOne(opContext(t, opLimit), bson.D{{"state", "new"}, {"n", 0}}, inc)
				require.NoError(t, err, "%s %s %v", command, ns, failure)
				require.Equal(t, int64(1), res.ModifiedCount)

				var done bson.Raw

				require.NoError(t, coll.FindOneAndUpdate(opContext(t, opLimit), bson.D{{"state", "new"}, {"n", 1}},
					bson.D{{"$set", bson.D{{"state", "done"}}}}).Decode(&done))

				// It might change its shard key, and is the shard key's own value.
				res, err = coll.UpdateOne(opContext(t, opLimit), bson.D{{"_id", done.Lookup("_id")}},
					bson.D{{"$set", bson.D{{"k", done.Lookup("k")}}}, {"$inc", bson.D{{"n", 1}}}})
				require.NoError(t, err, "%s %s %v", command, ns, failure)
				require.Equal(t, int64(1), res.ModifiedCount)
				require.Equal(t, int64(1), count(t, coll, bson.D{{"_id", done.Lookup("_id")}, {"n", 2}}))

				res, err = coll.UpdateOne(opContext(t, opLimit), bson.D{{"state", "fresh"}, {"for", done.Lookup("_id")}},
					bson.D{{"$set", bson.D{{"k", 7}}}}, options.UpdateOne().SetUpsert(true))
				require.NoError(t, err, "%s %s %v", command, ns, failure)
				require.Equal(t, int64(1), res.UpsertedCount)
				fail("off")
			}
		}
	}

	require.Equal(t, int64(5), count(t, coll, bson.D{{"state", "done"}, {"n", 2}}))
	require.Equal(t, int64(5), count(t, coll, bson.D{{"state", "fresh"}}))
}
