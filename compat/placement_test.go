package compat

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// golden is a value and the key that a hashed index of mongod stores for it.
type golden struct {
	JSON  string
	Value bson.RawValue
	Has   bool // false: the field is missing
	Hash  int64
}

// goldens reads the recorded hashes.
func goldens(t testing.TB) []golden {
	t.Helper()

	f, err := os.Open("../catalog/shardkey/testdata/hashed_keys.jsonl")
	require.NoError(t, err)

	defer f.Close()

	var list []golden

	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		var line struct{ BSON, JSON, Hash string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))

		doc, err := hex.DecodeString(line.BSON)
		require.NoError(t, err)

		g := golden{JSON: line.JSON}
		g.Hash, err = strconv.ParseInt(line.Hash, 10, 64)
		require.NoError(t, err)

		if v, err := bson.Raw(doc).LookupErr("v"); err == nil {
			g.Value, g.Has = v, true
		}

		list = append(list, g)
	}

	require.NoError(t, lines.Err())
	require.Len(t, list, 488)

	return list
}

// hashChunk is a row of config.chunks of a hashed collection.
type hashChunk struct {
	lo, hi int64 // [lo, hi), but hi belongs to it where last is set
	last   bool
	shard  string
}

// hashChunks reads a collection's chunks through a router and checks that they cover everything once.
func hashChunks(t testing.TB, r int, ns, field string) []hashChunk {
	t.Helper()

	cur, err := router(t, r).Database("config").Collection("chunks").
		Find(t.Context(), bson.D{{"ns", ns}}, options.Find().SetSort(bson.D{{"min", 1}}))

	var chunks []hashChunk

	for _, doc := range all(t, cur, err) {
		c := hashChunk{lo: math.MinInt64, hi: math.MaxInt64, shard: doc.Lookup("shard").StringValue()}

		if low := doc.Lookup("min", field); low.Type != bson.TypeMinKey {
			c.lo = low.Int64()
		}

		if high := doc.Lookup("max", field); high.Type != bson.TypeMaxKey {
			c.hi = high.Int64()
		} else {
			c.last = true
		}

		if n := len(chunks); n > 0 {
			require.Equal(t, chunks[n-1].hi, c.lo, "chunks of %s touch each other", ns)
		} else {
			require.Equal(t, bson.TypeMinKey, doc.Lookup("min", field).Type)
		}

		chunks = append(chunks, c)
	}

	require.NotEmpty(t, chunks)
	require.True(t, chunks[len(chunks)-1].last)

	return chunks
}

// owner returns the shard that owns a hash.
func owner(t testing.TB, chunks []hashChunk, hash int64) string {
	t.Helper()

	for _, c := range chunks {
		if hash >= c.lo && (hash < c.hi || c.last) {
			return c.shard
		}
	}

	t.Fatalf("no chunk owns %d", hash)

	return ""
}

// placed is where a document was found and how mongod hashes its key.
type placed struct {
	shard string
	hash  int64
}

// checkPlacement asks each shard what it holds of a collection that is sharded by the hash of field: every document must be on
// the shard that config.chunks says by mongod's own hash. It returns the documents by the extended JSON of field by.
func checkPlacement(t testing.TB, db, coll, field, by string) map[string][]placed {
	t.Helper()

	chunks := hashChunks(t, 0, db+"."+coll, field)
	require.Equal(t, chunks, hashChunks(t, 1, db+"."+coll, field), "both routers show the same chunks")

	found := map[string][]placed{}

	for i, name := range shardNames() {
		cur, err := shard(t, i).Database(db).Collection(coll).Aggregate(t.Context(), mongo.Pipeline{
			{{"$project", bson.D{{"by", "$" + by}, {"h", bson.D{{"$toHashedIndexKey", "$" + field}}}}}},
		})

		docs := all(t, cur, err)
		require.NotEmpty(t, docs, "%s has a share of %s", name, coll)

		for _, doc := range docs {
			hash := doc.Lookup("h").Int64()
			require.Equal(t, owner(t, chunks, hash), name, "the owner of %s, hash %d", doc, hash)

			key := doc.Lookup("by").String()
			found[key] = append(found[key], placed{name, hash})
		}
	}

	return found
}

func TestGoldenHashesAsIDs(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	inserted, twins, want := 0, 0, map[string]int64{}

	for i, g := range goldens(t) {
		switch g.Value.Type {
		case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined: // no _id of mongod's
			continue
		}

		if !g.Has {
			continue
		}

		coll := router(t, i%2).Database(db).Collection("c")
		_, err := coll.InsertOne(t.Context(), bson.D{{"_id", g.Value}})

		switch code(err) {
		case 0:
			inserted++
			want[g.Value.String()] = g.Hash
		case 11000:
			twins++ // compares equal to one that is there

			require.Equal(t, int64(1), count(t, coll, bson.D{{"_id", g.Value}}), "the equal of %s", g.JSON)
		default:
			// Names that begin with "$" in an _id, and nothing else, are not storable.
			require.Contains(t, []int{52, 53, 2}, code(err), "%s: %v", g.JSON, err)
			require.Contains(t, g.JSON, "$", "%s: %v", g.JSON, err)
		}
	}

	t.Logf("%d values inserted, %d compare equal to another", inserted, twins)
	require.Greater(t, inserted, 300)

	n := 0
	for key, where := range checkPlacement(t, db, "c", "_id", "_id") {
		n += len(where)
		for _, p := range where {
			if h, ok := want[key]; ok {
				require.Equal(t, h, p.hash, "%s", key)
			}
		}
	}

	require.Equal(t, inserted, n, "documents on all shards")
}

