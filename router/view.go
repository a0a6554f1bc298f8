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

// viewed makes the aggregate on a view's collection that stands for a command on the
// view; what does not read is refused with 166.
func (r *Router) viewed(op *Op, view *Entry) (*Op, error) {
	if !reads(op) {
		return nil, onView(view.Coll.NS)
	}
	stages, err := asStages(op, true)
	if err != nil {
		return nil, err
	}
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
	name := string(op.Cmd.First.Name)
	if name != "aggregate" {
		batch := appendField(nil, op.Cmd.Body, "batchSize")
		b = bsoncore.AppendDocumentElement(b, "cursor", bsoncore.BuildDocument(nil, batch))
	}
	b = appendSkipping(b, op.Cmd, 0, append(saidByStages(name), name, "collation"))
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

// aggregateInside runs an aggregate that stands for an operation.
func (r *Router) aggregateInside(ctx context.Context, op, in *Op) error {
	err := r.Aggregate(ctx, in)
	op.Trace = in.Trace
	return err
}

// countView runs count on a view.
func (r *Router) countView(ctx context.Context, op *Op, view *Entry) error {
	first, err := r.firstOf(ctx, op, view)
	if err == nil {
		replyCount(op, first)
	}
	return err
}

// distinctView runs distinct on a view.
func (r *Router) distinctView(ctx context.Context, op *Op, view *Entry) error {
	first, err := r.firstOf(ctx, op, view)
	if err == nil {
		replyDistinct(op, first)
	}
	return err
}

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
