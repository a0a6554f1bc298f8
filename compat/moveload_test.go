package compat

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// workload is a checker: it writes all the time, one writer for each key, and knows what every acknowledged write has left.
type workload struct {
	t       *testing.T
	db      string
	routers []int // that it uses
	mortal  bool  // shards die, and cursors with them
	keyed   bool  // the collection is sharded by k
	stop    chan struct{}
	done    sync.WaitGroup
	ops     atomic.Int64
	slowest atomic.Int64 // in ns
	many    atomic.Int64 // how often all that stay were changed

	mu   sync.Mutex
	want map[string]int64 // guarded by mu: n of each document, absent: there is none
	bad  []error          // guarded by mu
}

const (
	writers   = 6
	perKey    = 20 // keys of a writer
	still     = 500
	keyValues = 1000 // values of the shard key
)

// startWorkload fills the collection "c" and begins.
func startWorkload(t *testing.T, db string, mortal bool, routers ...int) *workload {
	t.Helper()

	w := &workload{t: t, db: db, mortal: mortal, routers: routers, stop: make(chan struct{}), want: map[string]int64{}}
	w.start()

	return w
}

// start fills the collection and begins.
func (w *workload) start() {
	w.t.Helper()

	t, db, routers := w.t, w.db, w.routers

	var docs []bson.D
	for i := range still {
		id := fmt.Sprint("still ", i)
		docs = append(docs, bson.D{{"_id", id}, {"still", i}, {"many", 0}, {"u", id}, {"k", keyOf(id)}})
	}

	_, err := router(t, 0).Database(db).Collection("c").InsertMany(opContext(t, opLimit), docs)
	require.NoError(t, err)

	seed := random(t).Uint64()

	for i := range writers {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))

		w.done.Go(func() { w.write(i, rnd) })
	}

	for i := range routers {
		w.done.Go(func() { w.read(routers[i]) })
	}

	if w.keyed && !w.mortal {
		w.done.Go(w.writeMany)
	}

	t.Cleanup(func() { w.end() })
}

// keyOf is the shard key of a document.
func keyOf(id string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))

	return int32(h.Sum32() % keyValues)
}

// writeMany changes all documents that stay, and each of them once.
func (w *workload) writeMany() {
	for w.running() {
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		coll := router(w.t, w.routers[int(w.many.Load())%len(w.routers)]).Database(w.db).Collection("c")
		res, err := coll.UpdateMany(ctx, bson.D{{"many", bson.D{{"$exists", true}}}}, bson.D{{"$inc", bson.D{{"many", 1}}}})

		cancel()

		if err == nil && (res.MatchedCount != still || res.ModifiedCount != still) {
			err = fmt.Errorf("matched %d, modified %d: %w", res.MatchedCount, res.ModifiedCount, errWrong)
		}

		if err != nil {
			w.fail("writer of many: %w", err)
			return
		}

		w.many.Add(1)
	}
}

func (w *workload) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}

	w.done.Wait()
}

func (w *workload) running() bool {
	select {
	case <-w.stop:
		return false
	default:
		return true
	}
}

func (w *workload) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.bad = append(w.bad, fmt.Errorf("%v "+format, append([]any{time.Now().UTC().Format("15:04:05.000")}, args...)...))
}

// write changes the writer's own documents; u is unique and wanders between them.
func (w *workload) write(writer int, rnd *rand.Rand) {
	for round := 0; w.running(); round++ {
		coll := router(w.t, w.routers[rnd.IntN(len(w.routers))]).Database(w.db).Collection("c")
		id := fmt.Sprint("w", writer, " ", rnd.IntN(perKey))

		w.mu.Lock()
		n, exists := w.want[id]
		w.mu.Unlock()

		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		begin := time.Now()
		next, left, err := w.one(ctx, coll, id, n, exists, rnd)

		cancel()

		if took := int64(time.Since(begin)); took > w.slowest.Load() {
			w.slowest.Store(took)
		}

		if err != nil {
			w.fail("writer %d, %s: %w", writer, id, err)
			return
		}

		w.ops.Add(1)
		w.mu.Lock()
		if left {
			w.want[id] = next
		} else {
			delete(w.want, id)
		}
		w.mu.Unlock()
	}
}

