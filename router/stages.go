package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// reads reports whether a command is one that asStages can say.
func reads(op *Op) bool {
	switch string(op.Cmd.First.Name) {
	case "find", "aggregate", "count", "distinct":
		return true
	}
	return false
}

// asStages says a find, aggregate, count or distinct as the stages of a pipeline. A count
// gives {n}, a distinct {values}. What a pipeline cannot say is 168; what only has no
// meaning where there is no collection at all passes unless strict.
func asStages(op *Op, strict bool) ([]bson.Raw, error) {
	switch string(op.Cmd.First.Name) {
	case "find":
		return findAsStages(op, strict)
	case "count":
		return countAsStages(op)
	case "distinct":
		return distinctAsStages(op)
	}
	p, err := parsePipeline(op)
	if err != nil {
		return nil, err
	}
	stages := make([]bson.Raw, len(p.stages))
	for i, st := range p.stages {
		stages[i] = bson.Raw(st)
	}
	return stages, nil
}

// saidByStages are the fields of a command that asStages says, or refuses.
func saidByStages(command string) []string {
	switch command {
	case "find":
		return []string{
			"filter", "sort", "skip", "limit", "projection", "batchSize", "singleBatch", "min", "max", "returnKey", "showRecordId",
			"tailable", "awaitData", "oplogReplay", "noCursorTimeout", "allowPartialResults",
		}
	case "count":
		return []string{"query", "skip", "limit", "fields"}
	case "distinct":
		return []string{"key", "query"}
	}
	return []string{"pipeline"}
}

func findAsStages(op *Op, strict bool) ([]bson.Raw, error) {
	var stages []bson.Raw
	limit := int64(0)
	for _, o := range []struct{ option, stage string }{
		{"filter", "$match"}, {"sort", "$sort"}, {"skip", "$skip"}, {"limit", "$limit"}, {"projection", "$project"},
	} {
		e, ok := op.Lookup(o.option)
		if !ok {
			continue
		}
		n, isNum := e.Int64()
		d, isDoc := e.Doc()
		switch {
		case isNum && n < 0:
			return nil, mongoerr.Newf(51024, "BSON field '%s' value must be >= 0, actual value '%d'", o.option, n)
		case isDoc && len(d) <= len(emptyDoc), isNum && n == 0:
			continue
		case o.option == "limit":
			limit = n
		case o.option == "sort" && sortOrder(d) == nil && !strict:
			continue
		case o.option == "sort" && sortOrder(d) == nil:
			return nil, notInPipelines("Sort option $natural")
		}
		stages = append(stages, stageOf(o.stage, e))
	}
	for _, name := range []string{"min", "max"} {
		if e, ok := op.Lookup(name); ok && len(e.Value) > len(emptyDoc) {
			return nil, notInPipelines("Option " + name)
		}
	}
	refused := []string{"returnKey", "showRecordId", "tailable", "awaitData", "oplogReplay"}
	if strict {
		refused = append(refused, "noCursorTimeout", "allowPartialResults")
	}
	if strict && limit != 1 {
		refused = append(refused, "singleBatch")
	}
	for _, name := range refused {
		if isSet(op.Cmd.Body, name) {
			return nil, notInPipelines("Option " + name)
		}
	}
	return stages, nil
}

func notInPipelines(what string) error {
	return mongoerr.New(mongoerr.InvalidPipelineOperator, what+" not supported in aggregation.")
}

func countAsStages(op *Op) ([]bson.Raw, error) {
	q, err := filterOf(op, "query")
	if err != nil {
		return nil, err
	}
	skip, limit, err := countLimits(op)
	if err != nil {
		return nil, err
	}
	var stages []bson.Raw
	if len(q) > len(emptyDoc) {
		stages = append(stages, bson.Raw(stageDoc("$match", q)))
	}
	if skip > 0 {
		stages = append(stages, int64Stage("$skip", skip))
	}
	if limit > 0 {
		stages = append(stages, int64Stage("$limit", limit))
	}
	return append(stages, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$count", "n")))), nil
}

func int64Stage(name string, n int64) bson.Raw {
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt64Element(nil, name, n)))
}

// distinctAsStages takes arrays apart on every level of the path, as distinct does.
func distinctAsStages(op *Op) ([]bson.Raw, error) {
	key, _ := op.Lookup("key")
	path, ok := key.Str()
	if !ok {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "BSON field 'distinct.key' must be a string")
	}
	q, err := filterOf(op, "query")
	if err != nil {
		return nil, err
	}
	stages := []bson.Raw{bson.Raw(stageDoc("$match", q))}
	for i := range len(path) + 1 {
		if i < len(path) && path[i] != '.' {
			continue
		}
		unwind := bsoncore.AppendStringElement(nil, "path", "$"+path[:i])
		unwind = bsoncore.AppendBooleanElement(unwind, "preserveNullAndEmptyArrays", true)
		stages = append(stages, bson.Raw(stageDoc("$unwind", bsoncore.BuildDocument(nil, unwind))))
	}
	values := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$addToSet", "$"+path))
	group := bsoncore.AppendDocumentElement(bsoncore.AppendNullElement(nil, "_id"), "values", values)
	return append(stages, bson.Raw(stageDoc("$group", bsoncore.BuildDocument(nil, group)))), nil
}

// replyCount answers a count with what its stages gave: nothing for none.
func replyCount(op *Op, d bson.Raw) {
	n, _ := d.Lookup("n").AsInt64OK()
	op.Reply.Elems = appendCount(op.Reply.Elems, "n", n)
	op.Reply.OK()
}

// replyDistinct answers a distinct with what its stages gave.
func replyDistinct(op *Op, d bson.Raw) {
	list := bsoncore.Array(emptyDoc)
	if v := d.Lookup("values"); v.Type == bson.TypeArray {
		list = bsoncore.Array(v.Value)
	}
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "values", list)
	op.Reply.OK()
}

// stageOf makes {name: value} of a command's option.
func stageOf(name string, e wire.Elem) bson.Raw {
	v := bsoncore.AppendHeader(nil, bsoncore.Type(e.Type), name)
	return bson.Raw(bsoncore.BuildDocument(nil, append(v, e.Value...)))
}

// VirtualRead runs a find, aggregate, count or distinct on documents that lie in no
// collection.
func (r *Router) VirtualRead(ctx context.Context, op *Op, ns string, docs []bson.Raw) error {
	said, err := asStages(op, false)
	if err != nil {
		return err
	}
	stages := make([]wire.Doc, len(said))
	for i, st := range said {
		stages[i] = wire.Doc(st)
	}
	name := string(op.Cmd.First.Name)
	switch {
	case name == "find", name == "aggregate":
		return r.Virtual(ctx, op, ns, docs, stages, nil)
	case name == "count" && len(stages) == 1:
		op.Reply.Elems = appendCount(op.Reply.Elems, "n", int64(len(docs))) // no shard is needed to count all
		op.Reply.OK()
		return nil
	}
	found, err := r.VirtualDocs(ctx, op, docs, stages, nil)
	if err != nil {
		return err
	}
	var first bson.Raw
	if len(found) > 0 {
		first = found[0]
	}
	if name == "count" {
		replyCount(op, first)
	} else {
		replyDistinct(op, first)
	}
	return nil
}
