package compat

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

type shardData struct {
	ShardName         string `bson:"shardName"`
	NumOrphanedDocs   int64  `bson:"numOrphanedDocs"`
	NumOwnedDocuments int64  `bson:"numOwnedDocuments"`
	OrphanedSizeBytes int64  `bson:"orphanedSizeBytes"`
	OwnedSizeBytes    int64  `bson:"ownedSizeBytes"`
}

// $shardedDataDistribution tells what each shard owns and what it has besides, while a chunk moves and afterwards.
func TestShardedDataDistribution(t *testing.T) {
	const docs = 600

	db, low, _ := newHalves(t, docs)
	ctx := opContext(t, 3*opLimit)

	size := func(n int) int64 {
		raw, err := bson.Marshal(bson.D{{"_id", 1}, {"k", 1}, {"n", 0}})
		require.NoError(t, err)

		return int64(n * len(raw))
	}
	distribution := func(r int, rest ...bson.D) []shardData {
		cur, err := router(t, r).Database("admin").Aggregate(ctx, append([]bson.D{{{"$shardedDataDistribution", bson.D{}}}, {{"$match", bson.D{{"ns", db + ".c"}}}}}, rest...))
		require.NoError(t, err)

		var list []struct {
			NS     string `bson:"ns"`
			Shards []shardData
		}

		require.NoError(t, cur.All(ctx, &list))
		require.Len(t, list, 1)

		return list[0].Shards
	}
	names := shardNames()
	half := shardData{NumOwnedDocuments: docs / 2, OwnedSizeBytes: size(docs / 2)}
	on := func(i int, d shardData) shardData {
		d.ShardName = names[i]
		return d
	}

	require.Equal(t, []shardData{on(0, half), on(1, half)}, distribution(0))

	stopped := stopAt(t, victim, "drain")
	result := stopped.begin(func() error { return moveChunk(t, victim, db+".c", &low, 2) })

	require.Equal(t, []shardData{
		on(0, half), on(1, half), on(2, shardData{NumOrphanedDocs: docs / 2, OrphanedSizeBytes: size(docs / 2)}),
	}, distribution(1))

	stopped.release()
	require.NoError(t, <-result)
	inPlace(t, db, "c", bson.D{{"k", 1}})
	require.Equal(t, []shardData{on(1, half), on(2, half)}, distribution(1))
	require.Equal(t, []shardData{on(2, half)}, distribution(1,
		bson.D{{"$set", bson.D{{"shards", bson.D{{"$filter", bson.D{{"input", "$shards"}, {"cond", bson.D{{"$eq", bson.A{"$$this.shardName", names[2]}}}}}}}}}}},
	))

	for _, c := range []struct {
		db   string
		cmd  bson.D
		code int
	}{
		{"admin", bson.D{{"aggregate", 1}, {"pipeline", bson.A{bson.D{{"$shardedDataDistribution", 1}}}}, {"cursor", bson.D{}}}, 6789100},
		{"admin", bson.D{{"aggregate", 1}, {"pipeline", bson.A{bson.D{{"$shardedDataDistribution", bson.D{{"a", 1}}}}}}, {"cursor", bson.D{}}}, 6789100},
		{db, bson.D{{"aggregate", 1}, {"pipeline", bson.A{bson.D{{"$shardedDataDistribution", bson.D{}}}}}, {"cursor", bson.D{}}}, 6789102},
		{db, bson.D{{"aggregate", "c"}, {"pipeline", bson.A{bson.D{{"$shardedDataDistribution", bson.D{}}}}}, {"cursor", bson.D{}}}, 6789102},
		{"admin", bson.D{{"aggregate", 1}, {"pipeline", bson.A{bson.D{{"$shardedDataDistribution", bson.D{}}}}}}, 9},
	} {
		err := router(t, 0).Database(c.db).RunCommand(context.Background(), c.cmd).Err()
		require.Equal(t, c.code, code(err), "%v: %v", c.cmd, err)
	}
}
