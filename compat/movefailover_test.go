package compat

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// replicated has the rest of a test use a cluster of its own, whose shards have three members.
func replicated(t *testing.T) {
	t.Helper()

	if os.Getenv("COMPAT_CHAOS") == "" {
		t.Skip("nine mongods: with COMPAT_CHAOS only")
	}

	old := shared.cluster

	t.Cleanup(func() { shared.cluster = old })

	shared.cluster = clustertest.Start(t, cluster.Options{
		Shards: shardCount, Members: 3, Routers: routerCount, RouterEnv: []string{"SHARDGATE_TEST_FAILPOINTS=" + shared.failpoints},
	})
}

// The primary of the donor or of the recipient dies at any step, and another member takes over.
func TestMoveThroughFailovers(t *testing.T) {
	replicated(t)

	db := newMoving(t)
	w := startWorkload(t, db, true, 0, 1)
	rnd := random(t)

	for _, step := range stepsOf(rnd, moveSteps) {
		t.Run(step, func(t *testing.T) {
			home := settled(t, db, "c")
			to := otherThan(home)
			dies := []int{home, to}[rnd.IntN(2)]

			aloneOn(t, db, "c", home)

			stopped := stopAt(t, victim, step)
			result := stopped.begin(func() error { return moveTo(t, victim, db+".c", to) })

			node, err := shared.cluster.Shard(dies).Primary(opContext(t, opLimit))
			require.NoError(t, err)
			require.NoError(t, node.Kill())
			stopped.release()
			t.Log(<-result)

			now := settled(t, db, "c")

			// Secondaries have it as a whole, or wait until they have.
			coll := router(t, 1).Database(db).Collection("c", options.Collection().SetReadPreference(readpref.SecondaryPreferred()))
			n, err := coll.CountDocuments(context.Background(), bson.D{{"still", bson.D{{"$exists", true}}}})
			require.NoError(t, err)
			require.Equal(t, int64(still), n)

			up(t, node)
			aloneOn(t, db, "c", now)

			w.mu.Lock()
			defer w.mu.Unlock()
			require.NoError(t, errors.Join(w.bad...))
		})
	}

	w.check()
}
