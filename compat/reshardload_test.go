package compat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// reshardKeys are keys that the workload's collection can have.
var reshardKeys = []bson.D{{{"k", 1}}, {{"k", "hashed"}}, {{"_id", 1}}, {{"k", 1}, {"_id", 1}}, {{"_id", "hashed"}}, {{"u", 1}, {"k", "hashed"}}}

// otherKey is any of these but the present one.
func otherKey(rnd *rand.Rand, key bson.D) bson.D {
	for {
		if next := reshardKeys[rnd.IntN(len(reshardKeys))]; fmt.Sprint(next) != fmt.Sprint(key) {
			return next
		}
	}
}

// A collection gets one key after another while it is used through all routers; and a chunk moves in between.
func TestReshardUnderLoad(t *testing.T) {
	key := bson.D{{"k", "hashed"}}
	db := newChunked(t, key)
	ns := db + ".c"
	w := startKeyed(t, db, false, 0, 1, 2)
	rnd := random(t)
	times, least := 0, time.Now().Add(6*time.Second)

	for end := time.Now().Add(recoverLimit); times < 1 && time.Now().Before(end) || time.Now().Before(least); times++ {
		next := otherKey(rnd, key)
		require.NoError(t, reshard(t, rnd.IntN(routerCount), ns, next, bson.E{Key: "numInitialChunks", Value: 1 + rnd.IntN(20)}), "%v to %v", key, next)
		noCopies(t, db, "c")

		key = next

		if rnd.IntN(3) == 0 {
			_, _, err := moveAny(t, rnd, rnd.IntN(routerCount), db)
			require.Contains(t, []int{0, 46}, code(err), "%v", err)
		}
	}

	w.check()
	require.Equal(t, still+len(w.want), inPlace(t, db, "c", key))
	t.Logf("resharded %d times, %d times many", times, w.many.Load())
}

// reshardSteps are where a router can be stopped in a resharding.
var reshardSteps = []string{"shape", "copy", "batch", "follow", "hold", "drain", "catchUp", "record", "switch", "swap", "swapped", "undo"}

// resharded waits until no resharding is under way, and returns the key.
func resharded(t testing.TB, db string) bson.D {
	t.Helper()

	var row struct{ Key bson.D }

	eventually(t, recoverLimit, "it can be written to, and has its key", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		defer cancel()

		// To have a lock is to have undone or finished what was left.
		err := router(t, 0).Database("admin").RunCommand(ctx, bson.D{{"setAllowMigrations", db + ".c"}, {"allowMigrations", true}}).Err()

		return errors.Join(err, router(t, 0).Database("config").Collection("collections").FindOne(ctx, bson.D{{"_id", db + ".c"}}).Decode(&row))
	})

	return row.Key
}

// Everything dies or is stopped while a collection is resharded, at any step.
func TestReshardFaults(t *testing.T) {
	db := newChunked(t, bson.D{{"k", 1}})
	ns := db + ".c"
	w := startKeyed(t, db, true, 0, 1)
	rnd := random(t)
	v := shared.cluster.Router(victim)
	steps := stepsOf(rnd, reshardSteps)

	if len(steps) < len(reshardSteps) {
		steps = steps[:2] // each takes some seconds
	}

	for _, step := range steps {
		for _, fault := range someOf(rnd, "kill", "pause", "stop", "other", "catalog", "shard") {
			t.Run(step+"/"+fault, func(t *testing.T) {
				was := resharded(t, db)
				next := otherKey(rnd, was)
				mover := victim

				if fault == "other" {
					mover = 0
				}

				stopped := stopAt(t, mover, step)
				aborted := make(chan error, 1)

				if step == "undo" { // of one that is ended by somebody
					go func() { aborted <- abortResharding(t, 1, ns) }()
				} else {
					close(aborted)
				}

				result := stopped.begin(func() error {
					ctx, cancel := context.WithTimeout(context.Background(), 3*opLimit)
					defer cancel()

					return router(t, mover).Database("admin").RunCommand(ctx, bson.D{{"reshardCollection", ns}, {"key", next}, {"forceRedistribution", true}}).Err()
				})

				switch fault {
				case "kill":
					require.NoError(t, v.Kill())
					stopped.release()
					up(t, v)
				case "stop":
					require.NoError(t, v.Stop(opContext(t, opLimit)))
					stopped.release()
					resharded(t, db)
					up(t, v)
				case "pause", "other":
					require.NoError(t, v.Pause())
					stopped.release()
					time.Sleep(4 * time.Second) // longer than any of the limits for the switch
					require.NoError(t, v.Resume())
				default:
					node := shared.cluster.Postgres()
					if fault == "shard" {
						node = shared.cluster.Shard(rnd.IntN(shardCount)).Members()[0]
					}

					require.NoError(t, node.Kill())
					stopped.release()
					time.Sleep(time.Second) // it is away for some time
					up(t, node)
				}

				t.Log(was, "to", next, <-result, <-aborted)
				is := resharded(t, db)
				require.Contains(t, []string{fmt.Sprint(was), fmt.Sprint(next)}, fmt.Sprint(is))
				noCopies(t, db, "c")
				inPlace(t, db, "c", is)

				w.mu.Lock()
				defer w.mu.Unlock()
				require.NoError(t, errors.Join(w.bad...))
			})
		}
	}

	w.check()
	require.Equal(t, still+len(w.want), inPlace(t, db, "c", resharded(t, db)))
}

// abortResharding ends a resharding as soon as it has begun.
func abortResharding(t testing.TB, r int, ns string) error {
	for end := time.Now().Add(recoverLimit); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), recoverLimit)
		err := router(t, r).Database("admin").RunCommand(ctx, bson.D{{"abortReshardCollection", ns}}).Err()

		cancel()

		if code(err) != 339 || time.Now().After(end) {
			return err
		}
	}
}
