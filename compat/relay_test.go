package compat

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// relayDocs is how many documents the tests of this file read.
const relayDocs = 600

// relayed makes a sharded collection "c" and one on a single shard, "one".
func relayed(t *testing.T) (db string) {
	t.Helper()
	db = newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	var docs []any
	for i := range relayDocs {
		docs = append(docs, bson.D{{"_id", i}})
	}

	for _, coll := range []string{"c", "one"} {
		_, err := router(t, 0).Database(db).Collection(coll).InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false))
		require.NoError(t, err)
	}

	return db
}

// idsIn reads the documents' ids of a batch.
func idsIn(t testing.TB, reply bson.Raw, name string) (list []int) {
	t.Helper()

	for _, v := range batch(t, reply, name) {
		list = append(list, int(v.Document().Lookup("_id").AsInt64()))
	}

	return list
}

// everyID checks that each document was given once.
func everyID(t testing.TB, got []int, what string) {
	t.Helper()
	sort.Ints(got)
	require.Len(t, got, relayDocs, what)

	for i, id := range got {
		require.Equal(t, i, id, what)
	}
}

// Any router serves any cursor: it has the one do it that opened it. What that one would refuse is refused.
func TestCursorsAtAnotherRouter(t *testing.T) {
	db := relayed(t)
	conns := []*rawConn{dialRaw(t, 0), dialRaw(t, 1), dialRaw(t, victim)}

	for _, coll := range []string{"c", "one"} {
		for _, lsid := range []bson.D{session(), nil} {
			with := func(cmd bson.D) bson.D {
				if lsid != nil {
					cmd = append(cmd, bson.E{Key: "lsid", Value: lsid})
				}

				return append(cmd, bson.E{Key: "$db", Value: db})
			}
			more := func(id int64) bson.D { return with(bson.D{{"getMore", id}, {"collection", coll}, {"batchSize", 7}}) }
			open := func(c *rawConn) (int64, bson.Raw) {
				r := ok(t, c.run(with(bson.D{{"find", coll}, {"batchSize", 3}})))
				return r.Lookup("cursor", "id").Int64(), r
			}

			// Batch by batch at one router after the other.
			id, r := open(conns[0])
			got := idsIn(t, r, "firstBatch")

			for i := 1; id != 0; i++ {
				r := ok(t, conns[i%len(conns)].run(more(id)))
				require.Equal(t, db+"."+coll, r.Lookup("cursor", "ns").StringValue())
				got = append(got, idsIn(t, r, "nextBatch")...)
				next := r.Lookup("cursor", "id").Int64()
				require.Contains(t, []int64{0, id}, next)
				id = next
			}

			everyID(t, got, coll)
			require.NotEmpty(t, r.Lookup("$clusterTime"))

			// Refusals, which change nothing.
			id, _ = open(conns[1])
			wrong := with(bson.D{{"getMore", id}, {"collection", "other"}})
			refused(t, conns[0].run(wrong), 13, "Unauthorized")

			other := bson.D{{"getMore", id}, {"collection", coll}, {"lsid", session()}, {"$db", db}}
			if lsid == nil {
				require.Equal(t, int32(50799), conns[0].run(other).Lookup("code").Int32())
			} else {
				require.Equal(t, int32(50801), conns[0].run(other).Lookup("code").Int32())
			}

			require.Len(t, idsIn(t, ok(t, conns[0].run(more(id))), "nextBatch"), 7)

			// Killed from elsewhere, together with cursors of several routers and some that are not there.
			mine, _ := open(conns[0])
			third, _ := open(conns[2])
			fourth, _ := open(conns[2])
			never := id ^ 0x5a5a5a
			nobody := int64(30000)<<48 | 7
			r = ok(t, conns[0].run(with(bson.D{{"killCursors", coll}, {"cursors", bson.A{third, never, id, mine, nobody, fourth, mine}}})))
			require.Equal(t, fmt.Sprint([]int64{third, id, mine, fourth}), fmt.Sprint(int64s(t, r, "cursorsKilled")))
			require.Equal(t, fmt.Sprint([]int64{never, nobody, mine}), fmt.Sprint(int64s(t, r, "cursorsNotFound")))

			for _, gone := range []int64{third, never, id, mine, nobody, fourth, -5} {
				for _, c := range conns {
					refused(t, c.run(more(gone)), 43, "CursorNotFound")
				}
			}
		}
	}

	require.Eventually(t, func() bool { return openOnShards(t, db+".c")+openOnShards(t, db+".one") == 0 }, opLimit, pollEvery)

	// The way between routers is not for others.
	bad := bson.D{{"_shardgateRelay", 1}, {"uid", make([]byte, 32)}, {"command", bson.D{{"getMore", int64(1)}, {"collection", "c"}, {"$db", db}}}, {"$db", "admin"}}
	refused(t, conns[0].run(bad), 13, "Unauthorized")
	ok(t, conns[0].run(bson.D{{"_shardgateRelay", 1}, {"nonce", make([]byte, 32)}, {"$db", "admin"}}))
	refused(t, conns[0].run(bson.D{{"_shardgateRelay", 1}, {"proof", make([]byte, 32)}, {"$db", "admin"}}), 18, "AuthenticationFailed")
	refused(t, conns[0].run(bad), 13, "Unauthorized")
}

// int64s reads an array of numbers.
func int64s(t testing.TB, reply bson.Raw, name string) (list []int64) {
	t.Helper()

	values, err := reply.Lookup(name).Array().Values()
	require.NoError(t, err)

	for _, v := range values {
		list = append(list, v.Int64())
	}

	return list
}

