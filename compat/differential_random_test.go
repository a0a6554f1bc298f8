package compat

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

var (
	flagCalls = flag.Int("differential.calls", 2000, "how many random calls TestDifferentialRandom makes")
	flagSeed  = flag.Uint64("differential.seed", 0, "seed of TestDifferentialRandom that is to be played again")
)

const (
	// Rounds are short, so that a seed is soon played again.
	checksOfRound = 10
	stepsOfCheck  = 25
	// leastSuccess is the part of the calls that must succeed on both sides, in percent: else errors are compared with errors.
	leastSuccess = 70
)

// TestDifferentialRandom makes random calls.
func TestDifferentialRandom(t *testing.T) { newPair(t).random(t, *flagCalls) }

// random makes at least so many random calls.
func (p *pair) random(t *testing.T, calls int) {
	seed, again := *flagSeed, *flagSeed != 0

	if !again {
		seed = uint64(time.Now().UnixNano()) >> 8
	}

	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to play it again: go test ./compat -run %s -differential.seed=%d", t.Name(), seed)
		}
	})

	for name, value := range map[string]string{
		"rapid.checks": strconv.Itoa(checksOfRound), "rapid.steps": strconv.Itoa(stepsOfCheck), "rapid.nofailfile": "true",
	} {
		require.NoError(t, flag.Set(name, value))
	}

	for first := seed; ; seed++ {
		require.NoError(t, flag.Set("rapid.seed", strconv.FormatUint(seed, 10)))
		rapid.Check(t, func(rt *rapid.T) { p.randomCalls(t, rt) })

		if again || p.tally.calls >= calls {
			t.Logf("seeds %d to %d; %s", first, seed, p.tally)
			break
		}
	}

	if !again {
		require.GreaterOrEqual(t, p.tally.succeeded*100, p.tally.calls*leastSuccess, "too few calls succeed: %s", p.tally)
	}
}

// randomCalls makes calls on one shape.
func (p *pair) randomCalls(t *testing.T, rt *rapid.T) {
	s := rapid.SampledFrom(shapes).Draw(rt, "shape")
	p.refill(t, s)

	special := !p.moving && rapid.SampledFrom([]bool{true, false, false, false, false}).Draw(rt, "special")
	if special {
		p.indexed[s.name] = true

		for _, c := range []*rawConn{p.routers[0], p.judge} {
			ok(t, c.run(bson.D{{"createIndexes", s.name}, {"indexes", specialIndexes}, {"$db", p.db}}))
		}
	}

	run := func(command func(g *gen) bson.D) func(*rapid.T) {
		return func(rt *rapid.T) {
			g := &gen{T: rt, shape: s}
			for _, raw := range p.now[s.name] {
				var d bson.D
				require.NoError(t, bson.Unmarshal(raw, &d))

				g.docs = append(g.docs, d)
			}

			cmd := command(g)
			if c := p.run(t, s, cmd, g.loose); c.diff != "" {
				rt.Fatalf("on %s: %s\n%s", s.name, text(cmd, false), c.diff)
			}
		}
	}

	actions := map[string]func(*rapid.T){"createIndexes": run((*gen).createIndexes), "dropIndexes": run((*gen).dropIndexes)}
	if p.moving {
		actions = map[string]func(*rapid.T){}
	}

	// A name more than once: an action that is more frequent.
	for _, a := range []struct {
		name    string
		command func(*gen) bson.D
		times   int
	}{
		{"find", (*gen).find, 8},
		{"aggregate", (*gen).aggregate, 8},
		{"count", (*gen).count, 3},
		{"distinct", (*gen).distinct, 3},
		{"insert", (*gen).insert, 4},
		{"update", (*gen).update, 6},
		{"delete", (*gen).delete, 2},
		{"findAndModify", (*gen).findAndModify, 4},
	} {
		for i := range a.times {
			actions[fmt.Sprint(a.name, i)] = run(a.command)
		}
	}

	for i := range 14 {
		if special {
			actions[fmt.Sprint("special", i)] = run((*gen).special)
		}
	}

	rt.Repeat(actions)
}

// gen draws commands.
type gen struct {
	*rapid.T

	shape *shape
	docs  []bson.D // what is in the collection
	loose bool     // the command gives one of several equal values
}

// chance is true in so many percent.
func (g *gen) chance(percent int) bool {
	return g.number("chance", 0, 99) >= 100-percent
}

// draw picks one of a list.
func draw[V any](g *gen, name string, list []V) V {
	return rapid.SampledFrom(list).Draw(g.T, name)
}

// number is between two numbers, each as likely as the other: rapid's own ranges prefer small ones.
func (g *gen) number(name string, least, most int) int {
	list := make([]int, 0, most-least+1)
	for n := least; n <= most; n++ {
		list = append(list, n)
	}

	return draw(g, name, list)
}

// value is one of any type.
func (g *gen) value(name string) any {
	switch g.number("kind", 0, 3) {
	case 0:
		return draw(g, name, numbers)
	case 1:
		return draw(g, name, letters)
	case 2:
		return draw(g, name, comparable)
	default:
		return draw(g, name, keys)
	}
}

// comparable are values of all types that can be compared with by operators.
var comparable = only(anything, func(v any) bool {
	switch v.(type) {
	case bson.Regex, bson.Undefined:
		return false
	}

	return v != missing
})

// keys are values of a shard key's fields.
var keys = only(scalars, func(v any) bool { return v != missing })

// only keeps some of a list.
func only(list []any, keep func(any) bool) []any {
	var out []any

	for _, v := range list {
		if keep(v) {
			out = append(out, v)
		}
	}

	return out
}

