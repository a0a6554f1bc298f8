package compat

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// updatesOn lists the running updates of a namespace on a shard.
func updatesOn(t *testing.T, i int, ns string) []bson.Raw {
	t.Helper()

	cur, err := shard(t, i).Database("admin").Aggregate(opContext(t, opLimit), mongo.Pipeline{
		{{"$currentOp", bson.D{{"allUsers", true}}}},
		{{"$match", bson.D{{"ns", ns}, {"active", true}, {"op", "update"}}}},
	})

	return all(t, cur, err)
}

// What a killed router left running on a shard has ended before DDL passes the next incarnation.
func TestKilledRoutersWriteEndsBeforeDDL(t *testing.T) {
	const docs = 100

	db := newDB(t)
	ns := db + ".slow"
	coll := router(t, 0).Database(db).Collection("slow")

	var list []any
	for i := range docs {
		list = append(list, bson.D{{"_id", i}, {"k", i}})
	}

	_, err := coll.InsertMany(opContext(t, opLimit), list)
	require.NoError(t, err)

	_, err = coll.Indexes().CreateOne(opContext(t, opLimit), mongo.IndexModel{Keys: bson.D{{"k", 1}}})
	require.NoError(t, err)

	home := 0
	for i := range shardCount {
		if n, err := shard(t, i).Database(db).Collection("slow").EstimatedDocumentCount(t.Context()); err == nil && n > 0 {
			home = i
		}
	}

	done := make(chan struct{})
	c := router(t, victim).Database(db).Collection("slow")
	ctx := opContext(t, opLimit)

	go func() {
		defer close(done)

		_, _ = c.UpdateMany(ctx, bson.D{{"$where", "sleep(300); return true"}}, bson.D{{"$set", bson.D{{"done", true}}}})
	}()

	eventually(t, recoverLimit, "the update runs", func() error {
		if len(updatesOn(t, home, ns)) == 0 {
			return fmt.Errorf("not yet")
		}

		return nil
	})
	down(t, shared.cluster.Router(victim))
	up(t, shared.cluster.Router(victim))
	eventually(t, recoverLimit, "DDL works again", func() error {
		return router(t, 1).Database("admin").RunCommand(opContext(t, opLimit), bson.D{{"shardCollection", ns}, {"key", bson.D{{"k", 1}}}}).Err()
	})
	require.Empty(t, updatesOn(t, home, ns), "nothing of the dead router runs behind the barrier")
	<-done
	require.Less(t, count(t, coll, bson.D{{"done", true}}), int64(docs))
}

// A router that is started again while a shard is dead holds up what lies on that shard, and nothing else.
func TestRouterRestartedWithAShardDown(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})
	down(t, shared.cluster.Router(victim))
	down(t, shared.cluster.Shard(2).Member(0))
	up(t, shared.cluster.Router(victim))

	for i := range shardCount {
		eventually(t, recoverLimit, "a new collection is made", func() error {
			return router(t, i%2).Database(db).CreateCollection(opContext(t, opLimit), fmt.Sprint("new", i))
		})

		begin := time.Now()
		require.NoError(t, router(t, i%2).Database(db).Collection(fmt.Sprint("new", i)).Drop(opContext(t, opLimit)))
		require.Less(t, time.Since(begin), 15*time.Second)
	}

	up(t, shared.cluster.Shard(2).Member(0))
	eventually(t, recoverLimit, "what lies on the shard can be changed again", func() error {
		return router(t, 1).Database(db).Collection("c").Drop(opContext(t, opLimit))
	})
	eventually(t, recoverLimit, "the dead router's user is dropped", func() error {
		if now := routerUsers(t, 2); len(now) != routerCount {
			return fmt.Errorf("%v", now)
		}

		return nil
	})
}

// serve runs a router beside the cluster's until it ends by itself, and returns what it said.
func serve(t *testing.T, args ...string) (string, error) {
	t.Helper()

	config := filepath.Join(shared.cluster.Dir(), fmt.Sprintf("router-%d.yaml", victim))
	out, err := exec.CommandContext(opContext(t, opLimit), clustertest.Binary(t), append([]string{"serve", "--config", config}, args...)...).CombinedOutput()

	return string(out), err
}

