package compat

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// fresh is a value of _id that no document has.
func (g *gen) fresh(more int) int32 {
	id := int32(1000 + more)
	for _, d := range g.docs {
		if n, ok := get(d, "_id").(int32); ok && n >= 1000 {
			id = max(id, n+1+int32(more))
		}
	}

	return id
}

// retryable gives a write a session and a number now and then.
func (g *gen) retryable(cmd bson.D) bson.D {
	if !g.chance(20) {
		return cmd
	}

	return append(cmd, bson.E{Key: "lsid", Value: "new"}, bson.E{Key: "txnNumber", Value: int64(1)})
}

// stored are values that the fields of shard keys have, also such as filters cannot name.
var stored = append(slices.Clone(scalars), bson.Undefined{}, bson.MinKey{}, bson.MaxKey{}, bson.Timestamp{T: 3}, bson.Regex{Pattern: "a"}, bson.Symbol("a"))

// document draws a new one.
func (g *gen) document(id any) bson.D {
	d := bson.D{{"_id", id}}

	for _, f := range []struct {
		name   string
		values []any
	}{
		{"k", stored},
		{"r", stored},
		{"a", stored},
		{"b", stored},
		{"n", numbers},
		{"s", letters},
		{"v", anything},
		{"arr", arrays},
	} {
		if v := draw(g, f.name, f.values); v != missing {
			d = append(d, bson.E{Key: f.name, Value: v})
		}
	}

	if e := draw(g, "e", stored); e != missing {
		d = append(d, bson.E{Key: "d", Value: bson.D{{"e", e}, {"f", int32(g.number("f", 0, 9))}}})
	}

	return append(d, bson.E{Key: "i", Value: int32(g.number("i", 0, 4))}, bson.E{Key: "t", Value: bson.D{{"p", draw(g, "p", letters)}}})
}

// insert draws new documents and sometimes one whose _id is taken on the same shard.
func (g *gen) insert() bson.D {
	var docs bson.A
	for i := range g.number("documents", 1, 4) {
		docs = append(docs, g.document(g.fresh(i)))
	}

	if len(g.docs) > 0 && g.chance(10) {
		docs = slices.Insert(docs, g.number("at", 0, len(docs)), any(draw(g, "taken", g.docs)))
	}

	return g.retryable(bson.D{{"insert", "c"}, {"documents", docs}, {"ordered", g.chance(50)}})
}

// change draws what an update does: operators that fail for no document, or a pipeline.
func (g *gen) change() any {
	if g.chance(15) {
		return bson.A{bson.D{{"$set", bson.D{{"z", g.expression()}}}}}
	}

	var out bson.D
	for range g.number("operators", 1, 2) {
		op := draw(g, "operator", []bson.E{
			{"$set", bson.D{{"v", g.value("v")}}},
			{"$set", bson.D{{"z", g.value("z")}, {"n", draw(g, "n", numbers)}}},
			{"$set", bson.D{{"t.p", draw(g, "p", letters)}}},
			{"$unset", bson.D{{"v", ""}}},
			{"$unset", bson.D{{"z", ""}, {"arr", ""}}},
			{"$inc", bson.D{{"i", 1}}},
			{"$inc", bson.D{{"n", draw(g, "by", numbers)}}},
			{"$mul", bson.D{{"n", draw(g, "by", numbers)}}},
			{"$min", bson.D{{"v", g.value("v")}}},
			{"$max", bson.D{{"v", g.value("v")}}},
			{"$push", bson.D{{"list", g.value("element")}}},
			{"$push", bson.D{{"list", bson.D{{"$each", bson.A{g.value("element"), 3}}, {"$sort", -1}, {"$slice", 4}}}}},
			{"$addToSet", bson.D{{"list", draw(g, "element", numbers)}}},
			{"$pull", bson.D{{"list", bson.D{{"$gte", 2}}}}},
			{"$pop", bson.D{{"list", draw(g, "end", []int{1, -1})}}},
			{"$rename", bson.D{{"z", "zz"}}},
			{"$bit", bson.D{{"i", bson.D{{"xor", 3}}}}},
			{"$setOnInsert", bson.D{{"born", true}}},
		})
		if !touches(out, op) {
			out = append(out, op)
		}
	}

	return out
}

// touches reports whether an operator cannot be beside those of an update.
func touches(update bson.D, op bson.E) bool {
	for _, e := range update {
		if e.Key == op.Key {
			return true
		}

		for _, f := range e.Value.(bson.D) {
			if get(op.Value.(bson.D), f.Key) != nil {
				return true
			}
		}
	}

	return false
}

