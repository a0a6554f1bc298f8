package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// moveChunk moves a chunk by its bounds.
func moveChunk(t testing.TB, r int, ns string, c *chunkDoc, to int) error {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), 3*opLimit)
	defer cancel()

	return router(t, r).Database("admin").RunCommand(ctx, bson.D{{"moveChunk", ns}, {"bounds", bson.A{c.Min, c.Max}}, {"to", shardNames()[to]}}).Err()
}

var errElsewhere = errors.New("a document is where it does not belong")

// inPlace waits until each shard has what it owns of a collection and nothing else, and returns how many documents that are.
func inPlace(t testing.TB, db, coll string, key bson.D) int {
	t.Helper()

	raw, err := bson.Marshal(key)
	require.NoError(t, err)
	pattern, err := shardkey.ParsePattern(raw)
	require.NoError(t, err)

	total := 0

	eventually(t, recoverLimit, "all is in its place", func() error {
		chunks := chunksOf(t, 0, db+"."+coll)
		owners := map[string]bool{}
		starts := make([][]byte, len(chunks))
		total = 0

		for i := range chunks {
			owners[chunks[i].Shard] = true

			if starts[i], err = pattern.AppendBound(nil, chunks[i].Min); err != nil {
				return err
			}
		}

		for i, name := range shardNames() {
			ctx, cancel := context.WithTimeout(context.Background(), opLimit)
			defer cancel()

			names, err := shard(t, i).Database(db).ListCollectionNames(ctx, bson.D{{"name", coll}})
			if err != nil || len(names) > 0 != owners[name] {
				return fmt.Errorf("%s has %v, %w", name, names, errors.Join(err, errElsewhere))
			}

			cur, err := shard(t, i).Database(db).Collection(coll).Find(ctx, bson.D{})
			if err != nil {
				return err
			}

			var docs []bson.Raw
			if err := cur.All(ctx, &docs); err != nil {
				return err
			}

			for _, d := range docs {
				k, err := pattern.AppendKey(nil, d)
				if err != nil {
					return err
				}

				at := 0
				for at+1 < len(starts) && bytes.Compare(starts[at+1], k) <= 0 {
					at++
				}

				if chunks[at].Shard != name {
					return fmt.Errorf("%s has %s: %w", name, d, errElsewhere)
				}
			}

			total += len(docs)
		}

		return nil
	})

	return total
}

// Chunks of collections with keys of each kind move, and nothing is lost or left behind.
func TestMoveChunk(t *testing.T) {
	for name, key := range map[string]bson.D{
		"hashed":     {{"_id", "hashed"}},
		"ranged":     {{"k", 1}},
		"compound":   {{"k", 1}, {"a.b", 1}},
		"with hash":  {{"k", 1}, {"a.b", "hashed"}},
		"hash first": {{"a.b", "hashed"}, {"k", 1}},
		"id":         {{"_id", 1}},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDB(t)
			ctx := opContext(t, 3*opLimit)
			coll := router(t, 0).Database(db).Collection("c")
			longer := append(key[:len(key):len(key)], bson.E{Key: "z", Value: -1})

			if name != "id" { // an index that holds more serves, too
				_, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: longer})
				require.NoError(t, err)
			}

			shardCollection(t, 0, db+".c", key)

			docs := []any{
				bson.D{{"_id", bson.MinKey{}}, {"k", bson.MinKey{}}, {"a", bson.D{{"b", bson.MinKey{}}}}},
				bson.D{{"_id", bson.MaxKey{}}, {"k", bson.MaxKey{}}, {"a", bson.D{{"b", bson.MaxKey{}}}}},
				bson.D{{"_id", nil}, {"k", nil}},
				bson.D{{"_id", "none"}},
				bson.D{{"_id", bson.D{{"x", bson.D{{"y", "z"}}}}}, {"k", bson.D{{"x", 1}}}},
			}
			for i := range 1500 {
				docs = append(docs, bson.D{{"_id", i}, {"k", i % 50}, {"a", bson.D{{"b", fmt.Sprint("B", i)}}}, {"z", i % 7}})
			}

			for i := range 300 {
				docs = append(docs, bson.D{{"_id", fmt.Sprint("s", i)}, {"k", fmt.Sprint("ä", i)}, {"a", bson.D{{"b", int64(i)}}}})
			}

			_, err := coll.InsertMany(ctx, docs)
			require.NoError(t, err)

			moved := 0

			for round := range 2 {
				for i, c := range chunksOf(t, 0, db+".c") {
					to := otherThan(shardIndex(t, c.Shard))
					if round == 1 && i%2 == 0 {
						to = otherThan(to)
					}

					require.NoError(t, moveChunk(t, i%routerCount, db+".c", &c, to))
					moved++
					require.Equal(t, int64(len(docs)), count(t, coll, bson.D{}))
				}

				require.Equal(t, len(docs), inPlace(t, db, "c", key))
			}

			n, err := router(t, 0).Database("config").Collection("changelog").CountDocuments(ctx, bson.D{{"what", "moveChunk.commit"}, {"ns", db + ".c"}})
			require.NoError(t, err)
			require.Equal(t, int64(moved), n)
		})
	}
}

