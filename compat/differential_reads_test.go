package compat

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// find draws a find.
func (g *gen) find() bson.D {
	cmd := bson.D{{"find", "c"}, {"filter", g.filter(2)}}

	cut := g.chance(30)
	if cut || g.chance(50) {
		cmd = append(cmd, bson.E{Key: "sort", Value: g.sort(cut || g.chance(50))})
	}

	if cut {
		cmd = append(cmd, bson.E{Key: "skip", Value: g.number("skip", 0, 10)}, bson.E{Key: "limit", Value: g.number("limit", 0, 15)})
	}

	if g.chance(40) {
		cmd = append(cmd, bson.E{Key: "projection", Value: g.projection()})
	}

	if g.chance(30) {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: g.number("batchSize", 0, 12)})
	}

	if g.chance(10) {
		cmd = append(cmd, bson.E{Key: "hint", Value: draw(g, "hint", []any{"_id_", bson.D{{"_id", 1}}, bson.D{{"$natural", 1}}})})
	}

	return g.collation(cmd)
}

// projection draws one without colliding paths.
func (g *gen) projection() bson.D {
	fields := []string{"n", "s", "v", "arr", "i", "k", "r", "a", "b", "t.p", "d.e"}
	shown := draw(g, "include", []int{0, 1})

	var out bson.D
	for range g.number("fields", 1, 3) {
		if path := draw(g, "path", fields); get(out, path) == nil {
			out = append(out, bson.E{Key: path, Value: shown})
		}
	}

	switch g.number("more", 0, 9) {
	case 0:
		out = append(out, bson.E{Key: "_id", Value: 0})
	case 1:
		if get(out, "arr") == nil {
			out = append(out, bson.E{Key: "arr", Value: bson.D{{"$slice", draw(g, "slice", []int{1, -1, 2})}}})
		}
	case 2:
		if get(out, "arr") == nil && shown == 1 {
			out = append(out, bson.E{Key: "arr", Value: bson.D{{"$elemMatch", bson.D{{"x", bson.D{{"$gte", 1}}}}}}})
		}
	case 3:
		if shown == 1 {
			out = append(out, bson.E{Key: "y", Value: g.expression()})
		}
	}

	return out
}

// expression draws one that fails for no document.
func (g *gen) expression() any {
	return draw(g, "expression", []any{
		bson.D{{"$type", "$v"}},
		bson.D{{"$add", bson.A{"$i", 1}}},
		bson.D{{"$multiply", bson.A{"$i", 2.5}}},
		bson.D{{"$ifNull", bson.A{"$v", "none"}}},
		bson.D{{"$cond", bson.A{bson.D{{"$gt", bson.A{"$n", "$i"}}}, "$s", "$t.p"}}},
		bson.D{{"$isArray", "$arr"}},
		bson.D{{"$literal", decimal("1.50")}},
		bson.D{{"$cmp", bson.A{"$v", "$n"}}},
		bson.D{{"$concat", bson.A{"$t.p", "-", "$t.p"}}},
		bson.D{{"$mergeObjects", bson.A{"$t", bson.D{{"q", "$i"}}}}},
		"$t.u.w",
		bson.D{{"$toString", "$i"}},
		bson.D{{"$strLenCP", "$t.p"}},
		bson.D{{"$max", bson.A{"$i", "$a"}}},
	})
}

// count draws a count.
func (g *gen) count() bson.D {
	cmd := bson.D{{"count", "c"}, {"query", g.filter(2)}}
	if g.chance(30) {
		cmd = append(cmd, bson.E{Key: "skip", Value: g.number("skip", 0, 10)}, bson.E{Key: "limit", Value: g.number("limit", -3, 15)})
	}

	return g.collation(cmd)
}

// distinct draws a distinct.
func (g *gen) distinct() bson.D {
	g.loose = true
	return bson.D{{"distinct", "c"}, {"key", draw(g, "key", paths)}, {"query", g.filter(2)}}
}

