package compat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	evictAfter = 10 * time.Second // routers.evictAfter
	// evictLimit is how long whatever waits for a router that does not answer may take.
	evictLimit = evictAfter + 10*time.Second
)

// lingering lists what the shards still have of a router: its users, and what runs or is open by its connections.
func lingering(t *testing.T, users []string) (left []string) {
	t.Helper()

	for i := range shardCount {
		for _, u := range routerUsers(t, i) {
			for _, old := range users {
				if u == old {
					left = append(left, u)
				}
			}
		}

		cur, err := shard(t, i).Database("admin").Aggregate(opContext(t, opLimit), mongo.Pipeline{
			{{"$currentOp", bson.D{{"allUsers", true}, {"idleSessions", true}}}},
			{{"$match", bson.D{{"appName", bson.D{{"$regex", strings.Join(users, "|")}}}}}},
		})
		for _, op := range all(t, cur, err) {
			left = append(left, op.String())
		}
	}

	return left
}

// victimsUsers lists the users of the victim: those that come when it is started again.
func victimsUsers(t *testing.T) []string {
	t.Helper()

	before := routerUsers(t, 0)

	require.NoError(t, shared.cluster.Router(victim).Restart(opContext(t, opLimit)))

	var users []string

	eventually(t, recoverLimit, "its new user", func() error {
		users = nil

		for _, u := range routerUsers(t, 0) {
			known := false
			for _, old := range before {
				known = known || u == old
			}

			if !known {
				users = append(users, u)
			}
		}

		if len(users) != 1 {
			return fmt.Errorf("%v", users)
		}

		return nil
	})

	_, err := router(t, victim).Database("admin").RunCommand(opContext(t, opLimit), bson.D{{"ping", 1}}).Raw()
	require.NoError(t, err)

	return users
}

// slowUpdate begins an update of many documents, of which each takes a while, and returns when it runs.
func slowUpdate(t *testing.T, r int, db, coll string) (home int, result <-chan error) {
	t.Helper()

	var docs []any
	for i := range 300 {
		docs = append(docs, bson.D{{"_id", i}})
	}

	_, err := router(t, 0).Database(db).Collection(coll).InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	home = homeOf(t, 0, db+"."+coll)
	done := make(chan error, 1)
	client := router(t, r).Database(db).Collection(coll)

	go func() {
		_, err := client.UpdateMany(context.Background(), bson.D{{"$where", "sleep(200); return true"}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
		done <- err
	}()

	eventually(t, recoverLimit, "the update runs", func() error {
		if len(updatesOn(t, home, db+"."+coll)) == 0 {
			return fmt.Errorf("not yet")
		}

		return nil
	})

	return home, done
}

// commit commits a session's transaction through another router than its own.
func commit(t *testing.T, r int, s *mongo.Session, shard string) bson.Raw {
	t.Helper()

	return dialRaw(t, r).run(bson.D{
		{"commitTransaction", 1},
		{"$db", "admin"},
		{"lsid", s.ID()},
		{"txnNumber", int64(1)},
		{"autocommit", false},
		{"recoveryToken", bson.D{{"recoveryShardId", shard}}},
	})
}

// inTime runs something that waits for a router that does not answer, and must not wait for longer than it takes to evict it.
func inTime(t *testing.T, from time.Time, what string, do func(ctx context.Context) error) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), opLimit)
	defer cancel()

	err := do(ctx)
	t.Logf("%s after %v", what, time.Since(from).Round(10*time.Millisecond))

	if err != nil {
		t.Errorf("%s: %v", what, err)
	}

	if took := time.Since(from); took > evictLimit {
		t.Errorf("%s took %v", what, took)
	}
}

