package cluster_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// collection returns a collection of a shard, asked directly.
func collection(t *testing.T, uri string) *mongo.Collection {
	t.Helper()

	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })

	return client.Database("test").Collection("c")
}

func TestStartAndRestartKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	begin := time.Now()
	c := clustertest.Start(t, cluster.Options{Shards: 2, Data: dir})

	t.Logf("up after %v", time.Since(begin))

	var m cluster.Manifest

	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &m))
	require.Len(t, m.Shards, 2)
	require.Equal(t, c.Manifest(), m)

	_, err = collection(t, m.Shards[1].URI).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoFileExists(t, filepath.Join(dir, "cluster.json"))

	// Another number of shards is left out, so it is the folder's.
	c = clustertest.Start(t, cluster.Options{Data: dir})
	require.Len(t, c.Shards(), 2)
	require.Equal(t, m.Shards[1].URI, c.Shard(1).URI())

	n, err := collection(t, c.Shard(1).URI()).CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}
