package compat

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// A router is not shut out while a member that can be read has not heard of it.
func TestEvictionReachesSecondaries(t *testing.T) {
	c := clustertest.Start(t, cluster.Options{Shards: 1, Members: 3, Routers: 2})
	client := connect(t, c.RouterURI(0))
	d := client.Database("d")

	require.NoError(t, d.CreateCollection(opContext(t, opLimit), "c"))

	var docs []any
	for i := range 200 {
		docs = append(docs, bson.D{{"_id", i}})
	}

	_, err := connect(t, c.RouterURI(1)).Database("d").Collection("other").InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	var (
		lagging *mongo.Client
		members []*mongo.Client
	)

	for _, n := range c.Shard(0).Members() {
		var hello struct{ Secondary bool }

		m := member(t, c, n)
		members = append(members, m)
		require.NoError(t, m.Database("admin").RunCommand(t.Context(), bson.D{{"hello", 1}}).Decode(&hello))

		if hello.Secondary {
			lagging = m
		}
	}

	lag := func(mode string) {
		require.NoError(t, lagging.Database("admin").RunCommand(opContext(t, opLimit), bson.D{{"configureFailPoint", "rsSyncApplyStop"}, {"mode", mode}}).Err())
	}

	// It reads at a secondary, for longer than it takes to evict it.
	found := make(chan error, 1)
	long, enough := context.WithCancel(t.Context())
	slow := connect(t, c.RouterURI(1)).Database("d").Collection("other", options.Collection().SetReadPreference(readpref.Secondary()))

	defer enough()

	go func() {
		found <- slow.FindOne(long, bson.D{{"$where", "sleep(300); return false"}}).Err()
	}()

	reading := func() (read bool) {
		for _, m := range members {
			cur, err := m.Database("admin").Aggregate(opContext(t, opLimit), mongo.Pipeline{
				{{"$currentOp", bson.D{{"allUsers", true}}}}, {{"$match", bson.D{{"ns", "d.other"}, {"active", true}}}},
			})
			read = read || len(all(t, cur, err)) > 0
		}

		return read
	}

	eventually(t, recoverLimit, "a secondary is read", func() error {
		if reading() {
			return nil
		}

		return errors.New("not yet")
	})
	lag("alwaysOn")
	require.NoError(t, c.Router(1).Pause())
	t.Cleanup(func() { _ = c.Router(1).Resume() })

	err = d.RunCommand(t.Context(), bson.D{{"drop", "c"}}).Err()
	require.Equal(t, 46, code(err), "%v", err)
	require.ErrorContains(t, err, "not shut out of shard_0")

	lag("off")
	eventually(t, recoverLimit, "it is shut out", func() error {
		return d.RunCommand(t.Context(), bson.D{{"drop", "c"}}).Err()
	})
	require.False(t, reading(), "nothing of it is read any more")
	enough()
	require.NoError(t, c.Router(1).Resume())
	require.Error(t, <-found)

	other := connect(t, c.RouterURI(1)).Database("d").Collection("other")
	_, err = other.InsertOne(opContext(t, opLimit), bson.D{{"_id", "new"}})
	require.NoError(t, err)
	require.NoError(t, other.Drop(opContext(t, opLimit)))
}