// A second start of a running router does nothing to it; one with its name on another port takes over, and the first stops.
func TestSecondRouterOfAName(t *testing.T) {
	ctx := opContext(t, opLimit)
	db := router(t, 0).Database(newDB(t))
	addr := shared.cluster.Router(victim).Addr()

	out, err := serve(t)
	require.Error(t, err)
	require.Contains(t, out, "listen")
	require.Contains(t, out, addr)
	require.NoError(t, db.CreateCollection(ctx, "a"), "its row is as it was, and it answers")
	ok(t, admin(t, victim, bson.D{{"ping", 1}}))

	thief := make(chan error, 1)
	started, stop := context.WithCancel(ctx)

	go func() {
		config := filepath.Join(shared.cluster.Dir(), fmt.Sprintf("router-%d.yaml", victim))
		cmd := exec.CommandContext(started, clustertest.Binary(t), "serve", "--config", config, "--listen", "127.0.0.1:0", "--advertise", addr)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		thief <- cmd.Run()
	}()
	t.Cleanup(func() { up(t, shared.cluster.Router(victim)) })

	select {
	case <-shared.cluster.Router(victim).Done():
	case err := <-thief:
		t.Fatalf("the second one ended: %v", err)
	case <-ctx.Done():
		t.Fatal("the first one goes on")
	}

	log, err := os.ReadFile(shared.cluster.Router(victim).Log())
	require.NoError(t, err)
	require.Contains(t, string(log), "another router runs under this name")
	require.NoError(t, db.CreateCollection(ctx, "b"), "the second one acknowledges")
	stop()
	require.ErrorIs(t, <-thief, context.Canceled, "it ended in order")
	require.NoError(t, db.CreateCollection(ctx, "c"), "and is gone when it has ended")
}

// An operation that runs for long keeps changes of its own collection waiting, and no others.
func TestLongOperationHoldsItsCollectionAlone(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, opLimit)
	coll := router(t, 0).Database(db).Collection("slow")

	for i := range 40 {
		_, err := coll.InsertOne(ctx, bson.D{{"_id", i}})
		require.NoError(t, err)
	}

	found, dropped := make(chan error, 1), make(chan error, 1)
	slow := router(t, 1).Database(db).Collection("slow")

	finding, enough := context.WithCancel(ctx)
	defer enough()

	go func() {
		found <- slow.FindOne(finding, bson.D{{"$where", "sleep(1500); return false"}}).Err()
	}()
	eventually(t, recoverLimit, "the find runs", func() error {
		for i := range shardCount {
			cur, err := shard(t, i).Database("admin").Aggregate(ctx, mongo.Pipeline{
				{{"$currentOp", bson.D{{"allUsers", true}}}}, {{"$match", bson.D{{"ns", db + ".slow"}, {"active", true}}}},
			})
			if len(all(t, cur, err)) > 0 {
				return nil
			}
		}

		return fmt.Errorf("not yet")
	})

	go func() { dropped <- coll.Drop(ctx) }()
	eventually(t, recoverLimit, "the collection is fenced", func() error {
		err := router(t, 2).Database(db).RunCommand(t.Context(), bson.D{{"count", "slow"}, {"maxTimeMS", 100}}).Err()
		if code(err) == 50 {
			return nil
		}

		return fmt.Errorf("not yet: %w", err)
	})

	begin := time.Now()

	for r := range routerCount {
		require.NoError(t, router(t, r).Database(db).CreateCollection(ctx, fmt.Sprint("other", r)))
		require.NoError(t, router(t, r).Database(db).Collection(fmt.Sprint("other", r)).Drop(ctx))
	}

	t.Logf("six changes elsewhere took %v", time.Since(begin).Round(time.Millisecond))

	select {
	case err := <-dropped:
		t.Fatalf("dropped under a running find: %v", err)
	case err := <-found:
		t.Fatalf("they waited for the find: %v", err)
	default:
	}

	enough() // its client leaves, and so it ends
	require.ErrorIs(t, <-found, context.Canceled)

	if err := <-dropped; err != nil {
		require.Equal(t, 46, code(err), "it may have waited for too long: %v", err)
	}

	eventually(t, recoverLimit, "the collection can be dropped", func() error { return coll.Drop(ctx) })
}
