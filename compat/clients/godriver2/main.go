// Command godriver2 takes the Go driver, version 2, through every step of ../README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

func main() {
	ctx := context.Background()
	using(ctx, "URI_SEVERAL", nil, func(c *mongo.Client, coll *mongo.Collection) {
		several(ctx, c, coll)
		crud(ctx, coll)
		bulk(ctx, coll)
		cursor(ctx, c)
	})
	using(ctx, "URI_ONE", nil, func(_ *mongo.Client, coll *mongo.Collection) { large(ctx, coll) })
	compression(ctx)
	preferences(ctx)
	monitoring(ctx)
	balanced(ctx)
	retry(ctx)
}

func done(step string, n int) { fmt.Fprintln(os.Stdout, "step", step, n) }

// must ends the program if there is an error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func got[T any](v T, err error) T {
	must(err)
	return v
}

func equal[T comparable](a, want T) {
	if a != want {
		panic(fmt.Sprintf("got %.200v, want %.200v", a, want))
	}
}

func env(name string) string {
	v := os.Getenv(name)
	if v == "" {
		panic(name + " is not set")
	}
	return v
}

// using works with a client of a URI.
func using(ctx context.Context, uri string, o *options.ClientOptions, work func(*mongo.Client, *mongo.Collection)) {
	if o == nil {
		o = options.Client()
	}
	c := got(mongo.Connect(options.MergeClientOptions(options.Client().ApplyURI(env(uri)), o)))
	work(c, c.Database(env("DB")).Collection("c"))
	must(c.Disconnect(ctx))
}

func many(c *mongo.Client) *mongo.Collection {
	db, coll, _ := strings.Cut(env("MANY"), ".")
	return c.Database(db).Collection(coll)
}

type doc struct {
	ID     any    `bson:"_id"`
	N      int    `bson:"n,omitempty"`
	Text   string `bson:"text,omitempty"`
	S      string `bson:"s,omitempty"`
	Writes int    `bson:"writes,omitempty"`
}

func find(ctx context.Context, coll *mongo.Collection, id any) (d doc) {
	must(coll.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&d))
	return d
}

func count(ctx context.Context, cur *mongo.Cursor, err error) (n int) {
	must(err)
	for cur.Next(ctx) {
		n++
	}
	must(cur.Err())
	return n
}

func id(v any) bson.D { return bson.D{{Key: "_id", Value: v}} }

func op(name, field string, v any) bson.D {
	return bson.D{{Key: name, Value: bson.D{{Key: field, Value: v}}}}
}

func several(ctx context.Context, c *mongo.Client, coll *mongo.Collection) {
	equal(coll.FindOne(ctx, id("nobody")).Err(), mongo.ErrNoDocuments)
	// The driver shows its view of the cluster to monitors alone.
	hosts := map[string]bool{}
	var mu sync.Mutex
	seen := make(chan struct{}, 100)
	o := options.Client().SetServerMonitor(&event.ServerMonitor{ServerHeartbeatSucceeded: func(e *event.ServerHeartbeatSucceededEvent) {
		mu.Lock()
		defer mu.Unlock()
		host, _, _ := strings.Cut(e.ConnectionID, "[")
		hosts[host] = true
		seen <- struct{}{}
	}})
	using(ctx, "URI_SEVERAL", o, func(*mongo.Client, *mongo.Collection) {
		for n := 0; n < 2; {
			<-seen
			mu.Lock()
			n = len(hosts)
			mu.Unlock()
		}
	})
	done("several", len(hosts))
}

