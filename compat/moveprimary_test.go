package compat

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// primaryOf is a database's primary shard and its version, as a router shows them.
func primaryOf(t *testing.T, r int, db string) (primary int, lastMod int32) {
	t.Helper()

	var d struct {
		Primary string
		Version struct {
			LastMod int32 `bson:"lastMod"`
		}
	}

	require.NoError(t, router(t, r).Database("config").Collection("databases").FindOne(t.Context(), bson.D{{"_id", db}}).Decode(&d))

	return shardIndex(t, d.Primary), d.Version.LastMod
}

// movePrimary takes along what lies on the former primary and was not put there by hand; writes without the shard key that are repeated
// over it are known, at every router.
func TestMovePrimary(t *testing.T) {
	db, jobs := jobs(t, 4)
	ctx := opContext(t, 3*opLimit)
	movePrimary := func(r int, to string) error {
		return router(t, r).Database("admin").RunCommand(ctx, bson.D{{"movePrimary", db}, {"to", to}}).Err()
	}

	first, mod := primaryOf(t, 0, db)
	names := shardNames()

	// Collections go where the fewest are.
	homes := map[string]int{}

	for i := 0; ; i++ {
		name := fmt.Sprint("u", i)
		_, err := router(t, i%routerCount).Database(db).Collection(name).InsertMany(ctx, []any{bson.D{{"_id", 1}}, bson.D{{"_id", 2}}})
		require.NoError(t, err)

		homes[name] = homeOf(t, 0, db+"."+name)
		if homes[name] == first {
			break
		}

		require.Less(t, i, 200)
	}

	_, err := router(t, 0).Database(db).Collection("pinned").InsertOne(ctx, bson.D{{"_id", 1}})
	require.NoError(t, err)
	require.NoError(t, moveTo(t, 0, db+".pinned", first))
	require.NoError(t, router(t, 0).Database(db).CreateView(ctx, "view", "u0", []bson.D{}))

	conns := []*rawConn{dialRaw(t, 0), dialRaw(t, 1), dialRaw(t, 2)}
	lsid := session()

	var writes, replies []bson.Raw

	write := func(r int) {
		t.Helper()

		raw, err := bson.Marshal(bson.D{
			{"findAndModify", "c"},
			{"query", bson.D{{"state", "new"}}},
			{"update", bson.D{{"$set", bson.D{{"state", "taken"}}}, {"$inc", bson.D{{"n", 1}}}}},
			{"$db", db},
			{"lsid", lsid},
			{"txnNumber", int64(len(writes) + 1)},
		})
		require.NoError(t, err)

		var cmd bson.D
		require.NoError(t, bson.Unmarshal(raw, &cmd))

		writes, replies = append(writes, raw), append(replies, ok(t, conns[r].run(cmd)).Lookup("value").Document())
	}
	// The last is what a session may repeat.
	repeat := func() {
		t.Helper()

		var cmd bson.D
		require.NoError(t, bson.Unmarshal(writes[len(writes)-1], &cmd))

		for _, c := range conns {
			require.Equal(t, replies[len(replies)-1], ok(t, c.run(cmd)).Lookup("value").Document())
		}

		require.Equal(t, int64(len(writes)), count(t, jobs, bson.D{{"state", "taken"}, {"n", 1}}))
		require.Equal(t, int64(len(writes)), count(t, jobs, bson.D{{"n", bson.D{{"$gt", 0}}}}))
	}
	check := func(primary int, version int32) {
		t.Helper()

		for r := range routerCount {
			got, v := primaryOf(t, r, db)
			require.Equal(t, primary, got)
			require.Equal(t, version, v)
		}

		for name, home := range homes {
			require.Equal(t, home, homeOf(t, 1, db+"."+name), name)
			require.Equal(t, int64(2), count(t, router(t, 2).Database(db).Collection(name), bson.D{}))
		}

		require.Equal(t, first, homeOf(t, 1, db+".pinned"))
		require.Equal(t, int64(2), count(t, router(t, 2).Database(db).Collection("view"), bson.D{}))
	}

	write(0)

	from := first
	for i, to := range []int{otherThan(first), shardCount - first - otherThan(first)} {
		name := names[to]
		if i == 1 { // as it may be named, too
			var shard struct{ Host string }
			require.NoError(t, router(t, 0).Database("config").Collection("shards").FindOne(ctx, bson.D{{"_id", name}}).Decode(&shard))
			name = shard.Host
		}

		require.NoError(t, movePrimary(i, name))

		for u, home := range homes {
			if home == from {
				homes[u] = to
			}
		}

		mod++
		from = to

		check(to, mod)
		repeat()
		write(1 + i)
		repeat()
		require.NoError(t, movePrimary(2, names[to]))
		check(to, mod)
	}

	// A capped collection cannot be moved yet, and then nothing is.
	require.NoError(t, router(t, 0).Database(db).RunCommand(ctx, bson.D{{"create", "capped"}, {"capped", true}, {"size", 4096}}).Err())

	if home := homeOf(t, 0, db+".capped"); home == from {
		require.Equal(t, 238, code(movePrimary(0, names[first])))
	} else {
		require.NoError(t, movePrimary(0, names[otherThan(home)]))
	}

	for _, c := range []struct {
		cmd  bson.D
		code int
	}{
		{bson.D{{"movePrimary", 1}, {"to", names[0]}}, 73},
		{bson.D{{"movePrimary", ""}, {"to", names[0]}}, 73},
		{bson.D{{"movePrimary", "a.b"}, {"to", names[0]}}, 73},
		{bson.D{{"movePrimary", db}}, 40414},
		{bson.D{{"movePrimary", db}, {"to", 1}}, 14},
		{bson.D{{"movePrimary", db}, {"to", ""}}, 72},
		{bson.D{{"movePrimary", "config"}, {"to", names[0]}}, 72},
		{bson.D{{"movePrimary", "admin"}, {"to", names[0]}}, 72},
		{bson.D{{"movePrimary", "local"}, {"to", names[0]}}, 72},
		{bson.D{{"movePrimary", db}, {"to", "nosuch"}}, 70},
		{bson.D{{"movePrimary", db + "none"}, {"to", names[0]}}, 26},
		{bson.D{{"movePrimary", db}, {"to", names[0]}, {"nosuch", 1}}, 40415},
	} {
		err := router(t, 0).Database("admin").RunCommand(ctx, c.cmd).Err()
		require.Equal(t, c.code, code(err), "%v: %v", c.cmd, err)
	}
}