// one runs one write and returns what it leaves.
func (w *workload) one(ctx context.Context, coll *mongo.Collection, id string, n int64, exists bool, rnd *rand.Rand) (next int64, left bool, err error) {
	byID := bson.D{{"_id", id}}
	if w.keyed && rnd.IntN(3) > 0 { // else its shard must be looked for
		byID = append(byID, bson.E{Key: "k", Value: keyOf(id)})
	}

	switch {
	case !exists && w.keyed && rnd.IntN(2) == 0:
		set := bson.D{{"u", id}}
		if len(byID) == 1 {
			set = append(set, bson.E{Key: "k", Value: keyOf(id)})
		}

		_, err = coll.UpdateOne(ctx, byID, bson.D{{"$inc", bson.D{{"n", int64(1)}}}, {"$setOnInsert", set}}, options.UpdateOne().SetUpsert(true))

		return 1, true, err
	case !exists:
		_, err = coll.InsertOne(ctx, bson.D{{"_id", id}, {"n", int64(1)}, {"u", id}, {"k", keyOf(id)}})
		return 1, true, err
	case rnd.IntN(8) == 0:
		res, err := coll.DeleteOne(ctx, byID)
		if err == nil && res.DeletedCount != 1 {
			err = fmt.Errorf("deleted %d", res.DeletedCount)
		}

		return 0, false, err
	case rnd.IntN(3) == 0:
		var doc struct{ N int64 }

		err = coll.FindOneAndUpdate(ctx, byID, bson.D{{"$inc", bson.D{{"n", 1}}}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&doc)
		if err == nil && doc.N != n+1 {
			err = fmt.Errorf("n is %d, not %d", doc.N, n+1)
		}

		return n + 1, true, err
	default:
		res, err := coll.UpdateOne(ctx, byID, bson.D{{"$inc", bson.D{{"n", 1}}}})
		if err == nil && res.ModifiedCount != 1 {
			err = fmt.Errorf("modified %d", res.ModifiedCount)
		}

		return n + 1, true, err
	}
}

// read counts and scans what never changes, in small batches.
func (w *workload) read(r int) {
	coll := router(w.t, r).Database(w.db).Collection("c")
	filter := bson.D{{"still", bson.D{{"$exists", true}}}}

	for w.running() {
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		err := func() error {
			n, err := coll.CountDocuments(ctx, filter)
			if err == nil && n != still {
				err = errWrong
			}

			if err != nil {
				return fmt.Errorf("counted %d: %w", n, err)
			}

			cur, err := coll.Find(ctx, filter, options.Find().SetBatchSize(37).SetSort(bson.D{{"still", 1}}))
			if err != nil {
				return err
			}

			var docs []bson.Raw
			if err := cur.All(ctx, &docs); err != nil {
				return err
			}

			if len(docs) != still {
				return fmt.Errorf("found %d: %w", len(docs), errWrong)
			}

			for i, d := range docs {
				if d.Lookup("still").Int32() != int32(i) {
					return fmt.Errorf("found %s at %d: %w", d, i, errWrong)
				}
			}

			return nil
		}()

		cancel()

		if code(err) == 175 && w.keyed {
			continue // it was resharded: a cursor of before has ended
		}

		if err != nil && w.running() && (!w.mortal || errors.Is(err, errWrong)) {
			w.fail("reader at router %d: %w", r, err)
			return
		}
	}
}

// check ends the workload and compares what is there with what must be.
func (w *workload) check() {
	w.t.Helper()
	w.end()

	w.mu.Lock()
	defer w.mu.Unlock()

	require.NoError(w.t, errors.Join(w.bad...))

	for _, r := range w.routers {
		cur, err := router(w.t, r).Database(w.db).Collection("c").Find(opContext(w.t, opLimit), bson.D{{"n", bson.D{{"$exists", true}}}})

		got := map[string]int64{}
		for _, d := range all(w.t, cur, err) {
			got[d.Lookup("_id").StringValue()] = d.Lookup("n").Int64()
		}

		require.Equal(w.t, w.want, got, "router %d", r)
	}

	n, err := router(w.t, 0).Database(w.db).Collection("c").CountDocuments(opContext(w.t, opLimit), bson.D{{"many", w.many.Load()}})
	require.NoError(w.t, err)
	require.Equal(w.t, int64(still), n, "changed %d times", w.many.Load())

	w.t.Logf("%d writes, the slowest took %v", w.ops.Load(), time.Duration(w.slowest.Load()))
}
