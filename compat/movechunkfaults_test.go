package compat

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// settledChunks waits until no chunk of a collection is under way.
func settledChunks(t testing.TB, db string) {
	t.Helper()

	eventually(t, recoverLimit, "a chunk can be moved to where it is", func() error {
		c := chunksOf(t, 0, db+".c")[0]
		return moveChunk(t, 0, db+".c", &c, shardIndex(t, c.Shard))
	})
}

// chunkSteps are where a router can be stopped while a chunk moves.
func chunkSteps() []string { return append([]string{"announce", "sweep"}, moveSteps...) }

// chunkFaults are what happens at a step: to the router that moves, to another, to the catalog or to a shard.
var chunkFaults = []string{"kill", "pause", "stop", "other", "catalog", "donor", "recipient"}

// Everything dies or is stopped while chunks move, at any step.
func TestMoveChunkFaults(t *testing.T) {
	db := newChunked(t, bson.D{{"k", 1}})
	w := startKeyed(t, db, true, 0, 1)
	rnd := random(t)
	v := shared.cluster.Router(victim)

	for _, step := range stepsOf(rnd, chunkSteps()) {
		for _, fault := range someOf(rnd, chunkFaults...) {
			t.Run(step+"/"+fault, func(t *testing.T) {
				settledChunks(t, db)

				chunks := chunksOf(t, 0, db+".c")
				c := chunks[rnd.IntN(len(chunks))]
				from := shardIndex(t, c.Shard)
				to := (from + 1 + rnd.IntN(shardCount-1)) % shardCount

				mover := victim
				if fault == "other" {
					mover = 0
				}

				stopped := stopAt(t, mover, step)
				result := stopped.begin(func() error { return moveAndSweep(t, mover, db, &c, from, to) })

				switch fault {
				case "kill":
					require.NoError(t, v.Kill())
					stopped.release()
					up(t, v)
				case "stop":
					require.NoError(t, v.Stop(opContext(t, opLimit)))
					stopped.release()
					settledChunks(t, db)
					up(t, v)
				case "pause", "other":
					require.NoError(t, v.Pause())
					stopped.release()
					time.Sleep(4 * time.Second) // longer than any of the limits for the switch
					require.NoError(t, v.Resume())
				default:
					node := shared.cluster.Postgres()

					switch fault {
					case "donor":
						node = shared.cluster.Shard(from).Members()[0]
					case "recipient":
						node = shared.cluster.Shard(to).Members()[0]
					}

					require.NoError(t, node.Kill())
					stopped.release()
					time.Sleep(time.Second) // it is away for some time
					up(t, node)
				}

				t.Log(<-result)
				settledChunks(t, db)
				inPlace(t, db, "c", bson.D{{"k", 1}})

				w.mu.Lock()
				defer w.mu.Unlock()
				require.NoError(t, errors.Join(w.bad...))
			})
		}
	}

	w.check()
	require.Equal(t, still+len(w.want), inPlace(t, db, "c", bson.D{{"k", 1}}))
}

// moveAndSweep moves a chunk and waits until it is gone where it was. Where it has moved before it is brought back first: another
// router may have come to the sweep first.
func moveAndSweep(t *testing.T, mover int, db string, c *chunkDoc, from, to int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*opLimit)
	defer cancel()

	if err := moveChunk(t, 1, db+".c", c, from); err != nil {
		return err
	}

	return router(t, mover).Database("admin").RunCommand(ctx, bson.D{
		{"moveChunk", db + ".c"}, {"bounds", bson.A{c.Min, c.Max}}, {"to", shardNames()[to]}, {"waitForDelete", true},
	}).Err()
}

// A router is stopped while it copies a chunk, or deletes what is left of one. Others finish, and the chunk comes back; when the
// router wakes it does no harm.
func TestMoverSleeps(t *testing.T) {
	for _, step := range someOf(random(t), "sweep", "batch") {
		t.Run(step, func(t *testing.T) {
			const docs = 1000

			db, low, _ := newHalves(t, docs)
			coll := router(t, 0).Database(db).Collection("c")
			v := shared.cluster.Router(victim)
			stopped := stopAt(t, victim, step)
			result := stopped.begin(func() error { return moveAndSweep(t, victim, db, &low, 0, 1) })

			require.NoError(t, v.Pause())
			t.Cleanup(func() { _ = v.Resume() })

			eventually(t, 2*recoverLimit, "others go on", func() error {
				for i, c := range chunksOf(t, 0, db+".c") {
					if err := moveChunk(t, 0, db+".c", &c, i); err != nil {
						return err
					}
				}

				return nil
			})
			require.NoError(t, moveChunk(t, 1, db+".c", &low, 2))
			require.NoError(t, moveChunk(t, 0, db+".c", &low, 0))
			require.Equal(t, docs, inPlace(t, db, "c", bson.D{{"k", 1}}))

			stopped.release()
			require.NoError(t, v.Resume())
			t.Log(<-result)

			eventually(t, recoverLimit, "it serves", func() error {
				n, err := router(t, victim).Database(db).Collection("c").CountDocuments(context.Background(), bson.D{})
				if err == nil && n != docs {
					err = fmt.Errorf("counted %d: %w", n, errWrong)
				}

				return err
			})
			require.Equal(t, int64(docs), count(t, coll, bson.D{}))
			require.Equal(t, docs, inPlace(t, db, "c", bson.D{{"k", 1}}))
		})
	}
}
