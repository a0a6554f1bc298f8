package compat

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Metadata operations while a shard is dead: what does not need it works, what needs it fails in bounded time and can be
// repeated when it is back.
func TestDDLWithAShardDown(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 4*opLimit)

	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	_, err := router(t, 0).Database(db).Collection("c").InsertMany(ctx, []any{bson.D{{"k", 1}}, bson.D{{"k", 2}}, bson.D{{"k", 3}}, bson.D{{"k", 4}}})
	require.NoError(t, err)

	before := onShards(t, db, "c")

	down(t, shared.cluster.Shard(2).Member(0))

	for i := range 2 * shardCount {
		begin := time.Now()
		_, err := router(t, i%2).Database(db).Collection(fmt.Sprint("new", i)).InsertOne(ctx, bson.D{{"_id", i}})
		require.NoError(t, err, "a new unsharded collection finds a place, %d", i)
		require.Less(t, time.Since(begin), 10*time.Second)
	}

	require.NoError(t, router(t, 1).Database(db).CreateCollection(ctx, "elsewhere"))

	for _, cmd := range []bson.D{{{"drop", "c"}}, {{"dropDatabase", 1}}, {{"createIndexes", "c"}, {"indexes", bson.A{bson.D{{"key", bson.D{{"z", 1}}}, {"name", "z"}}}}}} {
		begin := time.Now()
		err := router(t, 0).Database(db).RunCommand(t.Context(), append(cmd, bson.E{Key: "maxTimeMS", Value: 1500})).Err()
		require.Contains(t, []int{50, 133}, code(err), "%v needs the dead shard: %v", cmd, err)
		require.Less(t, time.Since(begin), 10*time.Second, "%v", err)
		t.Logf("%v: %v after %v", cmd[0].Key, err, time.Since(begin).Round(time.Millisecond))
	}

	begin := time.Now()
	require.NoError(t, router(t, 1).Database(db).Collection("elsewhere").Drop(ctx))
	require.Less(t, time.Since(begin), 15*time.Second, "a drop that does not need the dead shard")

	up(t, shared.cluster.Shard(2).Member(0))

	// A drop that could not be done was not half done.
	eventually(t, recoverLimit, "all documents are there", func() error {
		n, err := router(t, 1).Database(db).Collection("c").CountDocuments(ctx, bson.D{})
		if err == nil && n != 4 {
			err = fmt.Errorf("%d documents", n)
		}

		return err
	})
	require.Equal(t, before, onShards(t, db, "c"))

	eventually(t, recoverLimit, "the drop can be repeated", func() error {
		return router(t, 1).Database(db).RunCommand(opContext(t, opLimit), bson.D{{"drop", "c"}}).Err()
	})
	shardCollection(t, 0, db+".c", bson.D{{"u", "hashed"}})

	res, err := router(t, 1).Database(db).Collection("c").InsertMany(ctx, []any{bson.D{{"u", 1}}, bson.D{{"u", 2}}, bson.D{{"u", 3}}, bson.D{{"u", 4}}})
	require.NoError(t, err)
	require.Len(t, res.InsertedIDs, 4)
	require.Equal(t, int64(4), count(t, router(t, 0).Database(db).Collection("c"), bson.D{}))

	for i := range 2 * shardCount {
		require.Equal(t, int64(1), count(t, router(t, i%2).Database(db).Collection(fmt.Sprint("new", i)), bson.D{}))
	}
}
