package compat

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A write that is repeated after its collection got another key, or none, gives the result of its first run and writes nothing: of
// each kind, by the key of before, by the one of afterwards, and by neither.
func TestReshardRetryableWrites(t *testing.T) {
	t.Run("several shards", func(t *testing.T) {
		db, _, _ := newHalves(t, 40)
		ns := db + ".c"

		repeatedOver(t, db, []func(){
			func() {
				require.NoError(t, reshard(t, 1, ns, bson.D{{"n", 1}}, bson.E{Key: "numInitialChunks", Value: 2}))
			},
			func() {
				require.NoError(t, reshard(t, 2, ns, bson.D{{"_id", "hashed"}}, bson.E{Key: "numInitialChunks", Value: 3}))
			},
			func() { admin(t, 0, bson.D{{"unshardCollection", ns}, {"toShard", shardNames()[2]}}) },
			func() { shardCollection(t, 1, ns, bson.D{{"k", 1}}) },
		})
	})

	// The one that has all of it before has all of it afterwards.
	t.Run("one shard", func(t *testing.T) {
		db := newDB(t)
		ns := db + ".c"

		shardCollection(t, 0, ns, bson.D{{"k", 1}})

		var docs []any
		for i := range 40 {
			docs = append(docs, bson.D{{"_id", i}, {"k", i}, {"n", 0}})
		}

		_, err := router(t, 0).Database(db).Collection("c").InsertMany(opContext(t, opLimit), docs)
		require.NoError(t, err)

		home := chunksOf(t, 0, ns)[0].Shard

		repeatedOver(t, db, []func(){
			func() { admin(t, 0, bson.D{{"unshardCollection", ns}, {"toShard", home}}) },
			func() { shardCollection(t, 1, ns, bson.D{{"k", 1}}) },
			func() {
				require.NoError(t, reshard(t, 1, ns, bson.D{{"n", 1}}, bson.E{Key: "shardDistribution", Value: bson.A{bson.D{{"shard", home}}}}))
			},
		})
	})
}

// repeatedOver writes to a collection with documents of _id and k from 0 to 39, and repeats all of it after each change of its shards.
func repeatedOver(t *testing.T, db string, changes []func()) {
	t.Helper()

	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")

	inc := bson.D{{"$inc", bson.D{{"n", 1}}}}
	update := func(q, u bson.D, more ...bson.E) bson.D {
		return bson.D{{"update", "c"}, {"updates", bson.A{append(bson.D{{"q", q}, {"u", u}}, more...)}}}
	}
	upsert := bson.E{Key: "upsert", Value: true}
	writes := []bson.D{
		{{"insert", "c"}, {"documents", bson.A{bson.D{{"_id", 100}, {"k", 1}}, bson.D{{"_id", 101}, {"k", 150}}}}},
		update(bson.D{{"_id", 1}, {"k", 1}}, inc),
		update(bson.D{{"_id", 2}}, inc),
		update(bson.D{{"k", bson.D{{"$gte", 4}, {"$lt", 6}}}}, inc),
		update(bson.D{{"_id", 200}, {"k", 20}}, inc, upsert),
		update(bson.D{{"_id", 201}}, bson.D{{"$set", bson.D{{"k", 21}}}}, upsert),
		update(bson.D{{"_id", 11}, {"k", 11}}, bson.D{{"$set", bson.D{{"k", 12}}}, {"$inc", bson.D{{"n", 1}}}}),
		update(bson.D{{"_id", 12}}, bson.D{{"$set", bson.D{{"k", 13}}}, {"$inc", bson.D{{"n", 1}}}}),
		{{"delete", "c"}, {"deletes", bson.A{bson.D{{"q", bson.D{{"_id", 6}, {"k", 6}}}, {"limit", 1}}, bson.D{{"q", bson.D{{"_id", 7}}}, {"limit", 1}}}}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 8}}}, {"update", inc}, {"new", true}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 9}, {"k", 9}}}, {"update", inc}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 10}}}, {"remove", true}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 300}, {"k", 30}}}, {"update", bson.D{{"$set", bson.D{{"x", 1}}}}}, upsert, {"new", true}},
		{{"findAndModify", "c"}, {"query", bson.D{{"_id", 13}}}, {"update", bson.D{{"$set", bson.D{{"k", 14}}}, {"$inc", bson.D{{"n", 1}}}}}, {"new", true}},
	}
	sessions := make([]bson.D, len(writes))
	first := make([]bson.D, len(writes))

	run := func(r, i int) bson.D {
		cmd := append(writes[i][:len(writes[i]):len(writes[i])], bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: sessions[i]}, bson.E{Key: "txnNumber", Value: int64(1)})
		reply := withoutTimes(t, ok(t, dialRaw(t, r).run(cmd)))
		slices.SortFunc(reply, func(a, b bson.E) int { return strings.Compare(a.Key, b.Key) })

		return reply
	}
	content := func() []bson.Raw {
		cur, err := coll.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}}))
		return all(t, cur, err)
	}

	for i := range writes {
		sessions[i] = session()
		first[i] = run(i%routerCount, i)
	}

	before := content()

	for n, change := range changes {
		change()

		for i := range writes {
			require.Equal(t, first[i], run((i+1)%routerCount, i), "change %d: %v", n, writes[i])
		}

		require.Equal(t, before, content(), "change %d", n)
	}

	// One number later they are other writes.
	require.Equal(t, int32(1), ok(t, dialRaw(t, 1).run(append(writes[2], bson.E{Key: "$db", Value: db}, bson.E{Key: "lsid", Value: sessions[2]}, bson.E{Key: "txnNumber", Value: int64(2)}))).Lookup("n").Int32())
}