// aggregate draws a pipeline.
func (g *gen) aggregate() bson.D {
	stages := bson.A{}
	add := func(name string, v any) { stages = append(stages, bson.D{{name, v}}) }

	if g.chance(60) {
		add("$match", g.filter(2))
	}

	unwound := false

	for range g.number("stages", 0, 2) {
		switch g.number("stage", 0, 5) {
		case 0:
			add("$addFields", bson.D{{draw(g, "new", []string{"y", "t.y", "s"}), g.expression()}})
		case 1:
			add("$unset", draw(g, "unset", []string{"v", "arr", "d.f"}))
		case 2:
			unwound = true
			add("$unwind", bson.D{{"path", "$" + draw(g, "unwind", []string{"arr", "v", "list"})}, {"preserveNullAndEmptyArrays", g.chance(50)}})
		case 3:
			add("$match", g.filter(1))
		case 4:
			add("$set", bson.D{{"y", g.expression()}})
		default:
			add("$project", bson.D{{"y", g.expression()}, {"i", 1}, {"a", 1}, {"n", 1}, {"s", 1}, {"v", 1}, {"arr", 1}, {"t", 1}, {"list", 1}})
		}
	}

	stages = append(stages, g.ending(unwound)...)

	cursor := bson.D{}
	if g.chance(25) {
		cursor = bson.D{{"batchSize", g.number("batchSize", 0, 10)}}
	}

	cmd := bson.D{{"aggregate", "c"}, {"pipeline", stages}, {"cursor", cursor}}
	if g.loose { // which of several texts that are equal by a collation is given is not defined, either
		return cmd
	}

	return g.collation(cmd)
}

// ending draws what comes after the stages that see one document.
func (g *gen) ending(unwound bool) bson.A {
	order := bson.D{{"$sort", bson.D{{"_id", draw(g, "direction", []int{1, -1})}}}}

	switch g.number("ending", 0, 12) {
	case 0, 1:
		out := bson.A{bson.D{{"$sort", g.sort(true)}}}
		if !unwound && g.chance(60) {
			out = append(out, bson.D{{"$skip", g.number("skip", 0, 5)}}, bson.D{{"$limit", g.number("limit", 1, 20)}})
		}

		return out
	case 2:
		return bson.A{bson.D{{"$count", "n"}}}
	case 3:
		g.loose = true
		return bson.A{bson.D{{"$sortByCount", "$" + draw(g, "path", paths)}}}
	case 4:
		if unwound {
			return nil
		}

		g.loose = true // with a collation the groups' ids are one of several texts

		return bson.A{
			bson.D{{"$sort", g.sort(true)}},
			bson.D{{"$group", bson.D{{"_id", "$i"}, {"first", bson.D{{"$first", "$_id"}}}, {"last", bson.D{{"$last", "$n"}}}, {"all", bson.D{{"$push", "$t.p"}}}}}},
		}
	case 5, 6, 7:
		out := bson.A{bson.D{{"$group", g.group()}}}
		if g.chance(50) {
			out = append(out, order)
			if g.chance(50) {
				out = append(out, bson.D{{"$limit", g.number("limit", 1, 6)}})
			}
		}

		return out
	case 8:
		g.loose = true

		return bson.A{bson.D{{"$bucket", bson.D{
			{"groupBy", "$" + draw(g, "path", []string{"i", "a", "d.f"})},
			{"boundaries", bson.A{0, 2, 4, 30}},
			{"default", "other"},
			{"output", bson.D{{"n", bson.D{{"$sum", 1}}}, {"max", bson.D{{"$max", "$n"}}}}},
		}}}}
	case 10, 11, 12:
		if unwound {
			return nil
		}

		g.loose = true

		return bson.A{g.wide()}
	default:
		return nil
	}
}

// wide draws a stage that sees all documents at once, with a result that leaves no choice.
func (g *gen) wide() bson.D {
	switch g.number("wide", 0, 2) {
	case 0:
		return bson.D{{"$facet", bson.D{
			{"some", bson.A{bson.D{{"$sort", g.sort(true)}}, bson.D{{"$skip", g.number("skip", 0, 5)}}, bson.D{{"$limit", g.number("limit", 1, 20)}}}},
			{"number", bson.A{bson.D{{"$match", g.filter(1)}}, bson.D{{"$count", "n"}}}},
			{"groups", bson.A{bson.D{{"$group", bson.D{{"_id", "$i"}, {"n", bson.D{{"$sum", 1}}}, {"max", bson.D{{"$max", "$_id"}}}}}}, bson.D{{"$sort", bson.D{{"_id", 1}}}}}},
		}}}
	case 1:
		return bson.D{{"$bucketAuto", bson.D{
			{"groupBy", "$" + draw(g, "path", []string{"i", "a", "d.f"})},
			{"buckets", g.number("buckets", 1, 5)},
			{"output", bson.D{{"n", bson.D{{"$sum", 1}}}, {"max", bson.D{{"$max", "$_id"}}}}},
		}}}
	default:
		return bson.D{{"$setWindowFields", bson.D{
			{"partitionBy", draw(g, "partition", []any{"$i", "$t.u.w", nil})},
			{"sortBy", bson.D{{"_id", draw(g, "direction", []int{1, -1})}}},
			{"output", bson.D{draw(g, "output", []bson.E{ // one: a mongod adds several in an order of its own
				{"y", bson.D{{"$sum", "$i"}, {"window", bson.D{{"documents", bson.A{"unbounded", "current"}}}}}},
				{"y", bson.D{{"$documentNumber", bson.D{}}}},
				{"y", bson.D{{"$shift", bson.D{{"output", "$_id"}, {"by", -1}, {"default", "none"}}}}},
				{"y", bson.D{{"$max", "$_id"}, {"window", bson.D{{"documents", bson.A{-1, g.number("ahead", 0, 2)}}}}}},
			})}},
		}}}
	}
}

