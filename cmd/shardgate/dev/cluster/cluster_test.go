package cluster_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// inShard runs do on a collection of a shard that is asked directly.
func inShard(t *testing.T, uri string, do func(*mongo.Collection)) {
	t.Helper()

	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)

	defer func() { require.NoError(t, client.Disconnect(t.Context())) }()

	do(client.Database("test").Collection("c"))
}

// query asks the catalog's database.
func query(ctx context.Context, c *cluster.Cluster, sql string) (string, error) {
	conn, err := pgx.Connect(ctx, c.CatalogDSN())
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)

	var text string

	return text, conn.QueryRow(ctx, sql).Scan(&text)
}

func TestStartAndRestartKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	begin := time.Now()
	c := clustertest.Start(t, cluster.Options{Shards: 2, Routers: 2, Data: dir})

	t.Logf("up after %v", time.Since(begin))

	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	require.NoError(t, err)

	var m cluster.Manifest

	require.NoError(t, json.Unmarshal(text, &m))
	require.Len(t, m.Shards, 2)
	require.Equal(t, c.Manifest(), m)

	for _, name := range []string{"cluster.json", "state.json", "keyfile"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}

	inShard(t, m.Shards[1].URI, func(coll *mongo.Collection) {
		_, err = coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
		require.NoError(t, err)
	})

	_, err = cluster.Start(t.Context(), cluster.Options{Data: dir})
	require.ErrorContains(t, err, "in use by another shardgate dev")

	second := c.RouterURI(1)
	require.NoError(t, c.Router(1).Kill())
	require.NoError(t, c.Close())
	require.NoFileExists(t, filepath.Join(dir, "cluster.json"))

	_, err = cluster.Start(t.Context(), cluster.Options{Data: dir, Shards: 1})
	require.ErrorContains(t, err, "holds 2 shards, not 1")

	begin = time.Now()
	c = clustertest.Start(t, cluster.Options{Data: dir, Shards: 3, Routers: 2})

	t.Logf("up again after %v", time.Since(begin))

	require.Len(t, c.Shards(), 3)
	require.Equal(t, m.Shards[1].URI, c.Shard(1).URI())

	// A router that was killed is back under its name: nobody waits for it.
	require.Equal(t, second, c.RouterURI(1))

	client, err := mongo.Connect(options.Client().ApplyURI(c.RouterURI(0)))
	require.NoError(t, err)

	defer client.Disconnect(context.Background()) //nolint:errcheck // nothing depends on it

	require.NoError(t, client.Database("fresh").CreateCollection(t.Context(), "c"))

	inShard(t, c.Shard(1).URI(), func(coll *mongo.Collection) {
		n, err := coll.CountDocuments(t.Context(), bson.D{})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	})
}

func TestNodesEndAndStartAgain(t *testing.T) {
	c := clustertest.Start(t, cluster.Options{Shards: 1})

	version, err := query(t.Context(), c, "SHOW server_version")
	require.NoError(t, err)

	for _, n := range c.Nodes() {
		addr, pid := n.Addr(), n.PID()

		require.NoError(t, n.Kill())
		require.Zero(t, n.PID())
		require.True(t, proc.PortFree(n.Port()), n.Name())
		require.NoError(t, n.Start(t.Context()), n.Name())
		require.Equal(t, addr, n.Addr())
		require.NotEqual(t, pid, n.PID())
		require.NoError(t, n.Restart(t.Context()), n.Name())
	}

	require.NoError(t, c.Postgres().Pause())

	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()

	_, err = query(ctx, c, "SHOW server_version")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, c.Postgres().Resume())

	again, err := query(t.Context(), c, "SHOW server_version")
	require.NoError(t, err)
	require.Equal(t, version, again)
}

func TestThreeMembersAndFetchedPostgres(t *testing.T) {
	finder, err := parts.New(parts.Options{Postgres: parts.Fetched})
	require.NoError(t, err)

	c := clustertest.Start(t, cluster.Options{Shards: 1, Members: 3, Parts: finder})

	version, err := query(t.Context(), c, "SHOW server_version")
	require.NoError(t, err)
	require.Equal(t, "17.5", version)

	old, err := c.Shard(0).Primary(t.Context())
	require.NoError(t, err)
	require.NoError(t, old.Kill())

	require.Eventually(t, func() bool {
		n, err := c.Shard(0).Primary(t.Context())
		return err == nil && n != old
	}, 30*time.Second, 100*time.Millisecond)

	require.NoError(t, c.StartStopped(t.Context()))
	require.NotZero(t, old.PID())
}

func TestFirstRoutersPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	defer l.Close()

	port := l.Addr().(*net.TCPAddr).Port

	_, err = cluster.Start(t.Context(), cluster.Options{Routers: 1, Port: port, Binary: "/bin/false"})
	require.ErrorContains(t, err, "--port")
}