// A range that moves is cut off its chunk.
func TestMoveRange(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, 3*opLimit)
	coll := router(t, 0).Database(db).Collection("c")
	shardCollection(t, 0, db+".c", bson.D{{"k", 1}})

	var docs []any
	for i := range 900 {
		docs = append(docs, bson.D{{"_id", i}, {"k", i}})
	}

	_, err := coll.InsertMany(ctx, docs)
	require.NoError(t, err)

	home := shardIndex(t, chunksOf(t, 0, db+".c")[0].Shard)
	other, third := otherThan(home), otherThan(otherThan(home))

	move := func(r int, to int, bounds ...bson.E) {
		t.Helper()
		admin(t, r, append(bson.D{{"moveRange", db + ".c"}, {"toShard", shardNames()[to]}, {"waitForDelete", true}}, bounds...))
		require.Equal(t, int64(len(docs)), count(t, coll, bson.D{}))
	}
	layout := func() (out []string) {
		for _, c := range chunksOf(t, 1, db+".c") {
			out = append(out, fmt.Sprint(c.Min.Lookup("k"), " ", shardIndex(t, c.Shard)))
		}

		return out
	}

	move(0, other, bson.E{Key: "min", Value: bson.D{{"k", 300}}}, bson.E{Key: "max", Value: bson.D{{"k", 600}}})
	require.Equal(t, []string{`{"$minKey":1} ` + fmt.Sprint(home), `{"$numberInt":"300"} ` + fmt.Sprint(other), `{"$numberInt":"600"} ` + fmt.Sprint(home)}, layout())
	move(1, third, bson.E{Key: "min", Value: bson.D{{"k", 500}}})
	move(2, third, bson.E{Key: "max", Value: bson.D{{"k", 300}}})
	require.Equal(t, []string{
		`{"$minKey":1} ` + fmt.Sprint(third), `{"$numberInt":"300"} ` + fmt.Sprint(other), `{"$numberInt":"500"} ` + fmt.Sprint(third), `{"$numberInt":"600"} ` + fmt.Sprint(home),
	}, layout())
	require.Equal(t, len(docs), inPlace(t, db, "c", bson.D{{"k", 1}}))

	n, err := shard(t, third).Database(db).Collection("c").CountDocuments(ctx, bson.D{})
	require.NoError(t, err)
	require.Equal(t, int64(400), n)
}