func crud(ctx context.Context, coll *mongo.Collection) {
	equal(got(coll.InsertOne(ctx, doc{ID: "a", N: 1})).InsertedID, any("a"))
	equal(find(ctx, coll, "a"), doc{ID: "a", N: 1})
	equal(got(coll.UpdateOne(ctx, id("a"), op("$inc", "n", 1))).ModifiedCount, 1)
	equal(got(coll.UpdateOne(ctx, id("b"), op("$set", "n", 5), options.UpdateOne().SetUpsert(true))).UpsertedID, any("b"))
	var d doc
	must(coll.FindOneAndUpdate(ctx, id("b"), op("$inc", "n", 1), options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&d))
	equal(d.N, 6)
	equal(got(coll.ReplaceOne(ctx, id("a"), bson.D{{Key: "n", Value: 7}})).ModifiedCount, 1)
	var docs []doc
	must(got(coll.Find(ctx, op("n", "$gte", 6), options.Find().SetSort(bson.D{{Key: "n", Value: -1}}))).All(ctx, &docs))
	equal(fmt.Sprint(docs), fmt.Sprint([]doc{{ID: "a", N: 7}, {ID: "b", N: 6}}))
	var sums []struct{ Sum int }
	must(got(coll.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: op("n", "$gt", 0)}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "sum", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}},
	})).All(ctx, &sums))
	equal(sums[0].Sum, 13)
	_, err := coll.InsertOne(ctx, doc{ID: "a"})
	equal(mongo.IsDuplicateKeyError(err), true)
	equal(got(coll.DeleteMany(ctx, op("n", "$exists", true))).DeletedCount, 2)
	done("crud", 10)
}

func bulk(ctx context.Context, coll *mongo.Collection) {
	var docs []any
	for i := range 1000 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "bulk", Value: 1}})
	}
	equal(len(got(coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))).InsertedIDs), 1000)
	one := bson.D{{Key: "bulk", Value: 1}}
	result, err := coll.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: 1000}, {Key: "bulk", Value: 1}}),
		mongo.NewInsertOneModel().SetDocument(id(3)),
		mongo.NewUpdateManyModel().SetFilter(append(op("_id", "$lt", 500), one...)).SetUpdate(op("$set", "half", 1)),
		mongo.NewDeleteOneModel().SetFilter(id(7)),
		mongo.NewReplaceOneModel().SetFilter(id(1001)).SetReplacement(one).SetUpsert(true),
	}, options.BulkWrite().SetOrdered(false))
	var failed mongo.BulkWriteException
	equal(errors.As(err, &failed), true)
	equal(len(failed.WriteErrors), 1)
	equal([2]int{failed.WriteErrors[0].Index, failed.WriteErrors[0].Code}, [2]int{1, 11000})
	equal([4]int64{result.InsertedCount, result.ModifiedCount, result.DeletedCount, result.UpsertedCount}, [4]int64{1, 500, 1, 1})
	done("bulk", int(got(coll.CountDocuments(ctx, one))))
}

func cursor(ctx context.Context, c *mongo.Client) {
	cur := got(many(c).Find(ctx, bson.D{}, options.Find().SetBatchSize(5000)))
	n, sum := 0, int64(0)
	for cur.Next(ctx) {
		n++
		sum += cur.Current.Lookup("_id").AsInt64()
	}
	must(cur.Err())
	equal(sum, 4999950000)
	done("cursor", n)
}

func large(ctx context.Context, coll *mongo.Collection) {
	s := strings.Repeat("x", 16<<20-22)
	got(coll.InsertOne(ctx, doc{ID: 5000, S: s}))
	using(ctx, "URI_OTHER", nil, func(_ *mongo.Client, other *mongo.Collection) { equal(find(ctx, other, 5000).S == s, true) })
	_, err := coll.InsertOne(ctx, doc{ID: 5001, S: s + "x"})
	equal(err != nil, true)
	equal(got(coll.CountDocuments(ctx, id(5001))), 0)
	done("large", len(s)+22)
}

func compression(ctx context.Context) {
	text := strings.Repeat("words ", 20000)
	names := []string{"snappy", "zlib", "zstd"}
	for _, name := range names {
		using(ctx, "URI_WATCHED", options.Client().SetCompressors([]string{name}), func(_ *mongo.Client, coll *mongo.Collection) {
			got(coll.InsertOne(ctx, doc{ID: name, Text: text}))
			equal(find(ctx, coll, name).Text, text)
		})
	}
	done("compression", len(names))
}

// listener notes what the driver says of its commands.
type listener struct {
	mu                  sync.Mutex
	begun, ended, modes []string        // guarded by mu
	services            map[string]bool // guarded by mu
	withoutService      bool            // guarded by mu
}

