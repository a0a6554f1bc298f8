package compat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// settled waits until no movement of a collection is under way, and returns where it is.
func settled(t testing.TB, db, coll string) int {
	t.Helper()

	var home int

	eventually(t, recoverLimit, "it can be moved to where it is", func() error {
		home = homeOf(t, 0, db+"."+coll)

		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		defer cancel()

		return router(t, 0).Database("admin").RunCommand(ctx, bson.D{{"moveCollection", db + "." + coll}, {"toShard", shardNames()[home]}}).Err()
	})

	return home
}

func newMoving(t *testing.T) string {
	t.Helper()

	db := newDB(t)
	require.NoError(t, router(t, 0).Database(db).CreateCollection(t.Context(), "c"))
	_, err := router(t, 0).Database(db).Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{"u", 1}}, Options: options.Index().SetUnique(true)})
	require.NoError(t, err)

	return db
}

// A collection moves to and fro while it is used through all routers.
func TestMoveUnderLoad(t *testing.T) {
	db := newMoving(t)
	w := startWorkload(t, db, false, 0, 1, 2)
	rnd := random(t)
	moved := 0

	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		to := otherThan(homeOf(t, 0, db+".c"))

		err := moveTo(t, rnd.IntN(routerCount), db+".c", to)
		if code(err) == 46 {
			continue // cursors still read the former copy
		}

		require.NoError(t, err)

		moved++
	}

	require.Greater(t, moved, 3)
	w.check()
	aloneOn(t, db, "c", settled(t, db, "c"))
	t.Logf("moved %d times", moved)
}

// stopping is a router that is to stop at a step of a movement.
type stopping struct {
	t    *testing.T
	step string
	file string
}

// stopAt has a router stop at a step, when it comes there.
func stopAt(t *testing.T, r int, step string) *stopping {
	t.Helper()

	s := &stopping{t: t, step: step, file: filepath.Join(shared.failpoints, "move-"+step)}
	require.NoError(t, os.WriteFile(s.file, []byte(shared.cluster.Router(r).Addr()), 0o600))
	t.Cleanup(s.release)

	return s
}

// release lets it go on.
func (s *stopping) release() { _, _ = os.Remove(s.file), os.Remove(s.file+".reached") }

func (s *stopping) reached() error {
	_, err := os.Stat(s.file + ".reached")
	return err
}

// wait waits until it is at the step.
func (s *stopping) wait() {
	s.t.Helper()
	eventually(s.t, recoverLimit, "the step "+s.step, s.reached)
}

// begin begins a movement and waits until the router is at the step; what the movement ends with comes later. A movement that does
// not come there, since it is refused for a moment or another router has done the step, is begun anew.
func (s *stopping) begin(move func() error) <-chan error {
	s.t.Helper()

	result := make(chan error, 1)

	var begun atomic.Bool

	go func() {
		for end := time.Now().Add(recoverLimit); ; time.Sleep(pollEvery) {
			err := move()
			if begun.Load() || s.reached() == nil || time.Now().After(end) {
				result <- err
				return
			}

			fmt.Fprintf(os.Stderr, "compat: a movement did not come to the step %s: %v\n", s.step, err)
		}
	}()

	s.wait()
	begun.Store(true)

	return result
}

var errWrong = errors.New("that is wrong")

// someOf is one of the faults for an ordinary run, all of them with COMPAT_CHAOS.
func someOf(rnd *rand.Rand, faults ...string) []string {
	if os.Getenv("COMPAT_CHAOS") != "" {
		return faults
	}

	return faults[rnd.IntN(len(faults)):][:1]
}

// stepsOf are some of the steps for an ordinary run, all of them with COMPAT_CHAOS.
func stepsOf(rnd *rand.Rand, steps []string) []string {
	if os.Getenv("COMPAT_CHAOS") != "" {
		return steps
	}

	steps = slices.Clone(steps)
	rnd.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })

	return steps[:4]
}

// moveSteps are where a router can be stopped in a movement.
var moveSteps = []string{"shape", "copy", "batch", "follow", "hold", "drain", "catchUp", "record", "switch", "await", "release"}