func TestMoveChunkRefused(t *testing.T) {
	db := newDB(t)
	ctx := opContext(t, opLimit)
	d := router(t, 0).Database(db)
	ns := db + ".c"

	shardCollection(t, 0, ns, bson.D{{"k", 1}})
	require.NoError(t, d.CreateCollection(ctx, "plain"))
	require.NoError(t, d.CreateView(ctx, "view", "c", mongo.Pipeline{}))

	home := chunksOf(t, 0, ns)[0].Shard
	to := shardNames()[otherThan(shardIndex(t, home))]
	whole := bson.A{bson.D{{"k", bson.MinKey{}}}, bson.D{{"k", bson.MaxKey{}}}}

	for _, test := range []struct {
		cmd  bson.D
		code int
	}{
		{bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}}, 40414},
		{bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}, {"to", 1}}, 14},
		{bson.D{{"moveChunk", ns}, {"find", 1}, {"to", to}}, 14},
		{bson.D{{"moveChunk", ns}, {"to", to}}, 72},
		{bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}, {"bounds", whole}, {"to", to}}, 72},
		{bson.D{{"moveChunk", ns}, {"bounds", whole[:1]}, {"to", to}}, 72},
		{bson.D{{"moveChunk", ns}, {"find", bson.D{{"x", 5}}}, {"to", to}}, 656450},
		{bson.D{{"moveChunk", ns}, {"bounds", bson.A{bson.D{{"x", 1}}, bson.D{{"x", 2}}}}, {"to", to}}, 656451},
		{bson.D{{"moveChunk", ns}, {"bounds", bson.A{bson.D{{"k", 1}}, bson.D{{"k", 2}}}}, {"to", to}}, 656452},
		{bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}, {"to", "nowhere"}}, 70},
		{bson.D{{"moveChunk", db + ".none"}, {"find", bson.D{{"k", 5}}}, {"to", to}}, 118},
		{bson.D{{"moveChunk", db + ".plain"}, {"find", bson.D{{"k", 5}}}, {"to", to}}, 118},
		{bson.D{{"moveChunk", db + ".view"}, {"find", bson.D{{"k", 5}}}, {"to", to}}, 166},
		{bson.D{{"moveChunk", db + "none.c"}, {"find", bson.D{{"k", 5}}}, {"to", to}}, 26},
		{bson.D{{"moveChunk", "nodot"}, {"find", bson.D{{"k", 5}}}, {"to", to}}, 73},
		{bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}, {"to", to}, {"other", 1}}, 40415},
		{bson.D{{"moveRange", ns}, {"toShard", to}}, 72},
		{bson.D{{"moveRange", ns}, {"min", bson.D{{"k", 1}}}}, 40414},
		{bson.D{{"moveRange", ns}, {"min", bson.D{{"x", 1}}}, {"toShard", to}}, 2},
		{bson.D{{"moveRange", ns}, {"min", bson.D{{"k", 1}}}, {"max", bson.D{{"k", 1}}}, {"toShard", to}}, 72},
		{bson.D{{"moveRange", ns}, {"min", bson.D{{"k", 1}}}, {"toShard", "nowhere"}}, 70},
		{bson.D{{"moveRange", ns}, {"min", bson.D{{"k", bson.D{{"s", "text"}}}}}, {"toShard", to}}, 20},
	} {
		err := router(t, 0).Database("admin").RunCommand(ctx, test.cmd).Err()
		require.Equal(t, test.code, code(err), "%v: %v", test.cmd, err)
	}

	err := d.RunCommand(ctx, bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}, {"to", to}}).Err()
	require.Equal(t, 13, code(err), "%v", err)

	// Where it is already it stays, whatever else is said.
	reply := admin(t, 1, bson.D{
		{"moveChunk", ns},
		{"find", bson.D{{"k", 5}}},
		{"to", home},
		{"forceJumbo", true},
		{"_secondaryThrottle", true},
		{"_waitForDelete", true},
		{"writeConcern", bson.D{{"w", 1}}},
	})
	require.Equal(t, bson.TypeInt64, reply.Lookup("millis").Type)

	admin(t, 0, bson.D{{"setAllowMigrations", ns}, {"allowMigrations", false}})
	err = router(t, 1).Database("admin").RunCommand(ctx, bson.D{{"moveChunk", ns}, {"find", bson.D{{"k", 5}}}, {"to", to}}).Err()
	require.Equal(t, 117, code(err), "%v", err)
}

// The shell moves chunks, and its sh.status() tells of them.
func TestMoveChunkInMongosh(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", 1}})

	to := shardNames()[otherThan(shardIndex(t, chunksOf(t, 0, db+".c")[0].Shard))]
	out := mongosh(t, "--quiet", "--norc", shared.cluster.RouterURI(1), "--eval",
		fmt.Sprintf("print(sh.moveChunk('%s.c', {k: 5}, '%s').ok); sh.status()", db, to))
	require.Contains(t, out, "Success")
	require.Equal(t, to, chunksOf(t, 0, db+".c")[0].Shard)
}