// Documents of one _id on two shards stay two, wherever they go; where they would meet, all stays as it was. One that was deleted
// on one shard and inserted on another, while its copy is there already, is one.
func TestReshardTwins(t *testing.T) {
	db, _, _ := newHalves(t, 0)
	ns := db + ".c"
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")
	names := shardNames()
	preset := func(low, high int) bson.E {
		return bson.E{Key: "_presetReshardedChunks", Value: bson.A{
			bson.D{{"recipientShardId", names[low]}, {"min", bson.D{{"a", bson.MinKey{}}}}, {"max", bson.D{{"a", 10}}}},
			bson.D{{"recipientShardId", names[high]}, {"min", bson.D{{"a", 10}}}, {"max", bson.D{{"a", bson.MaxKey{}}}}},
		}}
	}

	_, err := coll.InsertMany(ctx, []any{
		bson.D{{"_id", 1}, {"k", 1}, {"a", 20}}, bson.D{{"_id", 1}, {"k", 150}, {"a", 5}}, bson.D{{"_id", 2}, {"k", 2}, {"a", 1}}, bson.D{{"_id", 3}, {"k", 3}, {"a", 1}},
	})
	require.NoError(t, err)

	err = reshard(t, 1, ns, bson.D{{"_id", 1}})
	require.Equal(t, 11000, code(err), "%v", err)
	noCopies(t, db, "c")
	require.Equal(t, 4, inPlace(t, db, "c", bson.D{{"k", 1}}))

	// They cross.
	stopped := stopAt(t, victim, "follow")
	result := stopped.begin(func() error { return reshard(t, victim, ns, bson.D{{"a", 1}}, preset(0, 1)) })

	_, err = coll.DeleteOne(ctx, bson.D{{"_id", 2}, {"k", 2}})
	require.NoError(t, err)
	_, err = coll.InsertOne(ctx, bson.D{{"_id", 2}, {"k", 180}, {"a", 2}})
	require.NoError(t, err)
	_, err = coll.UpdateMany(ctx, bson.D{{"_id", 3}, {"k", 3}}, bson.D{{"$set", bson.D{{"a", 30}}}})
	require.NoError(t, err)
	_, err = coll.UpdateOne(ctx, bson.D{{"_id", 1}, {"k", 150}}, bson.D{{"$inc", bson.D{{"a", 1}}}})
	require.NoError(t, err)
	stopped.release()
	require.NoError(t, <-result)
	require.Equal(t, 4, inPlace(t, db, "c", bson.D{{"a", 1}}))

	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{"_id", 1}, {"k", 1}}).SetProjection(bson.D{{"_id", 0}, {"a", 1}}))

	var as []int32
	for _, d := range all(t, cur, err) {
		as = append(as, d.Lookup("a").Int32())
	}

	require.Equal(t, []int32{20, 6, 2, 30}, as)

	// What no key can have comes while it is copied: all stays as it was.
	stopped = stopAt(t, victim, "follow")
	result = stopped.begin(func() error { return reshard(t, victim, ns, bson.D{{"k", 1}}) })

	_, err = coll.InsertOne(ctx, bson.D{{"_id", 9}, {"k", bson.A{1, 2}}, {"a", 2}})
	require.NoError(t, err)
	stopped.release()
	require.Equal(t, 61, code(<-result))
	noCopies(t, db, "c")
	require.Equal(t, 5, inPlace(t, db, "c", bson.D{{"a", 1}}))
	require.Equal(t, 61, code(reshard(t, 0, ns, bson.D{{"k", 1}})))
}

