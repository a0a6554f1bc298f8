package compat

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// threeMembers starts a cluster of one shard with three members, and returns a client of its
// router.
func threeMembers(t *testing.T) (*cluster.Cluster, *mongo.Client) {
	t.Helper()

	c := clustertest.Start(t, cluster.Options{Shards: 1, Members: 3, Routers: 1})
	client, err := mongo.Connect(options.Client().ApplyURI(c.RouterURI(0)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })

	return c, client
}

// member is a client of one member alone.
func member(t *testing.T, c *cluster.Cluster, n *cluster.Node) *mongo.Client {
	t.Helper()

	uri := c.Shard(0).URI()
	at := strings.Index(uri, "@")
	end := at + strings.Index(uri[at:], "/")
	uri = uri[:at+1] + n.Addr() + uri[end:]
	direct, err := mongo.Connect(options.Client().ApplyURI(uri).SetDirect(true))
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Disconnect(context.Background()) })

	return direct
}

// TestElectionsAreNotSeen: a shard's primary steps down, is killed, and comes back, while
// clients with the drivers' own settings write and read. None of them sees an error, and each
// acknowledged write is there once (CASES.md A7).
func TestElectionsAreNotSeen(t *testing.T) {
	c, client := threeMembers(t)
	coll := client.Database("d").Collection("c")
	_, err := coll.InsertOne(t.Context(), bson.D{{"_id", "counter"}, {"n", 0}})
	require.NoError(t, err)

	var (
		wg                     sync.WaitGroup
		done                   = make(chan struct{})
		failed                 = make(chan error, 100)
		inserted, raised, read atomic.Int64
	)

	work := func(n *atomic.Int64, do func(i int64) error) {
		wg.Go(func() {
			for i := int64(0); ; i++ {
				select {
				case <-done:
					return
				default:
				}

				if err := do(i); err != nil {
					failed <- err
					return
				}

				n.Add(1)
			}
		})
	}
	work(&inserted, func(i int64) error {
		_, err := coll.InsertOne(opContext(t, opLimit), bson.D{{"i", i}})
		return err
	})
	work(&raised, func(int64) error {
		res, err := coll.UpdateOne(opContext(t, opLimit), bson.D{{"_id", "counter"}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
		if err == nil && res.MatchedCount != 1 {
			err = fmt.Errorf("%d documents matched", res.MatchedCount)
		}

		return err
	})
	work(&read, func(int64) error { return coll.FindOne(opContext(t, opLimit), bson.D{{"_id", "counter"}}).Err() })

	// goesOn waits until all of them have done something more.
	goesOn := func(after string) {
		t.Helper()

		i, u, r := inserted.Load(), raised.Load(), read.Load()
		eventually(t, opLimit, "work goes on after "+after, func() error {
			select {
			case err := <-failed:
				t.Fatalf("after %s: %v", after, err)
			default:
			}

			if inserted.Load() < i+5 || raised.Load() < u+5 || read.Load() < r+5 {
				return fmt.Errorf("%d inserted, %d raised, %d read", inserted.Load()-i, raised.Load()-u, read.Load()-r)
			}

			return nil
		})
	}

	goesOn("the start")

	old, err := c.Shard(0).Primary(t.Context())
	require.NoError(t, err)
	require.NoError(t, member(t, c, old).Database("admin").RunCommand(t.Context(), bson.D{{"replSetStepDown", 20}, {"secondaryCatchUpPeriodSecs", 10}}).Err())
	goesOn("a step-down")

	eventually(t, opLimit, "there is another primary", func() error {
		now, err := c.Shard(0).Primary(t.Context())
		if err == nil && now == old {
			err = fmt.Errorf("%s still is", now.Addr())
		}

		return err
	})

	killed, err := c.Shard(0).Primary(t.Context())
	require.NoError(t, err)
	require.NoError(t, killed.Kill())
	goesOn("a kill")
	require.NoError(t, killed.Start(opContext(t, opLimit)))
	goesOn("its return")
	close(done)
	wg.Wait()
	require.Empty(t, failed)

	var doc bson.Raw

	require.NoError(t, coll.FindOne(t.Context(), bson.D{{"_id", "counter"}}).Decode(&doc))
	require.Equal(t, raised.Load(), int64(doc.Lookup("n").Int32()))
	require.Equal(t, inserted.Load()+1, count(t, coll, bson.D{}))
}

// TestReadPreferences: a read goes to a member that suits, by mode, tags and staleness.
func TestReadPreferences(t *testing.T) {
	c, client := threeMembers(t)
	db := client.Database("d")
	_, err := db.Collection("c").InsertOne(t.Context(), bson.D{{"_id", 1}})
	require.NoError(t, err)

	primary, err := c.Shard(0).Primary(t.Context())
	require.NoError(t, err)

	var config struct {
		Config bson.D `bson:"config"`
	}

	admin := member(t, c, primary).Database("admin")
	require.NoError(t, admin.RunCommand(t.Context(), bson.D{{"replSetGetConfig", 1}}).Decode(&config))

	var tagged string

	for i, e := range config.Config {
		switch e.Key {
		case "version":
			config.Config[i].Value = e.Value.(int32) + 1
		case "members":
			for j, m := range e.Value.(bson.A) {
				d := m.(bson.D)
				for k := range d {
					if d[k].Key != "tags" {
						continue
					}

					place := "west"
					if host := get(d, "host").(string); host != primary.Addr() && tagged == "" {
						place, tagged = "east", host
					}

					d[k].Value = bson.D{{"place", place}}
				}

				e.Value.(bson.A)[j] = d
			}
		}
	}

	require.NotEmpty(t, tagged)
	require.NoError(t, admin.RunCommand(t.Context(), bson.D{{"replSetReconfig", config.Config}}).Err())

	// served says which member has answered.
	served := func(pref bson.D) (string, error) {
		raw, err := db.RunCommand(t.Context(), bson.D{
			{"explain", bson.D{{"find", "c"}}}, {"verbosity", "queryPlanner"}, {"$readPreference", pref},
		}).Raw()
		if err != nil {
			return "", err
		}

		info := raw.Lookup("serverInfo")

		return fmt.Sprintf("127.0.0.1:%d", info.Document().Lookup("port").Int32()), nil
	}

	eventually(t, opLimit, "the tags are known", func() error {
		at, err := served(bson.D{{"mode", "secondary"}, {"tags", bson.A{bson.D{{"place", "east"}}}}})
		if err == nil && at != tagged {
			err = fmt.Errorf("%s has answered", at)
		}

		return err
	})

	for _, x := range []struct {
		pref bson.D
		at   func(addr string) bool
	}{
		{bson.D{{"mode", "primary"}}, func(a string) bool { return a == primary.Addr() }},
		{bson.D{{"mode", "primaryPreferred"}}, func(a string) bool { return a == primary.Addr() }},
		{bson.D{{"mode", "secondary"}}, func(a string) bool { return a != primary.Addr() }},
		{bson.D{{"mode", "secondaryPreferred"}, {"maxStalenessSeconds", 90}}, func(a string) bool { return a != primary.Addr() }},
		{bson.D{{"mode", "nearest"}, {"tags", bson.A{bson.D{{"place", "east"}}}}}, func(a string) bool { return a == tagged }},
		{bson.D{{"mode", "secondary"}, {"tags", bson.A{bson.D{{"place", "nowhere"}}, bson.D{{"place", "east"}}}}}, func(a string) bool { return a == tagged }},
		{bson.D{{"mode", "secondaryPreferred"}, {"tags", bson.A{bson.D{{"place", "nowhere"}}}}}, func(a string) bool { return a == primary.Addr() }},
	} {
		for range 5 {
			at, err := served(x.pref)
			require.NoError(t, err, "%v", x.pref)
			require.True(t, x.at(at), "%v: %s", x.pref, at)
		}
	}

	_, err = served(bson.D{{"mode", "secondary"}, {"maxStalenessSeconds", 30}})
	require.Equal(t, 160, code(err), "%v", err)

	err = db.RunCommand(t.Context(), bson.D{
		{"find", "c"}, {"$readPreference", bson.D{{"mode", "secondary"}, {"tags", bson.A{bson.D{{"place", "nowhere"}}}}}}, {"maxTimeMS", 1000},
	}).Err()
	require.Contains(t, []int{50, 133}, code(err), "%v", err)
}