// changes are metadata operations and movements of what a router has in use, all at once.
func changes(t *testing.T, r int, db string, from time.Time) {
	t.Helper()

	done := make(chan struct{}, 5)
	d := router(t, r).Database(db)
	adm := router(t, r).Database("admin")
	home := homeOf(t, r, db+".moved")

	for what, do := range map[string]func(ctx context.Context) error{
		"drop": func(ctx context.Context) error { return d.RunCommand(ctx, bson.D{{"drop", "dropped"}}).Err() },
		"createIndexes": func(ctx context.Context) error {
			_, err := d.Collection("open").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"x", 1}}})
			return err
		},
		"shardCollection": func(ctx context.Context) error {
			return adm.RunCommand(ctx, bson.D{{"shardCollection", db + ".slow"}, {"key", bson.D{{"_id", 1}}}}).Err()
		},
		"moveCollection": func(ctx context.Context) error {
			return adm.RunCommand(ctx, bson.D{{"moveCollection", db + ".moved"}, {"toShard", shardNames()[otherThan(home)]}}).Err()
		},
		"create": func(ctx context.Context) error { return d.CreateCollection(ctx, "new") },
	} {
		go func() {
			defer func() { done <- struct{}{} }()
			inTime(t, from, what, do)
		}()
	}

	for range 5 {
		<-done
	}
}

// inUse makes the collections of changes.
func inUse(t *testing.T, db string) {
	t.Helper()

	for _, coll := range []string{"dropped", "open", "slow", "moved"} {
		require.NoError(t, router(t, 0).Database(db).CreateCollection(opContext(t, opLimit), coll))
	}
}

// A router that is stopped while it has a transaction open and an update running is shut out: changes and movements go on without
// it, nothing of it can be committed elsewhere, and when it wakes up it writes nothing and serves again by itself.
func TestStoppedRouterIsEvicted(t *testing.T) {
	users := victimsUsers(t)
	db := newDB(t)
	inUse(t, db)

	_, update := slowUpdate(t, victim, db, "slow")
	// A client of its own: commit takes these for the first transactions of their sessions.
	own, err := mongo.Connect(options.Client().ApplyURI(shared.cluster.RouterURI(victim)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = own.Disconnect(context.Background()) })

	openCtx, open := begin(t, own.Database(db).Collection("open"), bson.D{{"_id", 1}})
	moveCtx, move := begin(t, own.Database(db).Collection("moved"), bson.D{{"_id", 1}})
	former := map[string]int{"open": homeOf(t, 0, db+".open"), "moved": homeOf(t, 0, db+".moved")}

	v := shared.cluster.Router(victim)
	require.NoError(t, v.Pause())
	t.Cleanup(func() { _ = v.Resume() })

	from := time.Now()

	// It gets these when it wakes up.
	late := make(chan error, 2)
	for _, coll := range []string{"moved", "dropped"} {
		c := router(t, victim).Database(db).Collection(coll)

		go func() {
			_, err := c.InsertOne(context.Background(), bson.D{{"_id", "late"}})
			late <- err
		}()
	}

	once := bson.D{
		{"update", "counted"},
		{"$db", db},
		{"updates", bson.A{bson.D{{"q", bson.D{{"_id", 1}}}, {"u", bson.D{{"$inc", bson.D{{"n", 1}}}}}, {"upsert", true}}}},
		{"lsid", session()},
		{"txnNumber", int64(1)},
	}
	first := dialRaw(t, victim)
	first.write(first.msg(0, first.body(once)))

	changes(t, 0, db, from)
	require.Empty(t, lingering(t, users))
	ok(t, dialRaw(t, 1).run(once))

	for coll, s := range map[string]*mongo.Session{"open": open, "moved": move} {
		refused(t, commit(t, 1, s, shardNames()[former[coll]]), 251, "NoSuchTransaction")
		require.Zero(t, count(t, router(t, 0).Database(db).Collection(coll), bson.D{}))
	}

	slow := router(t, 1).Database(db).Collection("slow")
	partly := count(t, slow, bson.D{{"n", 1}})
	require.Less(t, partly, int64(300))

	require.NoError(t, v.Resume())

	woken := time.Now()

	for range 2 {
		require.NoError(t, <-late, "the driver has tried again")
	}

	if m, err := first.read(); err == nil {
		require.InDelta(t, 1, m.Body.Lookup("ok").Double(), 0, "no error but that of a connection: %s", m.Body)
	}

	ok(t, dialRaw(t, victim).run(once))
	t.Logf("it serves again %v after it woke up", time.Since(woken).Round(10*time.Millisecond))
	require.Error(t, <-update)
	require.Error(t, open.CommitTransaction(openCtx))
	require.Error(t, move.CommitTransaction(moveCtx))

	use := router(t, victim).Database(db).Collection("moved")
	_, err = use.InsertOne(opContext(t, opLimit), bson.D{{"_id", "again"}})
	require.NoError(t, err)

	for r := range routerCount {
		d := router(t, r).Database(db)
		require.Equal(t, int64(2), count(t, d.Collection("moved"), bson.D{}))
		require.Equal(t, int64(1), count(t, d.Collection("dropped"), bson.D{}), "a new one")
		require.Equal(t, int64(1), count(t, d.Collection("counted"), bson.D{{"n", 1}}))
		require.Equal(t, partly, count(t, d.Collection("slow"), bson.D{{"n", 1}}))
		require.Zero(t, count(t, d.Collection("slow"), bson.D{{"n", bson.D{{"$gt", 1}}}}))
	}

	// All is as before: one user each, and changes wait for nobody.
	eventually(t, recoverLimit, "its users", func() error {
		for i := range shardCount {
			if now := routerUsers(t, i); len(now) != routerCount {
				return fmt.Errorf("%v", now)
			}
		}

		return nil
	})
	require.Empty(t, lingering(t, users))

	begin := time.Now()
	require.NoError(t, router(t, victim).Database(db).Collection("slow").Drop(opContext(t, opLimit)))
	require.Less(t, time.Since(begin), 5*time.Second)
}