// special draws a read that needs an index of its own kind: for words or places.
func (g *gen) special() bson.D {
	where := bson.A{g.number("x", -5, 60), g.number("y", -5, 30)}
	point := bson.D{{"type", "Point"}, {"coordinates", where}}
	cmd := bson.D{{"find", "c"}}
	add := func(name string, v any) { cmd = append(cmd, bson.E{Key: name, Value: v}) }

	var filter bson.D

	switch g.number("special", 0, 3) {
	case 0:
		filter = bson.D{{"$text", bson.D{{"$search", draw(g, "search", []string{"a", "b zoe", "Zoë -a", "\"a\"", "ab B", "none"})}, {"$caseSensitive", g.chance(30)}}}}

		add("projection", bson.D{{"s", 1}, {"t", 1}, {"score", bson.D{{"$meta", "textScore"}}}})
		add("sort", bson.D{{"_id", 1}})
	case 1:
		filter = bson.D{{"g", bson.D{{draw(g, "near", []string{"$near", "$nearSphere"}), bson.D{{"$geometry", point}, {"$maxDistance", g.number("metres", 1, 40) * 100_000}}}}}}

		if g.chance(50) {
			add("limit", g.number("limit", 1, 9))
		}
	case 2:
		filter = bson.D{{"g", bson.D{{"$geoWithin", bson.D{{"$centerSphere", bson.A{where, float64(g.number("radius", 1, 9)) / 20}}}}}}}

		add("sort", g.sort(true))
	default:
		return bson.D{{"aggregate", "c"}, {"pipeline", bson.A{
			bson.D{{"$geoNear", bson.D{{"near", point}, {"distanceField", "far"}, {"query", g.filter(0)}, {"key", "g"}, {"spherical", true}}}},
			bson.D{{"$limit", g.number("limit", 1, 20)}},
		}}, {"cursor", bson.D{}}}
	}

	if g.chance(40) {
		filter = append(filter, bson.E{Key: "i", Value: g.condition("i", 0)})
	}

	add("filter", filter)

	if g.chance(30) {
		add("batchSize", g.number("batchSize", 0, 12))
	}

	return cmd
}

// specialIndexes are those that special needs.
var specialIndexes = bson.A{
	bson.D{{"key", bson.D{{"s", "text"}, {"t.p", "text"}}}, {"name", "words"}, {"default_language", "none"}},
	bson.D{{"key", bson.D{{"g", "2dsphere"}}}, {"name", "places"}},
}

// group draws the argument of $group.
func (g *gen) group() bson.D {
	g.loose = true

	var id any = "$" + draw(g, "id", paths)

	switch g.number("kind of id", 0, 5) {
	case 0:
		id = nil
	case 1:
		id = bson.D{{"i", "$i"}, {"w", "$t.u.w"}}
	case 2:
		id = bson.D{{"$type", "$v"}}
	}

	out := bson.D{{"_id", id}}
	for i := range g.number("accumulators", 0, 3) {
		out = append(out, bson.E{Key: string(rune('p' + i)), Value: draw(g, "accumulator", []bson.D{
			{{"$sum", 1}},
			{{"$count", bson.D{}}},
			{{"$sum", "$i"}},
			{{"$sum", "$n"}},
			{{"$avg", "$a"}},
			{{"$min", "$v"}},
			{{"$max", "$v"}},
			{{"$max", "$_id"}},
			{{"$min", "$n"}},
			{{"$maxN", bson.D{{"input", "$d.f"}, {"n", 2}}}},
			{{"$stdDevPop", "$i"}},
			{{"$mergeObjects", "$nothing"}},
		})})
	}

	return out
}