func TestGoldenHashesAsField(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 1, db+".c", bson.D{{"k", "hashed"}})

	list := goldens(t)
	accepted := map[int]bool{}

	for i, g := range list {
		doc := bson.D{{"_id", i}}
		if g.Has {
			doc = append(doc, bson.E{Key: "k", Value: g.Value})
		}

		_, err := router(t, i%2).Database(db).Collection("c").InsertOne(t.Context(), doc)
		if g.Value.Type == bson.TypeArray {
			require.Equal(t, 61, code(err), "%s: %v", g.JSON, err)
			continue
		}

		require.NoError(t, err, "%s", g.JSON)

		accepted[i] = true
	}

	found := checkPlacement(t, db, "c", "k", "_id")
	require.Len(t, found, len(accepted))

	for i, g := range list {
		where := found[bson.RawValue{Type: bson.TypeInt32, Value: []byte{byte(i), byte(i >> 8), 0, 0}}.String()]
		if !accepted[i] {
			require.Empty(t, where)
			continue
		}

		require.Len(t, where, 1, "%s is there once", g.JSON)

		if g.Value.Type == bson.TypeTimestamp && g.Value.Equal(zeroTimestamp()) {
			continue // mongod stores the current time instead
		}

		require.Equal(t, g.Hash, where[0].hash, "%s", g.JSON)
		findsItself(t, db, i, g)
	}
}

// zeroTimestamp is the value that a mongod replaces by the current time when it is at the top of a document.
func zeroTimestamp() bson.RawValue {
	return bson.RawValue{Type: bson.TypeTimestamp, Value: make([]byte, 8)}
}

// findsItself asks both routers for a document by its key.
func findsItself(t testing.TB, db string, id int, g golden) {
	t.Helper()

	if g.Value.Type == bson.TypeUndefined {
		return // no query can ask for it
	}

	key := bson.D{{"k", nil}}
	if g.Has {
		key = bson.D{{"k", bson.D{{"$eq", g.Value}}}}
	}

	for r := range 2 {
		cur, err := router(t, r).Database(db).Collection("c").Find(t.Context(), key)

		var ids []int32
		for _, doc := range all(t, cur, err) {
			ids = append(ids, doc.Lookup("_id").Int32())
		}

		require.Contains(t, ids, int32(id), "%s through router %d", g.JSON, r)
	}
}

func TestRandomDocumentsAreOnTheirOwners(t *testing.T) {
	const total = 10000

	rnd := random(t)
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"k", "hashed"}}, bson.E{Key: "numInitialChunks", Value: 17})
	require.Len(t, hashChunks(t, 0, db+".c", "k"), 17)

	for n, batch := 0, 0; n < total; batch++ {
		docs := make([]any, 0, 700)
		for range min(1+rnd.IntN(700), total-n) {
			doc := bson.D{{"_id", n}, {"pad", "x"}}
			if v, ok := randomValue(rnd); ok {
				doc = append(doc, bson.E{Key: "k", Value: v})
			}

			docs = append(docs, doc)
			n++
		}

		res, err := router(t, batch%2).Database(db).Collection("c").
			InsertMany(opContext(t, opLimit), docs, options.InsertMany().SetOrdered(batch%6 == 0))
		require.NoError(t, err)
		require.Len(t, res.InsertedIDs, len(docs))
	}

	found := checkPlacement(t, db, "c", "k", "_id")
	require.Len(t, found, total)

	share := map[string]int{}

	for id, where := range found {
		require.Len(t, where, 1, "_id %s", id)

		share[where[0].shard]++
	}

	t.Logf("shares: %v", share)

	for r := range 2 {
		require.Equal(t, int64(total), count(t, router(t, r).Database(db).Collection("c"), bson.D{}))
	}
}

// randomValue makes a value of a random type, or says that there is none.
func randomValue(rnd *rand.Rand) (any, bool) {
	switch rnd.IntN(16) {
	case 0:
		return nil, false
	case 1:
		return nil, true
	case 2:
		return int32(rnd.Uint32()), true
	case 3:
		return int64(rnd.Uint64()), true
	case 4:
		return math.Float64frombits(rnd.Uint64()), true
	case 5:
		return float64(rnd.Int32()) / 8, true
	case 6:
		return bson.NewObjectID(), true
	case 7:
		return bson.DateTime(rnd.Int64N(1 << 42)), true
	case 8:
		return rnd.IntN(2) == 0, true
	case 9:
		return bson.NewDecimal128(0x3000000000000000|rnd.Uint64N(1<<62), rnd.Uint64()), true
	case 10:
		return bson.Binary{Subtype: byte(rnd.IntN(6)), Data: randomBytes(rnd)}, true
	case 11:
		return bson.D{{"a", rnd.Int32()}, {"b", bson.D{{"c", bson.A{rnd.Float64(), "x"}}}}}, true
	case 12:
		return bson.Timestamp{T: rnd.Uint32() | 1, I: rnd.Uint32()}, true
	case 13:
		return bson.Regex{Pattern: strconv.Itoa(rnd.IntN(1000)), Options: "i"}, true
	default:
		return hex.EncodeToString(randomBytes(rnd)), true
	}
}

// randomBytes makes up to 40 bytes.
func randomBytes(rnd *rand.Rand) []byte {
	b := make([]byte, rnd.IntN(40))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}

	return b
}
