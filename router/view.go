package router

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// maxViewDepth bounds views on views, as mongod does.
const maxViewDepth = 20

// onView is what admit answers for a view: reads resolve it, nothing else works on one.
func onView(ns string) error {
	return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
}

func isOnView(err error) bool { return mongoerr.CodeOf(err) == mongoerr.CommandNotSupportedOnView }

// definition is a view's, as create takes it and listCollections shows it.
type definition struct {
	ViewOn    string     `bson:"viewOn"`
	Pipeline  []bson.Raw `bson:"pipeline"`
	Collation bson.Raw   `bson:"collation"`
}

// resolution is a view down to its collection.
type resolution struct {
	coll      string // in the view's database
	pipeline  []bson.Raw
	collation bson.Raw // of the view; nil: simple
}

// resolve follows a view, and views under it, to a collection.
func (s *Snapshot) resolve(e *Entry) (res resolution, err error) {
	db := dbOf(e.Coll.NS)
	res.collation = e.Coll.Collation
	for range maxViewDepth + 1 {
		var d definition
		if err := bson.Unmarshal(e.Coll.Options, &d); err != nil {
			return res, mongoerr.Wrap(mongoerr.InternalError, err, "the definition of a view is broken")
		}
		res.coll = d.ViewOn
		res.pipeline = append(append([]bson.Raw(nil), d.Pipeline...), res.pipeline...)
		if e = s.Entries[db+"."+d.ViewOn]; e == nil || e.Coll.Kind != catalog.KindView {
			return res, nil
		}
	}
	return res, mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth too deep or view cycle detected; maximum depth is %d", maxViewDepth)
}

// onCollection makes an aggregate on a view's collection of an operation on the view.
// stages are the operation's own; fields, elements beside them; skip, those of its
// command that stages stand for.
func (r *Router) onCollection(op *Op, view *Entry, stages []bson.Raw, fields []byte, skip ...string) (*Op, error) {
	res, err := r.snap.Load().resolve(view)
	if err != nil {
		return nil, err
	}
	if c, ok := op.Lookup("collation"); ok {
		if err := sameCollation(c, res.collation); err != nil {
			return nil, err
		}
	}
	pipe := bsoncore.NewArrayBuilder()
	for _, st := range append(res.pipeline, stages...) {
		pipe.AppendDocument(bsoncore.Document(st))
	}
	at, b := wire.AppendDocStart(nil)
	b = bsoncore.AppendStringElement(b, "aggregate", res.coll)
	b = bsoncore.AppendArrayElement(b, "pipeline", pipe.Build())
	b = append(b, fields...)
	b = appendSkipping(b, op.Cmd, 0, append(skip, string(op.Cmd.First.Name), "pipeline", "collation"))
	if len(res.collation) > 0 {
		b = bsoncore.AppendDocumentElement(b, "collation", bsoncore.Document(res.collation))
	}
	in := *op
	in.Cmd, in.Msg, in.view = &wire.Command{}, nil, view.Coll.NS
	return &in, in.Cmd.Parse(wire.AppendDocEnd(b, at))
}

// sameCollation refuses a collation other than the view's.
func sameCollation(asked wire.Elem, of bson.Raw) error {
	d, _ := asked.Doc()
	locale, _ := d.Lookup("locale")
	name, _ := locale.Str()
	if simple := name == "simple"; simple && len(of) == 0 || !simple && len(of) > 0 && covers(of, d) {
		return nil
	}
	return mongoerr.New(mongoerr.OptionNotSupportedOnView, "Cannot override a view's default collation")
}

// covers reports whether a stored collation, which names every field, has all of d.
func covers(of bson.Raw, d wire.Doc) bool {
	it := d.Iter()
	var e wire.Elem
	for it.Next(&e) {
		have := of.Lookup(string(e.Name))
		n, isNum := e.Int64()
		if m, ok := have.AsInt64OK(); isNum && ok && n == m {
			continue
		}
		if have.Type != e.Type || !bytes.Equal(have.Value, e.Value) {
			return false
		}
	}
	return true
}

// viewed makes the aggregate that stands for a command on a view; what does not read is
// refused with 166.
func (r *Router) viewed(op *Op, view *Entry) (*Op, error) {
	switch string(op.Cmd.First.Name) {
	case "find":
		return r.viewedFind(op, view)
	case "aggregate":
		p, err := parsePipeline(op)
		if err != nil {
			return nil, err
		}
		var stages []bson.Raw
		for _, st := range p.stages {
			stages = append(stages, bson.Raw(st))
		}
		return r.onCollection(op, view, stages, nil)
	case "count":
		return r.viewedCount(op, view)
	case "distinct":
		return r.viewedDistinct(op, view)
	default:
		return nil, onView(view.Coll.NS)
	}
}

// readView runs find or aggregate on a view.
func (r *Router) readView(ctx context.Context, op *Op, view *Entry) error {
	in, err := r.viewed(op, view)
	if err != nil {
		return err
	}
	return r.aggregateInside(ctx, op, in)
}

// explainView explains the aggregate that stands for a command on a view.
func (r *Router) explainView(ctx context.Context, op, in *Op, view *Entry) error {
	stands, err := r.viewed(in, view)
	if err != nil {
		return err
	}
	return r.Explain(ctx, op, stands.Cmd)
}