// The router that moves a collection dies, or is stopped and wakes late, at any step.
func TestMoverFaults(t *testing.T) {
	db := newMoving(t)
	w := startWorkload(t, db, false, 0, 1)
	rnd := random(t)
	v := shared.cluster.Router(victim)

	for _, step := range stepsOf(rnd, moveSteps) {
		for _, fault := range someOf(rnd, "kill", "pause", "stop") {
			t.Run(step+"/"+fault, func(t *testing.T) {
				home := settled(t, db, "c")
				to := otherThan(home)
				aloneOn(t, db, "c", home)

				stopped := stopAt(t, victim, step)
				result := stopped.begin(func() error {
					return router(t, victim).Database("admin").RunCommand(context.Background(), bson.D{{"moveCollection", db + ".c"}, {"toShard", shardNames()[to]}}).Err()
				})

				switch fault {
				case "kill":
					require.NoError(t, v.Kill())
					stopped.release()
					up(t, v)
					require.Error(t, <-result)
				case "stop":
					require.NoError(t, v.Stop(opContext(t, opLimit)))
					stopped.release()
					// Others take up what it has left.
					eventually(t, recoverLimit, "writes flow", func() error {
						ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
						defer cancel()

						_, err := router(t, 1).Database(db).Collection("c").UpdateOne(ctx, bson.D{{"_id", "none"}}, bson.D{{"$inc", bson.D{{"n", 1}}}})

						return err
					})
					aloneOn(t, db, "c", settled(t, db, "c"))
					up(t, v)
					t.Log(<-result)
				default:
					require.NoError(t, v.Pause())
					stopped.release()
					time.Sleep(4 * time.Second) // longer than any of its limits for the switch
					require.NoError(t, v.Resume())
					t.Log(<-result)
				}

				now := settled(t, db, "c")
				aloneOn(t, db, "c", now)

				w.mu.Lock()
				defer w.mu.Unlock()
				require.NoError(t, errors.Join(w.bad...))
			})
		}
	}

	w.check()
}

// The catalog dies at any step, or a shard's primary does.
func TestMoveWhileOthersDie(t *testing.T) {
	db := newMoving(t)
	w := startWorkload(t, db, true, 0, 1)
	rnd := random(t)

	for _, step := range stepsOf(rnd, moveSteps) {
		for _, who := range someOf(rnd, "catalog", "donor", "recipient") {
			t.Run(step+"/"+who, func(t *testing.T) {
				home := settled(t, db, "c")
				to := otherThan(home)
				node := shared.cluster.Postgres()

				switch who {
				case "donor":
					node = shared.cluster.Shard(home).Members()[0]
				case "recipient":
					node = shared.cluster.Shard(to).Members()[0]
				}

				aloneOn(t, db, "c", home)
				stopped := stopAt(t, victim, step)
				result := stopped.begin(func() error { return moveTo(t, victim, db+".c", to) })

				require.NoError(t, node.Kill())
				stopped.release()
				time.Sleep(time.Second) // it is away for some time
				up(t, node)
				t.Log(<-result)

				aloneOn(t, db, "c", settled(t, db, "c"))

				w.mu.Lock()
				defer w.mu.Unlock()
				require.NoError(t, errors.Join(w.bad...))
			})
		}
	}

	w.check()
}

// Another router than the one that moves is stopped at any step, or dies and comes back.
func TestMoveWhileRoutersStop(t *testing.T) {
	db := newMoving(t)
	w := startWorkload(t, db, false, 0, 1)
	rnd := random(t)
	v := shared.cluster.Router(victim)

	for _, step := range stepsOf(rnd, moveSteps) {
		for _, fault := range someOf(rnd, "kill", "pause") {
			t.Run(step+"/"+fault, func(t *testing.T) {
				home := settled(t, db, "c")
				aloneOn(t, db, "c", home)

				stopped := stopAt(t, 0, step)
				result := stopped.begin(func() error { return moveTo(t, 0, db+".c", otherThan(home)) })

				if fault == "kill" {
					require.NoError(t, v.Kill())
				} else {
					require.NoError(t, v.Pause())
				}

				stopped.release()
				time.Sleep(3 * time.Second) // longer than the switch waits for it

				if fault == "kill" {
					up(t, v)
				} else {
					require.NoError(t, v.Resume())
				}

				require.NoError(t, <-result)
				require.Equal(t, otherThan(home), settled(t, db, "c"))
			})
		}
	}

	w.check()
}