// A router that is killed and never comes back holds nothing up for longer than it takes to evict it: not what its writes run on
// without it, nor what its movement has left.
func TestDeadRouterIsEvicted(t *testing.T) {
	for _, step := range someOf(random(t), "batch", "drain", "switch", "await") {
		t.Run(step, func(t *testing.T) {
			users := victimsUsers(t)
			db := newDB(t)
			inUse(t, db)

			_, err := router(t, 0).Database(db).Collection("dropped").InsertOne(opContext(t, opLimit), bson.D{{"_id", 1}})
			require.NoError(t, err)

			// A lock of it is in the way of the first, its movement in that of the second.
			dropped := homeOf(t, 0, db+".dropped")
			client := router(t, victim)
			stopped := stopAt(t, victim, step)
			stopped.begin(func() error {
				return client.Database("admin").RunCommand(context.Background(), bson.D{
					{"moveCollection", db + ".dropped"}, {"toShard", shardNames()[otherThan(dropped)]},
				}).Err()
			})
			slowUpdate(t, victim, db, "slow")
			begin(t, router(t, victim).Database(db).Collection("open"), bson.D{{"_id", 1}})
			down(t, shared.cluster.Router(victim))
			stopped.release()

			from := time.Now()

			t.Run("changes", func(t *testing.T) {
				inTime(t, from, "a write", func(ctx context.Context) error {
					_, err := router(t, 1).Database(db).Collection("dropped").InsertOne(ctx, bson.D{{"_id", 2}})
					return err
				})

				eventually(t, evictLimit, "the movement is undone or finished", func() error {
					_, there := uuidOn(t, otherThan(dropped), db, "dropped")
					if home := homeOf(t, 0, db+".dropped"); there != (home == otherThan(dropped)) {
						return fmt.Errorf("on shard %d: %v, home %d", otherThan(dropped), there, home)
					}

					return errors.Join(router(t, 0).Database("admin").RunCommand(t.Context(),
						bson.D{{"moveCollection", db + ".dropped"}, {"toShard", shardNames()[homeOf(t, 0, db+".dropped")]}}).Err())
				})
				require.Equal(t, int64(2), count(t, router(t, 0).Database(db).Collection("dropped"), bson.D{}))
				changes(t, 1, db, from)
			})
			require.Empty(t, lingering(t, users))
			up(t, shared.cluster.Router(victim))
			use := router(t, victim).Database(db).Collection("moved")
			_, err = use.InsertOne(opContext(t, opLimit), bson.D{{"_id", 1}})
			require.NoError(t, err)
		})
	}
}