// paths are fields that filters, sorts and groups read; shard keys' come more often.
var paths = []string{
	"_id", "_id", "k", "k", "d.e", "d.e", "r", "r", "r", "a", "a", "b", "n", "n", "s", "v", "v", "arr", "arr", "arr.x", "i", "i", "t.u.w", "t.p", "d", "t", "z", "list",
}

// path is a field that a filter asks for, often the shard key's.
func (g *gen) path() string {
	if len(g.shape.key) > 0 && g.chance(40) {
		return draw(g, "key", g.shape.key).Key
	}

	return draw(g, "path", paths)
}

// near is a value to compare a field with: often one that a document has there, or where a chunk begins.
func (g *gen) near(path string) any {
	switch n := g.number("near", 0, 9); {
	case n == 0 && len(g.shape.cuts) > 0:
		if v := get(draw(g, "cut", g.shape.cuts), path); v != nil {
			return v
		}
	case n <= 5 && len(g.docs) > 0:
		v := at(draw(g, "document", g.docs), path)

		switch v.(type) {
		case bson.Regex, bson.Undefined, bson.A:
		default:
			return v
		}
	}

	return g.value("value")
}

// filter is a condition.
func (g *gen) filter(depth int) bson.D {
	path := g.path()

	switch n := g.number("filter", 0, 19); {
	case n == 0:
		return bson.D{}
	case n <= 3 && depth > 0:
		var list bson.A
		for range g.number("branches", 1, 3) {
			list = append(list, g.filter(depth-1))
		}

		return bson.D{{draw(g, "junction", []string{"$and", "$or", "$or", "$nor"}), list}}
	case n == 4:
		return bson.D{{"$expr", bson.D{{draw(g, "operator", []string{"$eq", "$gt", "$lte"}), bson.A{
			"$" + path, bson.D{{"$literal", g.near(path)}},
		}}}}}
	case n <= 6 && len(g.docs) > 0:
		return g.pin(draw(g, "document", g.docs))
	case n <= 9:
		also := draw(g, "path", []string{"i", "n", "a", "b"})
		return bson.D{{path, g.condition(path, depth)}, {also, g.condition(also, 0)}}
	default:
		return bson.D{{path, g.condition(path, depth)}}
	}
}

// condition is what is asked of one field.
func (g *gen) condition(path string, depth int) any {
	op := func(name string, v any) bson.D { return bson.D{{name, v}} }

	switch g.number("condition", 0, 19) {
	case 0, 1, 2, 3, 4:
		return g.near(path)
	case 5, 6, 7, 8:
		return op(draw(g, "operator", []string{"$gt", "$gte", "$lt", "$lte"}), g.near(path))
	case 9:
		return bson.D{{draw(g, "from", []string{"$gt", "$gte"}), g.near(path)}, {draw(g, "to", []string{"$lt", "$lte"}), g.near(path)}}
	case 10, 11, 12:
		list := bson.A{}
		for range g.number("values", 0, 4) {
			list = append(list, g.near(path))
		}

		return op(draw(g, "operator", []string{"$in", "$in", "$nin"}), list)
	case 13:
		return op("$ne", g.near(path))
	case 14:
		return op("$exists", g.chance(50))
	case 15:
		return op("$type", draw(g, "type", []string{"number", "string", "object", "array", "null", "int", "double", "bool", "date", "objectId"}))
	case 16:
		if depth > 0 {
			if d, ok := g.condition(path, 0).(bson.D); ok && len(d) > 0 && d[0].Key[0] == '$' {
				return op("$not", d)
			}
		}

		return op("$eq", g.near(path))
	case 17:
		return bson.Regex{Pattern: draw(g, "pattern", []string{"^a", "a", "^A$", "b$", "^"}), Options: draw(g, "options", []string{"", "i"})}
	case 18:
		return draw(g, "array condition", []bson.D{
			op("$size", 2), op("$all", bson.A{int32(1), int32(2)}), op("$elemMatch", op("$gt", 1)), op("$elemMatch", op("x", 1)),
		})
	default:
		return op("$mod", bson.A{3, 1})
	}
}

// pin is a filter that only one document meets; it holds the shard key, mostly.
func (g *gen) pin(doc bson.D) bson.D {
	out := bson.D{{"_id", get(doc, "_id")}}

	if g.chance(80) {
		for _, e := range g.shape.key {
			if e.Key != "_id" {
				out = append(out, bson.E{Key: e.Key, Value: at(doc, e.Key)})
			}
		}
	}

	return out
}

// at is the value at a path, nil where there is none.
func at(doc bson.D, path string) any {
	name, rest, deeper := strings.Cut(path, ".")

	v := get(doc, name)
	if !deeper {
		return v
	}

	d, _ := v.(bson.D)

	return at(d, rest)
}

// sort is an order; total: one that leaves no choice.
func (g *gen) sort(isTotal bool) bson.D {
	var out bson.D

	direction := func() int { return draw(g, "direction", []int{1, -1}) }
	for range g.number("sort fields", 0, 2) {
		if path := draw(g, "path", []string{"n", "s", "v", "i", "k", "r", "a", "t.u.w", "arr", "d.e"}); get(out, path) == nil {
			out = append(out, bson.E{Key: path, Value: direction()})
		}
	}

	if isTotal || len(out) == 0 {
		out = append(out, bson.E{Key: "_id", Value: direction()})
	}

	return out
}

// collation is added to a command now and then.
func (g *gen) collation(cmd bson.D) bson.D {
	if !g.chance(12) {
		return cmd
	}

	return append(cmd, bson.E{Key: "collation", Value: draw(g, "collation", []bson.D{
		{{"locale", "en"}, {"strength", 2}}, {{"locale", "en"}, {"strength", 1}}, {{"locale", "fr"}, {"caseFirst", "upper"}}, {{"locale", "simple"}},
	})})
}
