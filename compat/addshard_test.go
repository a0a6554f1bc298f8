package compat

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// startMongod starts a mongod beside the cluster that ends with the test.
func startMongod(t *testing.T, args ...string) (addr string) {
	t.Helper()

	return plainMongod(t, append([]string{"--setParameter", "enableTestCommands=1"}, args...)...)
}

// plainMongod starts a mongod beside the cluster, with nothing but what is given, that ends with the test.
func plainMongod(t *testing.T, args ...string) (addr string) {
	t.Helper()

	program, err := clustertest.Finder(t).Mongod(t.Context())
	require.NoError(t, err)

	var ports proc.Ports

	port, err := ports.Pick()
	require.NoError(t, err)

	dir := t.TempDir()

	group := proc.NewGroup()
	t.Cleanup(group.Close)

	_, err = group.Start(t.Context(), proc.Spec{
		Name: "extra mongod", Path: program, Log: filepath.Join(dir, "log"),
		Args: append([]string{
			"--port", strconv.Itoa(port), "--dbpath", dir, "--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "1",
		}, args...),
	})
	require.NoError(t, err)

	return proc.Loopback(port)
}

// extraMongod starts a mongod beside the cluster, with the cluster's keyfile, that ends with the test.
func extraMongod(t *testing.T, args ...string) (addr string, client *mongo.Client) {
	t.Helper()

	addr = startMongod(t, append([]string{"--keyFile", shared.cluster.KeyFile()}, args...)...)

	u, err := url.Parse(shared.cluster.Shard(0).URI())
	require.NoError(t, err)

	password, _ := u.User.Password()
	client, err = mongo.Connect(options.Client().SetHosts([]string{addr}).SetDirect(true).SetServerSelectionTimeout(time.Second).
		SetAuth(options.Credential{AuthMechanism: "SCRAM-SHA-256", AuthSource: "local", Username: "__system", Password: password}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })

	eventually(t, time.Minute, "mongod answers", func() error { return client.Ping(t.Context(), nil) })

	return addr, client
}

func TestAddShardRefusals(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".taken", bson.D{{"k", "hashed"}})

	standalone, _ := extraMongod(t)
	member, client := extraMongod(t, "--replSet", "extra")

	require.NoError(t, client.Database("admin").RunCommand(t.Context(), bson.D{{"replSetInitiate", bson.D{
		{"_id", "extra"}, {"members", bson.A{bson.D{{"_id", 0}, {"host", member}}}},
	}}}).Err())
	eventually(t, time.Minute, "a primary", func() error {
		_, err := client.Database(db).Collection("taken").InsertOne(t.Context(), bson.D{{"_id", 1}})
		if code(err) == 11000 {
			return nil
		}

		return err
	})

	existing := shared.cluster.Shard(1)
	router0 := shared.cluster.Router(0).Addr()
	e := func(key string, value any) bson.E { return bson.E{Key: key, Value: value} }

	var ports proc.Ports

	free, err := ports.Pick()
	require.NoError(t, err)

	nobody := proc.Loopback(free)

	for _, test := range []struct {
		name   string
		target any
		codes  []int
		more   []bson.E
	}{
		{"not a string", 5, []int{9}, nil},
		{"empty", "", []int{9}, nil},
		{"no hosts", "extra/", []int{9}, nil},
		{"maxSize", "extra/" + member, []int{72}, []bson.E{e("maxSize", 1)}},
		{"loopback mixed with others", "extra/" + member + ",192.0.2.1:27017", []int{72}, nil},
		{"empty name", "extra/" + member, []int{2}, []bson.E{e("name", "")}},
		{"name config", "extra/" + member, []int{2}, []bson.E{e("name", "config")}},
		{"unknown field", "extra/" + member, []int{40415}, []bson.E{e("noSuchField", 1)}},
		{"a name that is taken", "extra/" + member, []int{20, 96}, []bson.E{e("name", existing.Name())}},
		{"hosts that are taken, another name", existing.Connection(), []int{20}, []bson.E{e("name", "other")}},
		{"hosts that are taken, another set", "other/" + existing.Member(0).Addr(), []int{20}, nil},
		{"standalone", standalone, []int{96, 20}, nil},
		{"standalone as a set", "extra/" + standalone, []int{96, 20}, nil},
		{"wrong set name", "wrong/" + member, []int{96}, nil},
		{"a router", router0, []int{96, 20}, nil},
		{"a router as a set", "extra/" + router0, []int{96, 20}, nil},
		{"nobody there", "extra/" + nobody, []int{6, 96, 133}, nil},
		{"a namespace that is known elsewhere", "extra/" + member, []int{96}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			begin := time.Now()
			cmd := append(bson.D{{"addShard", test.target}}, test.more...)
			err := router(t, 1).Database("admin").RunCommand(opContext(t, opLimit), cmd).Err()
			require.Contains(t, test.codes, code(err), "%v: %v", cmd, err)
			require.Less(t, time.Since(begin), 30*time.Second)

			// Nobody's password is told.
			require.NotContains(t, err.Error(), password(t))
		})
	}

	// The same again is no error.
	reply := admin(t, 1, bson.D{{"addShard", existing.Connection()}})
	require.Equal(t, existing.Name(), reply.Lookup("shardAdded").StringValue())

	var rows struct{ Shards []bson.Raw }

	require.NoError(t, bson.Unmarshal(admin(t, 0, bson.D{{"listShards", 1}}), &rows))
	require.Len(t, rows.Shards, shardCount, "what was refused is not there")

	for i, row := range rows.Shards {
		require.Equal(t, fmt.Sprint("shard_", i), row.Lookup("_id").StringValue(), "in order")
		require.Equal(t, shared.cluster.Shard(i).Connection(), row.Lookup("host").StringValue())
		require.Equal(t, int32(1), row.Lookup("state").Int32())
	}

	// No user of a router's is left on what was refused.
	cur, err := client.Database("admin").Collection("system.users").Find(t.Context(), bson.D{})
	require.Empty(t, all(t, cur, err))
}

// password is the text of the cluster's keyfile.
func password(t *testing.T) string {
	t.Helper()

	text, err := os.ReadFile(shared.cluster.KeyFile())
	require.NoError(t, err)

	return strings.TrimSpace(string(text))
}