// What began before a resharding is told so: cursors, transactions, and reads at an earlier time. Others see nothing of it.
func TestReshardAndOlder(t *testing.T) {
	db, _, _ := newHalves(t, 1000)
	ns := db + ".c"
	ctx := opContext(t, 3*opLimit)
	d := router(t, 1).Database(db)

	var reply bson.Raw
	require.NoError(t, d.RunCommand(ctx, bson.D{{"find", "c"}, {"limit", 1}}).Decode(&reply))
	sec, ord := reply.Lookup("operationTime").Timestamp()
	before := bson.Timestamp{T: sec, I: ord}

	cur, err := d.Collection("c").Find(ctx, bson.D{}, options.Find().SetBatchSize(10))
	require.NoError(t, err)
	require.True(t, cur.Next(ctx))

	_, err = d.Collection("other").InsertOne(ctx, bson.D{{"_id", 0}})
	require.NoError(t, err)
	require.NoError(t, moveTo(t, 0, db+".other", 1))

	stopped := stopAt(t, victim, "follow")
	result := stopped.begin(func() error { return reshard(t, victim, ns, bson.D{{"n", 1}, {"_id", 1}}) })
	inTxn, s := begin(t, d.Collection("other"), bson.D{{"_id", 1}})

	names, err := d.ListCollectionNames(ctx, bson.D{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"c", "other"}, names)

	shown(t, ns)

	// Everything else about the collection waits, or is refused at once.
	for _, cmd := range []bson.D{
		{{"drop", "c"}}, {{"collMod", "c"}, {"validator", bson.D{}}}, {{"createIndexes", "c"}, {"indexes", bson.A{bson.D{{"key", bson.D{{"x", 1}}}, {"name", "x_1"}}}}}, {{"dropDatabase", 1}},
	} {
		err := d.RunCommand(ctx, cmd).Err()
		require.Equal(t, 338, code(err), "%v: %v", cmd, err)
	}

	a := router(t, 0).Database("admin")
	for want, cmd := range map[int]bson.D{
		338: {{"moveRange", ns}, {"min", bson.D{{"k", 1}}}, {"toShard", shardNames()[2]}}, 20: {{"abortUnshardCollection", ns}},
	} {
		err := a.RunCommand(ctx, cmd).Err()
		require.Equal(t, want, code(err), "%v: %v", cmd, err)
	}

	require.Equal(t, 338, code(reshard(t, 0, ns, bson.D{{"n", 1}})))
	require.Equal(t, 338, code(a.RunCommand(ctx, bson.D{{"unshardCollection", ns}}).Err()))

	joined := make(chan error, 2)

	go func() { joined <- reshard(t, 0, ns, bson.D{{"n", 1}, {"_id", 1}}) }()
	go func() { joined <- a.RunCommand(ctx, bson.D{{"commitReshardCollection", ns}}).Err() }()

	stopped.release()
	require.NoError(t, <-result)
	require.NoError(t, <-joined)
	require.Contains(t, []int{0, 339}, code(<-joined), "commit may come too late")

	for cur.Next(ctx) {
	}

	require.Equal(t, 175, code(cur.Err()), "%v", cur.Err())

	err = d.Collection("c").FindOne(inTxn, bson.D{{"_id", 1}, {"n", 0}}).Err()
	require.Equal(t, 246, code(err), "%v", err)
	require.True(t, err.(mongo.ServerError).HasErrorLabel("TransientTransactionError")) //nolint:errorlint // it is one
	require.NoError(t, s.AbortTransaction(inTxn))

	err = d.RunCommand(ctx, bson.D{{"find", "c"}, {"readConcern", bson.D{{"level", "snapshot"}, {"atClusterTime", before}}}}).Err()
	require.Equal(t, 239, code(err), "%v", err)
}