func (l *listener) options() *options.ClientOptions {
	l.services = map[string]bool{}
	return options.Client().SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.begun = append(l.begun, e.CommandName)
			mode, ok := e.Command.Lookup("$readPreference", "mode").StringValueOK()
			if !ok {
				mode = "primary"
			}
			l.modes = append(l.modes, mode)
			if e.ServiceID == nil {
				l.withoutService = true
			} else {
				l.services[e.ServiceID.Hex()] = true
			}
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { l.end(e.CommandName) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { l.end(e.CommandName + " failed") },
	})
}

func (l *listener) end(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, what)
}

func preferences(ctx context.Context) {
	var l listener
	modes := []*readpref.ReadPref{readpref.Primary(), readpref.PrimaryPreferred(), readpref.SecondaryPreferred(), readpref.Nearest()}
	var want []string
	using(ctx, "URI_ONE", l.options(), func(c *mongo.Client, _ *mongo.Collection) {
		for _, mode := range modes {
			coll := c.Database(env("DB")).Collection("c", options.Collection().SetReadPreference(mode))
			cur, err := coll.Find(ctx, bson.D{{Key: "bulk", Value: 1}}, options.Find().SetBatchSize(5000))
			equal(count(ctx, cur, err), 1001)
			want = append(want, mode.Mode().String())
		}
		equal(fmt.Sprint(l.modes), fmt.Sprint(want))
	})
	done("preferences", len(modes))
}

func monitoring(ctx context.Context) {
	var l listener
	using(ctx, "URI_ONE", l.options(), func(c *mongo.Client, coll *mongo.Collection) {
		cur, err := coll.Find(ctx, bson.D{{Key: "bulk", Value: 1}}, options.Find().SetBatchSize(600))
		equal(count(ctx, cur, err), 1001)
		err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "noSuchCommand", Value: 1}}).Err()
		var failed mongo.CommandError
		equal(errors.As(err, &failed) && failed.Code == 59, true)
		equal(slices.Equal(l.begun, []string{"find", "getMore", "noSuchCommand"}), true)
		equal(slices.Equal(l.ended, []string{"find", "getMore", "noSuchCommand failed"}), true)
		done("monitoring", len(l.begun))
	})
}

func balanced(ctx context.Context) {
	var l listener
	total := make(chan int, 4)
	using(ctx, "URI_BALANCED", l.options().SetLoadBalanced(true), func(c *mongo.Client, coll *mongo.Collection) {
		plain := coll.Database().Collection("plain")
		for i := range 4 {
			go func() {
				session := got(c.StartSession())
				defer session.EndSession(ctx)
				n := got(session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
					if _, err := plain.InsertOne(ctx, id(2000+i)); err != nil {
						return nil, err
					}
					cur, err := plain.Find(ctx, op("_id", "$lt", 1000), options.Find().SetBatchSize(100))
					if err != nil {
						return nil, err
					}
					var docs []bson.Raw
					err = cur.All(ctx, &docs)
					return len(docs), err
				})).(int)
				cur, err := many(c).Find(ctx, bson.D{}, options.Find().SetBatchSize(100).SetSort(id(1)).SetLimit(1000))
				total <- n + count(ctx, cur, err)
			}()
		}
		n := 0
		for range 4 {
			n += <-total
		}
		equal(got(plain.CountDocuments(ctx, op("_id", "$gte", 2000))), 4)
		equal(len(l.services) > 0 && !l.withoutService, true)
		done("balanced", n)
	})
}

func retry(ctx context.Context) {
	n := 0
	using(ctx, "URI_FAILING", nil, func(_ *mongo.Client, coll *mongo.Collection) {
		there := func(what string) bool {
			err := coll.FindOne(ctx, id(what)).Err()
			if !errors.Is(err, mongo.ErrNoDocuments) {
				must(err)
			}
			return err == nil
		}
		done("ready", 1)
		for tick := time.NewTicker(100 * time.Millisecond); !there("go"); {
			<-tick.C
		}
		for ; !there("stop"); n++ {
			got(coll.InsertOne(ctx, id(fmt.Sprint("retry ", n))))
			equal(got(coll.UpdateOne(ctx, id("counter"), op("$inc", "writes", 1))).ModifiedCount, 1)
		}
	})
	done("retry", n)
}
