package compat

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	// opLimit bounds one ordinary operation of a test.
	opLimit   = 60 * time.Second
	pollEvery = 25 * time.Millisecond
)

// connect returns a client of a URI that lives until the run ends.
func connect(t testing.TB, uri string) *mongo.Client {
	t.Helper()

	shared.mu.Lock()
	defer shared.mu.Unlock()

	if c := shared.clients[uri]; c != nil {
		return c
	}

	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(20 * time.Second))
	require.NoError(t, err)

	shared.clients[uri] = c

	return c
}

// router returns a client of one router.
func router(t testing.TB, i int) *mongo.Client {
	t.Helper()

	return connect(t, shared.cluster.RouterURI(i))
}

// shard returns a client that asks one shard directly.
func shard(t testing.TB, i int) *mongo.Client {
	t.Helper()

	return connect(t, shared.cluster.Shard(i).URI())
}

// shardNames lists the shards' ids.
func shardNames() []string {
	var names []string
	for _, s := range shared.cluster.Shards() {
		names = append(names, s.Name())
	}

	return names
}

// shardIndex turns a shard's id into its number.
func shardIndex(t testing.TB, name string) int {
	t.Helper()

	n, err := strconv.Atoi(strings.TrimPrefix(name, "shard_"))
	require.NoError(t, err)

	return n
}

// opContext returns a context for the operations of a test.
func opContext(t testing.TB, limit time.Duration) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)

	return ctx
}

// newDB returns the name of a database that only this test uses; it is dropped at the end.
func newDB(t testing.TB) string {
	t.Helper()

	h := fnv.New32a()
	_, _ = h.Write([]byte(t.Name()))

	name := strings.ToLower(strings.TrimPrefix(strings.NewReplacer("/", "_", " ", "_", ".", "_", "$", "_").Replace(t.Name()), "Test"))
	name = fmt.Sprintf("c_%.40s_%x", name, h.Sum32())

	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		defer cancel()

		if err := router(t, 0).Database(name).Drop(ctx); err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})

	return name
}

// admin runs a command on a router's admin database.
func admin(t testing.TB, r int, cmd bson.D) bson.Raw {
	t.Helper()

	raw, err := router(t, r).Database("admin").RunCommand(opContext(t, opLimit), cmd).Raw()
	require.NoError(t, err, "%v", cmd)

	return raw
}

// shardCollection shards a collection through a router.
func shardCollection(t testing.TB, r int, ns string, key bson.D, more ...bson.E) {
	t.Helper()

	admin(t, r, append(bson.D{{"shardCollection", ns}, {"key", key}}, more...))
}

// code returns the code that a server answered with, 0 for no error and -1 for an error without one.
func code(err error) int {
	if err == nil {
		return 0
	}

	var command mongo.CommandError
	if errors.As(err, &command) {
		return int(command.Code)
	}

	var write mongo.WriteException
	if errors.As(err, &write) {
		for _, e := range write.WriteErrors {
			return e.Code
		}

		if write.WriteConcernError != nil {
			return write.WriteConcernError.Code
		}
	}

	var bulk mongo.BulkWriteException
	if errors.As(err, &bulk) && len(bulk.WriteErrors) > 0 {
		return bulk.WriteErrors[0].Code
	}

	return -1
}

// eventually polls a condition until it holds.
func eventually(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()

	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(pollEvery) {
		if err = check(); err == nil {
			return
		}
	}

	require.NoError(t, err, "%s, after %v", what, limit)
}

// random returns a source whose seed is printed and can be given by COMPAT_SEED.
func random(t testing.TB) *rand.Rand {
	t.Helper()

	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("COMPAT_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)

		seed = n
	}

	t.Logf("COMPAT_SEED=%d", seed)

	return rand.New(rand.NewPCG(seed, 1))
}

// count runs the count command.
func count(t testing.TB, c *mongo.Collection, filter any) int64 {
	t.Helper()

	n, err := c.CountDocuments(opContext(t, opLimit), filter)
	require.NoError(t, err)

	return n
}

// all reads a cursor to its end.
func all(t testing.TB, cur *mongo.Cursor, err error) []bson.Raw {
	t.Helper()
	require.NoError(t, err)

	var docs []bson.Raw
	require.NoError(t, cur.All(opContext(t, opLimit), &docs))

	return docs
}