func (r *Router) viewedFind(op *Op, view *Entry) (*Op, error) {
	var stages []bson.Raw
	var fields []byte
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
		case o.option == "sort" && sortOrder(d) == nil:
			return nil, notOnViews("Sort option $natural")
		}
		stages = append(stages, bson.Raw(StageOf(o.stage, e)))
	}
	for _, name := range []string{"min", "max"} {
		if e, ok := op.Lookup(name); ok && len(e.Value) > len(emptyDoc) {
			return nil, notOnViews("Option " + name)
		}
	}
	for _, name := range []string{"returnKey", "showRecordId", "tailable", "awaitData", "oplogReplay", "noCursorTimeout", "allowPartialResults"} {
		if isSet(op.Cmd.Body, name) {
			return nil, notOnViews("Option " + name)
		}
	}
	if isSet(op.Cmd.Body, "singleBatch") && limit != 1 {
		return nil, notOnViews("Option singleBatch")
	}
	fields = bsoncore.AppendDocumentElement(fields, "cursor", bsoncore.BuildDocument(nil, appendField(nil, op.Cmd.Body, "batchSize")))
	return r.onCollection(op, view, stages, fields, "filter", "sort", "skip", "limit", "projection", "batchSize", "singleBatch",
		"min", "max", "returnKey", "showRecordId", "tailable", "awaitData", "oplogReplay", "noCursorTimeout", "allowPartialResults")
}

func notOnViews(what string) error {
	return mongoerr.New(mongoerr.InvalidPipelineOperator, what+" not supported in aggregation.")
}

// aggregateInside runs an aggregate that stands for an operation.
func (r *Router) aggregateInside(ctx context.Context, op, in *Op) error {
	err := r.Aggregate(ctx, in)
	op.Trace = in.Trace
	return err
}

// countView runs count on a view.
func (r *Router) countView(ctx context.Context, op *Op, view *Entry) error {
	first, err := r.firstOf(ctx, op, view)
	if err != nil {
		return err
	}
	n, _ := first.Lookup("n").AsInt64OK()
	op.Reply.Elems = appendCount(op.Reply.Elems, "n", n)
	op.Reply.OK()
	return nil
}

func (r *Router) viewedCount(op *Op, view *Entry) (*Op, error) {
	var stages []bson.Raw
	if q, err := filterOf(op, "query"); err != nil {
		return nil, err
	} else if len(q) > len(emptyDoc) {
		stages = append(stages, bson.Raw(stageDoc("$match", q)))
	}
	skip, limit, err := countLimits(op)
	if err != nil {
		return nil, err
	}
	if skip > 0 {
		stages = append(stages, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt64Element(nil, "$skip", skip))))
	}
	if limit != 0 {
		stages = append(stages, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt64Element(nil, "$limit", limit))))
	}
	stages = append(stages, bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$count", "n"))))
	return r.onCollection(op, view, stages, emptyCursorOption(), "query", "skip", "limit", "fields")
}

// distinctView runs distinct on a view.
func (r *Router) distinctView(ctx context.Context, op *Op, view *Entry) error {
	first, err := r.firstOf(ctx, op, view)
	if err != nil {
		return err
	}
	list := bsoncore.Array(emptyDoc)
	if v := first.Lookup("values"); v.Type == bson.TypeArray {
		list = bsoncore.Array(v.Value)
	}
	op.Reply.Elems = bsoncore.AppendArrayElement(op.Reply.Elems, "values", list)
	op.Reply.OK()
	return nil
}

func (r *Router) viewedDistinct(op *Op, view *Entry) (*Op, error) {
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
	stages = append(stages, bson.Raw(stageDoc("$group", bsoncore.BuildDocument(nil, group))))
	return r.onCollection(op, view, stages, emptyCursorOption(), "key", "query")
}

// emptyCursorOption is cursor: {}.
func emptyCursorOption() []byte { return bsoncore.AppendDocumentElement(nil, "cursor", emptyDoc) }

// firstOf returns the first document of the aggregate that stands for a command, nil if
// there is none.
func (r *Router) firstOf(ctx context.Context, op *Op, view *Entry) (bson.Raw, error) {
	in, err := r.viewed(op, view)
	if err != nil {
		return nil, err
	}
	in.Reply = &wire.Reply{}
	in.Reply.Begin(nil)
	if err := r.aggregateInside(ctx, op, in); err != nil {
		return nil, err
	}
	op.Reply.ShardTime = max(op.Reply.ShardTime, in.Reply.ShardTime)
	body, err := wire.ReplyBody(in.Reply.Finish(0, 0, 0, nil))
	if err != nil {
		return nil, err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return nil, err
	}
	_, _, batch, err := cursorReply(info.Cursor)
	if err != nil {
		return nil, err
	}
	e, _ := wire.FirstElem(batch)
	return bson.Raw(e.Value), nil
}

// StageOf makes {name: value} of a command's option.
func StageOf(name string, e wire.Elem) wire.Doc {
	v := bsoncore.AppendHeader(nil, bsoncore.Type(e.Type), name)
	return wire.Doc(bsoncore.BuildDocument(nil, append(v, e.Value...)))
}
