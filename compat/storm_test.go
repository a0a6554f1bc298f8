package compat

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A storm: so many clients, and so few connections to each shard.
const (
	stormClients = 300
	stormConns   = 10
)

// storm has each client do something at the same time and returns what went wrong, if anything did.
func storm(clients []*rawConn, do func(i int, c *rawConn) error) error {
	errs := make([]error, len(clients))

	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			if err := do(i, c); err != nil {
				errs[i] = fmt.Errorf("client %d: %w", i, err)
			}
		})
	}

	wg.Wait()

	return errors.Join(errs...)
}

// asks sends a command and returns the code of the answer.
func (c *rawConn) asks(cmd bson.D) (int, error) {
	if _, err := c.Write(c.msg(0, c.body(cmd))); err != nil {
		return 0, err
	}

	m, err := c.read()
	if err != nil {
		return 0, err
	}

	n, _ := m.Body.Lookup("code").AsInt64OK()

	return int(n), nil
}

// TestConnectionStorm: many clients come at once, and again when a shard has been silent (CASES.md A29). The router's own connections stay as
// few as it was told, who waits for one keeps to the time limit, and the other shards' clients notice nothing.
func TestConnectionStorm(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}})

	keys := keysOn(t, db+".c", 1)
	silent, other := keys["shard_0"][0], keys["shard_1"][0]
	_, err := router(t, 0).Database(db).Collection("c").InsertMany(t.Context(), []any{bson.D{{"k", silent}}, bson.D{{"k", other}}},
		options.InsertMany().SetOrdered(false))
	require.NoError(t, err)

	addr, _, _ := aside(t, "storm:1", fmt.Sprint("SHARDGATE_SHARDS_MAXCONNS=", stormConns), "SHARDGATE_SHARDS_MAXCONNECTING=2")
	clients := make([]*rawConn, stormClients)
	find := func(k int32, more ...bson.E) bson.D {
		return append(bson.D{{"find", "c"}, {"filter", bson.D{{"k", k}}}, {"$db", db}}, more...)
	}
	works := func(i int, c *rawConn) error {
		code, err := c.asks(find([]int32{silent, other}[i%2]))
		if err == nil && code != 0 {
			err = fmt.Errorf("code %d", code)
		}

		return err
	}
	few := func() {
		t.Helper()

		for i := range 2 {
			cur, err := shard(t, i).Database("admin").Aggregate(t.Context(), bson.A{
				bson.D{{"$currentOp", bson.D{{"allUsers", true}, {"idleConnections", true}}}},
				bson.D{{"$match", bson.D{{"appName", bson.D{{"$regex", "storm:1"}}}, {"effectiveUsers.user", bson.D{{"$regex", "^shardgate-"}}}}}},
			})
			n := len(all(t, cur, err))
			require.NotZero(t, n)
			require.LessOrEqual(t, n, stormConns)
		}
	}

	t.Cleanup(func() {
		for _, c := range clients {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	require.NoError(t, storm(clients, func(i int, _ *rawConn) error {
		nc, err := net.DialTimeout("tcp", addr, rawLimit)
		if err != nil {
			return err
		}

		clients[i] = &rawConn{Conn: nc, t: t}

		return works(i, clients[i])
	}))
	few()

	member := shared.cluster.Shard(0).Member(0)
	require.NoError(t, member.Pause())
	t.Cleanup(func() { _ = member.Resume() })
	require.NoError(t, storm(clients, func(i int, c *rawConn) error {
		if i%2 == 1 {
			return works(i, c)
		}

		code, err := c.asks(find(silent, bson.E{Key: "maxTimeMS", Value: 700}))
		if err == nil && code != 50 {
			err = fmt.Errorf("code %d, should be 50", code)
		}

		return err
	}))
	require.NoError(t, member.Resume())
	require.NoError(t, storm(clients, works))
	few()
}