// Collections move, and are written to through all routers, while one is stopped for longer than it takes to evict it and wakes up.
func TestMoveWhileARouterIsEvicted(t *testing.T) {
	db := newMoving(t)
	w := startWorkload(t, db, true, 0, 1, victim)
	v := shared.cluster.Router(victim)

	for round := range len(someOf(random(t), "once", "twice")) {
		require.NoError(t, v.Pause())
		t.Cleanup(func() { _ = v.Resume() })

		from := time.Now()
		for n := 0; n < 2 || time.Since(from) < evictLimit-5*time.Second; n++ {
			to := otherThan(homeOf(t, 0, db+".c"))
			if err := moveTo(t, n%2, db+".c", to); code(err) != 46 { // cursors of the stopped one are there
				require.NoError(t, err)
			}
		}

		t.Logf("round %d: moved while it was stopped for %v", round, time.Since(from).Round(time.Millisecond))
		require.NoError(t, v.Resume())
		eventually(t, recoverLimit, "it serves", func() error {
			return router(t, victim).Database(db).Collection("c").FindOne(opContext(t, opLimit), bson.D{{"still", 0}}).Err()
		})
		time.Sleep(2 * time.Second) // it is used for a while

		w.mu.Lock()
		bad := errors.Join(w.bad...)
		w.mu.Unlock()
		require.NoError(t, bad)
	}

	w.check()
}

// A router is stopped while it moves a collection, for so long that others take the movement up and move the collection on, to where
// it was and away again. When it wakes up, it goes on with nothing.
func TestEvictedMoverWakes(t *testing.T) {
	db := newMoving(t)
	w := startWorkload(t, db, true, 0, 1)
	rnd := random(t)
	v := shared.cluster.Router(victim)

	for _, step := range someOf(rnd, "batch", "follow", "hold", "drain", "catchUp", "record", "switch", "await", "release", "undo", "clean") {
		t.Run(step, func(t *testing.T) {
			home := settled(t, db, "c")
			to := otherThan(home)
			aloneOn(t, db, "c", home)

			stopped := stopAt(t, victim, step)
			cmd := bson.D{{"moveCollection", db + ".c"}, {"toShard", shardNames()[to]}}
			move := func() error { return router(t, victim).Database("admin").RunCommand(context.Background(), cmd).Err() }

			var result <-chan error

			switch step {
			case "undo":
				cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: 3000})
				first := stopAt(t, victim, "copy")
				result = first.begin(move)

				// It has no more time when it goes on.
				time.Sleep(4 * time.Second)
				first.release()
				stopped.wait()
			case "clean":
				// Any router may be the one that does it.
				require.NoError(t, move())
			default:
				result = stopped.begin(move)
			}

			require.NoError(t, v.Pause())
			t.Cleanup(func() { _ = v.Resume() })

			from := time.Now()

			for range 3 {
				home = settled(t, db, "c")
				eventually(t, recoverLimit, "it moves on", func() error { return moveTo(t, 0, db+".c", otherThan(home)) })
			}

			t.Logf("moved on three times after %v", time.Since(from).Round(time.Millisecond))
			stopped.release()

			if left := evictAfter + 2*time.Second - time.Since(from); left > 0 {
				time.Sleep(left)
			}

			require.NoError(t, v.Resume())
			eventually(t, recoverLimit, "it serves", func() error {
				return router(t, victim).Database(db).Collection("c").FindOne(opContext(t, opLimit), bson.D{{"still", 0}}).Err()
			})

			if result != nil {
				t.Log(<-result)
			}

			aloneOn(t, db, "c", settled(t, db, "c"))

			w.mu.Lock()
			defer w.mu.Unlock()
			require.NoError(t, errors.Join(w.bad...))
		})
	}

	w.check()
}