// one draws an update of one document: a filter that pins it, what changes, and whether it may be new.
func (g *gen) one() (filter bson.D, change any, upsert bool) {
	if len(g.docs) == 0 || g.chance(20) {
		filter = bson.D{{"_id", g.fresh(g.number("more", 0, 3))}}
		for _, name := range []string{"k", "d.e", "r", "a", "b"} {
			filter = append(filter, bson.E{Key: name, Value: draw(g, name, keys)})
		}

		return filter, g.change(), g.chance(80)
	}

	doc := draw(g, "document", g.docs)
	filter = g.pin(doc)

	switch {
	case g.chance(12): // another place, perhaps
		fields := []string{"k", "d.e", "r", "a", "b"}
		for _, e := range g.shape.key {
			fields = append(fields, e.Key, e.Key, e.Key)
		}

		return filter, bson.D{{"$set", bson.D{{draw(g, "field", fields), draw(g, "key", keys)}}}}, false
	case g.chance(15): // a replacement that keeps its place
		out := g.document(get(doc, "_id"))
		for _, name := range []string{"k", "d", "r", "a", "b"} {
			out = without(out, name)
			if v := get(doc, name); v != nil {
				out = append(out, bson.E{Key: name, Value: v})
			}
		}

		return filter, out, false
	}

	return filter, g.change(), g.chance(20)
}

// update draws a batch of updates.
func (g *gen) update() bson.D {
	var (
		updates bson.A
		many    bool
	)

	for range g.number("updates", 1, 3) {
		if g.chance(35) {
			many = true
			updates = append(updates, g.collation(bson.D{{"q", g.filter(1)}, {"u", g.change()}, {"multi", true}}))

			continue
		}

		filter, change, upsert := g.one()
		updates = append(updates, bson.D{{"q", filter}, {"u", change}, {"upsert", upsert}})
	}

	cmd := bson.D{{"update", "c"}, {"updates", updates}, {"ordered", g.chance(60)}}
	if many {
		return cmd
	}

	return g.retryable(cmd)
}

// delete draws a batch of deletes.
func (g *gen) delete() bson.D {
	deletes := bson.A{}

	for range g.number("deletes", 1, 3) {
		if len(g.docs) > 0 && g.chance(70) {
			deletes = append(deletes, bson.D{{"q", g.pin(draw(g, "document", g.docs))}, {"limit", 1}})
		} else {
			deletes = append(deletes, g.collation(bson.D{{"q", append(bson.D{{"i", g.number("i", 0, 4)}}, g.filter(0)...)}, {"limit", 0}}))
		}
	}

	return bson.D{{"delete", "c"}, {"deletes", deletes}, {"ordered", g.chance(50)}}
}

// findAndModify draws one.
func (g *gen) findAndModify() bson.D {
	if len(g.docs) > 0 && g.chance(20) {
		return g.retryable(bson.D{{"findAndModify", "c"}, {"query", g.pin(draw(g, "document", g.docs))}, {"remove", true}})
	}

	filter, change, upsert := g.one()
	cmd := bson.D{{"findAndModify", "c"}, {"query", filter}, {"update", change}, {"upsert", upsert}, {"new", g.chance(50)}}

	if g.chance(20) {
		cmd = append(cmd, bson.E{Key: "fields", Value: g.projection()})
	}

	return g.retryable(cmd)
}

// indexes are those that random calls make and drop.
var indexes = []bson.D{
	{{"key", bson.D{{"i", 1}}}, {"name", "i"}},
	{{"key", bson.D{{"s", 1}, {"i", -1}}}, {"name", "si"}},
	{{"key", bson.D{{"n", -1}}}, {"name", "n"}},
	{{"key", bson.D{{"v", 1}}}, {"name", "v"}},
	{{"key", bson.D{{"arr", 1}}}, {"name", "arr"}, {"sparse", true}},
	{{"key", bson.D{{"t.p", 1}}}, {"name", "tp"}, {"collation", bson.D{{"locale", "en"}, {"strength", 2}}}},
	{{"key", bson.D{{"i", "hashed"}}}, {"name", "ih"}},
	{{"key", bson.D{{"n", 1}}}, {"name", "np"}, {"partialFilterExpression", bson.D{{"n", bson.D{{"$gt", 1}}}}}},
	{{"key", bson.D{{"$**", 1}}}, {"name", "all"}},
}

// createIndexes draws one.
func (g *gen) createIndexes() bson.D {
	return bson.D{{"createIndexes", "c"}, {"indexes", bson.A{draw(g, "index", indexes)}}}
}

// dropIndexes draws one.
func (g *gen) dropIndexes() bson.D {
	return bson.D{{"dropIndexes", "c"}, {"index", get(draw(g, "index", indexes), "name")}}
}