// shown checks what any router shows of the resharding of 1,000 documents, which are all copied.
func shown(t *testing.T, ns string) {
	t.Helper()

	ctx := opContext(t, opLimit)
	a := router(t, 2).Database("admin")
	cur, err := a.Aggregate(ctx, bson.A{
		bson.D{{"$currentOp", bson.D{{"allUsers", true}, {"localOps", false}}}}, bson.D{{"$match", bson.D{{"type", "op"}, {"originatingCommand.reshardCollection", ns}}}},
	})
	copied, services := int64(0), map[string]int{}

	for _, row := range all(t, cur, err) {
		service, _, _ := strings.Cut(row.Lookup("desc").StringValue(), " ")
		services[service]++

		if service == "ReshardingRecipientService" {
			copied += row.Lookup("documentsCopied").Int64()

			require.Equal(t, int64(1000/shardCount), row.Lookup("approxDocumentsToCopy").Int64(), "%s", row)
			require.GreaterOrEqual(t, row.Lookup("remainingOperationTimeEstimatedSecs").Int64(), int64(-1))
			require.Equal(t, "cloning", row.Lookup("recipientState").StringValue())
		}
	}

	require.Equal(t, map[string]int{"ReshardingCoordinatorService": 1, "ReshardingDonorService": 2, "ReshardingRecipientService": shardCount}, services)
	require.LessOrEqual(t, copied, int64(1000), "it is noted each second")

	cur, err = a.Aggregate(ctx, bson.A{bson.D{{"$currentOp", bson.D{{"idleConnections", true}}}}, bson.D{{"$match", bson.D{{"opid", bson.D{{"$exists", true}}}}}}})
	for _, row := range all(t, cur, err) {
		require.True(t, strings.HasPrefix(row.Lookup("opid").StringValue(), row.Lookup("shard").StringValue()+":"), "%s", row)
	}

	require.Equal(t, 238, code(second(a.Aggregate(ctx, bson.A{bson.D{{"$currentOp", bson.D{{"localOps", true}}}}}))))
	require.Equal(t, 9, code(second(a.Aggregate(ctx, bson.A{bson.D{{"$currentOp", bson.D{{"other", true}}}}}))))
	require.Equal(t, 73, code(second(router(t, 0).Database("other").Aggregate(ctx, bson.A{bson.D{{"$currentOp", bson.D{}}}}))))

	var op struct{ State, TempNS, Provenance string }
	require.NoError(t, router(t, 0).Database("config").Collection("reshardingOperations").FindOne(ctx, bson.D{{"ns", ns}}).Decode(&op))
	require.Equal(t, "cloning reshardCollection", op.State+" "+op.Provenance)
}

func second(_ *mongo.Cursor, err error) error { return err }

// An open transaction holds a resharding up, and is not disturbed by it; who ends one finds the collection as it was.
func TestReshardAborted(t *testing.T) {
	db, _, _ := newHalves(t, 100)
	ns := db + ".c"
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 1).Database(db).Collection("c")

	stopped := stopAt(t, victim, "follow")
	result := stopped.begin(func() error { return reshard(t, victim, ns, bson.D{{"n", 1}, {"_id", 1}}) })
	inTxn, s := begin(t, coll, bson.D{{"_id", 1000}, {"k", 5}})

	stopped.release()
	require.NoError(t, abortResharding(t, 1, ns))
	require.Equal(t, 341, code(<-result))
	require.NoError(t, s.CommitTransaction(inTxn))
	noCopies(t, db, "c")
	require.Equal(t, 101, inPlace(t, db, "c", bson.D{{"k", 1}}))
	require.NotContains(t, indexNames(t, coll), "n_1__id_1")

	for want, cmd := range map[int]bson.D{
		339: {{"abortReshardCollection", ns}}, 5403504: {{"cleanupReshardCollection", ns}}, 26: {{"cleanupReshardCollection", db + ".none"}},
	} {
		err := router(t, 0).Database("admin").RunCommand(ctx, cmd).Err()
		require.Equal(t, want, code(err), "%v: %v", cmd, err)
	}

	require.Equal(t, 339, code(router(t, 0).Database("admin").RunCommand(ctx, bson.D{{"commitReshardCollection", ns}}).Err()))
	require.Equal(t, 339, code(router(t, 0).Database("admin").RunCommand(ctx, bson.D{{"abortUnshardCollection", ns}}).Err()))
	require.NoError(t, reshard(t, 0, ns, bson.D{{"n", 1}, {"_id", 1}}))
	require.Equal(t, 101, inPlace(t, db, "c", bson.D{{"n", 1}, {"_id", 1}}))
}