// A cursor is gone with its router, and another router says so; one that takes the place does not have it either.
func TestCursorsOfARouterThatIsGone(t *testing.T) {
	db := relayed(t)
	lsid := session()
	r := ok(t, dialRaw(t, victim).run(bson.D{{"find", "c"}, {"batchSize", 3}, {"lsid", lsid}, {"$db", db}}))
	more := bson.D{{"getMore", r.Lookup("cursor", "id").Int64()}, {"collection", "c"}, {"batchSize", 3}, {"lsid", lsid}, {"$db", db}}
	c := dialRaw(t, 0)
	ok(t, c.run(more)) // its connection to the other router is then one that ends

	down(t, shared.cluster.Router(victim))
	refused(t, c.run(more), 43, "CursorNotFound")
	refused(t, c.run(more), 43, "CursorNotFound")
	kill := bson.D{{"killCursors", "c"}, {"cursors", bson.A{more[0].Value}}, {"$db", db}}
	require.Len(t, int64s(t, ok(t, c.run(kill)), "cursorsNotFound"), 1)
	up(t, shared.cluster.Router(victim))
	refused(t, c.run(more), 43, "CursorNotFound")

	r = ok(t, dialRaw(t, victim).run(bson.D{{"find", "c"}, {"batchSize", 3}, {"lsid", lsid}, {"$db", db}}))
	more[0].Value = r.Lookup("cursor", "id").Int64()
	require.Len(t, batch(t, ok(t, c.run(more)), "nextBatch"), 3, "the new one is known at once")
}

// A balancer that knows nothing of the protocol stands before two routers, and the driver does not know of it: it sends what belongs to a cursor on
// any connection.
func TestDriverBehindABalancer(t *testing.T) {
	db := relayed(t)
	addr := startBalancer(t, inTurn, shared.cluster.Router(0).Addr(), shared.cluster.Router(1).Addr())

	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/?directConnection=true&maxPoolSize=20&minPoolSize=20"))
	require.NoError(t, err)

	defer func() { require.NoError(t, client.Disconnect(context.WithoutCancel(t.Context()))) }()

	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			coll := client.Database(db).Collection([]string{"c", "one"}[i%2])
			o := options.Find().SetBatchSize(int32(20 + rand.IntN(40)))
			if i%4 < 2 {
				o.SetSort(bson.D{{"_id", 1}})
			}

			cur, err := coll.Find(t.Context(), bson.D{}, o)
			if err != nil {
				t.Error(err)
				return
			}

			if i%5 == 4 { // one that is left alone
				cur.Next(t.Context())

				if err := cur.Close(t.Context()); err != nil {
					t.Error(err)
				}

				return
			}

			var docs []struct {
				ID int `bson:"_id"`
			}
			if err := cur.All(t.Context(), &docs); err != nil {
				t.Error(err)
				return
			}

			seen := map[int]bool{}
			for _, d := range docs {
				seen[d.ID] = true
			}

			if len(docs) != relayDocs || len(seen) != relayDocs {
				t.Errorf("%d documents, %d different ones", len(docs), len(seen))
			}
		})
	}

	wg.Wait()
	require.Eventually(t, func() bool { return openOnShards(t, db+".c")+openOnShards(t, db+".one") == 0 }, opLimit, pollEvery)
}

// With loadBalanced a driver knows of the balancer and asks each connection which router it has got.
func TestLoadBalanced(t *testing.T) {
	hello := func(c *rawConn, more ...bson.E) bson.Raw {
		return c.run(append(append(bson.D{{"hello", 1}}, more...), bson.E{Key: "$db", Value: "admin"}))
	}
	services := map[bson.ObjectID]bool{}

	for r := range routerCount {
		c, again := dialRaw(t, r), dialRaw(t, r)
		on := bson.E{Key: "loadBalanced", Value: true}
		id := ok(t, hello(c, on)).Lookup("serviceId").ObjectID()
		require.Equal(t, id, ok(t, hello(again, on)).Lookup("serviceId").ObjectID(), "the same for all connections of a router")
		services[id] = true

		for _, off := range []bson.D{{}, {{"loadBalanced", false}}, {{"loadBalanced", nil}}} {
			require.Equal(t, bson.Type(0), ok(t, hello(c, off...)).Lookup("serviceId").Type)
		}

		require.Equal(t, int32(14), hello(c, bson.E{Key: "loadBalanced", Value: "yes"}).Lookup("code").Int32())
	}

	require.Len(t, services, routerCount, "each router has its own")

	db := relayed(t)
	addr := startBalancer(t, inTurn, shared.cluster.Router(0).Addr(), shared.cluster.Router(1).Addr())
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/?loadBalanced=true"))
	require.NoError(t, err)

	defer func() { require.NoError(t, client.Disconnect(context.WithoutCancel(t.Context()))) }()

	coll := client.Database(db).Collection("one")

	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			err := client.UseSession(t.Context(), func(ctx context.Context) error {
				_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
					if _, err := coll.InsertOne(ctx, bson.D{{"_id", 10000 + i}}); err != nil {
						return nil, err
					}

					cur, err := coll.Find(ctx, bson.D{{"_id", bson.D{{"$lt", relayDocs}}}}, options.Find().SetBatchSize(50))
					if err != nil {
						return nil, err
					}

					var docs []bson.Raw
					if err := cur.All(ctx, &docs); err != nil {
						return nil, err
					}

					if len(docs) != relayDocs {
						return nil, fmt.Errorf("%d documents", len(docs))
					}

					return nil, nil
				})

				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	require.Equal(t, int64(8), count(t, coll, bson.D{{"_id", bson.D{{"$gte", 10000}}}}))
}