func TestReshardRefused(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, opLimit)
	d := router(t, 0).Database(db)

	shardCollection(t, 0, db+".c", bson.D{{"k", 1}})
	_, err := d.Collection("c").InsertMany(ctx, []any{bson.D{{"k", 1}, {"x", 1}}, bson.D{{"k", 2}, {"x", bson.A{1}}}})
	require.NoError(t, err)
	_, err = d.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"k", 1}, {"u", 1}}, Options: options.Index().SetUnique(true)})
	require.NoError(t, err)
	require.NoError(t, d.CreateCollection(ctx, "german", options.CreateCollection().SetCollation(&options.Collation{Locale: "de"})))
	shardCollection(t, 0, db+".german", bson.D{{"k", 1}}, bson.E{Key: "collation", Value: bson.D{{"locale", "simple"}}})
	require.NoError(t, d.CreateCollection(ctx, "plain"))
	require.NoError(t, d.CreateView(ctx, "view", "c", mongo.Pipeline{}))

	home := homeOf(t, 0, db+".plain")
	key := bson.E{Key: "key", Value: bson.D{{"k", 1}, {"u", 1}}}
	c := bson.E{Key: "reshardCollection", Value: db + ".c"}
	one := bson.D{{"shard", "shard_0"}}

	for _, test := range []struct {
		cmd  bson.D
		code int
	}{
		{bson.D{c}, 40414},
		{bson.D{c, {"key", 1}}, 14},
		{bson.D{c, {"key", bson.D{{"k", 2}}}}, 2},
		{bson.D{c, {"key", bson.D{}}}, 2},
		{bson.D{c, key, {"other", 1}}, 40415},
		{bson.D{c, key, {"unique", true}}, 2},
		{bson.D{c, key, {"collation", bson.D{{"locale", "de"}}}}, 2},
		{bson.D{c, key, {"numInitialChunks", 0}}, 4952602},
		{bson.D{c, key, {"numInitialChunks", "1"}}, 14},
		{bson.D{c, key, {"numInitialChunks", 50}}, 4952606},
		{bson.D{c, key, {"forceRedistribution", "yes"}}, 14},
		{bson.D{c, key, {"zones", bson.A{bson.D{{"zone", "z"}}}}}, 238},
		{bson.D{c, key, {"shardDistribution", bson.A{}}}, 72},
		{bson.D{c, key, {"shardDistribution", bson.A{one, one}}}, 72},
		{bson.D{c, key, {"shardDistribution", bson.A{bson.D{{"shard", "nowhere"}}}}}, 70},
		{bson.D{c, key, {"shardDistribution", bson.A{bson.D{{"shard", "shard_0"}, {"min", bson.D{{"k", 1}}}}}}}, 72},
		{bson.D{c, key, {"_presetReshardedChunks", bson.A{bson.D{{"recipientShardId", "shard_0"}, {"min", bson.D{{"k", 1}, {"u", 1}}}, {"max", bson.D{{"k", 2}, {"u", 1}}}}}}}, 2},
		{bson.D{c, key, {"numInitialChunks", 2}, {"_presetReshardedChunks", bson.A{bson.D{{"recipientShardId", "shard_0"}, {"min", bson.D{}}, {"max", bson.D{}}}}}}, 2},
		{bson.D{c, {"key", bson.D{{"u", 1}}}}, 72}, // the unique index
		{bson.D{c, {"key", bson.D{{"k", 1}, {"u", 1}, {"x", 1}}}}, 72},
		{bson.D{c, key, {"collectionUUID", bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}, 361},
		{bson.D{{"reshardCollection", db + ".none"}, key}, 26},
		{bson.D{{"reshardCollection", "nodb.none"}, key}, 26},
		{bson.D{{"reshardCollection", db + ".plain"}, key}, 118},
		{bson.D{{"reshardCollection", db + ".view"}, key}, 166},
		{bson.D{{"reshardCollection", db + ".german"}, key}, 2},
		{bson.D{{"reshardCollection", "config.chunks"}, key}, 20},
		{bson.D{{"reshardCollection", db}, key}, 73},
		{bson.D{{"reshardCollection", 1}, key}, 14},
		{bson.D{{"unshardCollection", db + ".c"}, {"toShard", "nowhere"}}, 70},
		{bson.D{{"unshardCollection", db + ".c"}, {"toShard", 1}}, 14},
		{bson.D{{"unshardCollection", db + ".c"}, {"zones", bson.A{}}}, 72},
		{bson.D{{"unshardCollection", db + ".none"}}, 26},
		{bson.D{{"unshardCollection", db + ".plain"}, {"toShard", shardNames()[otherThan(home)]}}, 118},
		{bson.D{{"unshardCollection", db + ".plain"}, {"toShard", shardNames()[home]}}, 0},
		{bson.D{c, {"key", bson.D{{"k", 1}}}}, 0},
	} {
		err := router(t, 0).Database("admin").RunCommand(ctx, test.cmd).Err()
		require.Equal(t, test.code, code(err), "%v: %v", test.cmd, err)
	}

	require.Equal(t, 13, code(d.RunCommand(ctx, bson.D{c, key}).Err()))
	require.NoError(t, reshard(t, 1, db+".german", bson.D{{"k", "hashed"}}, bson.E{Key: "collation", Value: bson.D{{"locale", "simple"}}}))
}
