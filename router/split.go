package router

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
)

// split is a pipeline in two: what every shard runs on its documents, and what runs
// once on all they give.
type split struct {
	shard  []wire.Doc
	merger []wire.Doc
	// partial: the shard half ends in a $group whose results are partial ones, in the
	// form that a mongod of the same version merges.
	partial bool
}

// perDocument reports whether a stage looks at one document at a time, so that it may
// run on the shards.
func perDocument(stage string) bool {
	switch stage {
	case "$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$redact", "$unwind":
		return true
	}
	return false
}

// needsShard reports whether a first stage reads a collection in a way that cannot be
// split here yet.
func needsShard(stage string) bool {
	switch stage {
	case "$geoNear", "$sample", "$search", "$searchMeta", "$vectorSearch", "$changeStream", "$currentOp", "$listSessions":
		return true
	}
	return false
}

// splitPipeline divides at the first stage that needs all documents. A $group there
// is run on both sides.
func splitPipeline(stages []wire.Doc) split {
	n := 0
	for n < len(stages) {
		e, _ := stages[n].First()
		if !perDocument(string(e.Name)) {
			break
		}
		n++
	}
	s := split{shard: stages[:n:n], merger: stages[n:]}
	if n == len(stages) {
		return s
	}
	group, after := asGroup(stages[n])
	if group == nil {
		return s
	}
	merging, ok := mergingGroup(group)
	if !ok {
		return s
	}
	s.shard = append(s.shard, group)
	s.merger = append(append([]wire.Doc{merging}, after...), stages[n+1:]...)
	s.partial = true
	return s
}

// asGroup writes $count as the $group and $project that it stands for.
func asGroup(stage wire.Doc) (group wire.Doc, after []wire.Doc) {
	e, _ := stage.First()
	switch string(e.Name) {
	case "$group":
		return stage, nil
	case "$count":
		name, ok := e.Str()
		if !ok || name == "" || name[0] == '$' || name == "_id" || strings.Contains(name, ".") {
			return nil, nil // refused by the merging side
		}
		one := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "$sum", 1))
		spec := bsoncore.AppendNullElement(nil, "_id")
		spec = bsoncore.AppendDocumentElement(spec, name, one)
		hide := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 0))
		return stageDoc("$group", bsoncore.BuildDocument(nil, spec)), []wire.Doc{stageDoc("$project", hide)}
	}
	return nil, nil
}

func stageDoc(name string, spec []byte) wire.Doc {
	return wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, name, spec)))
}

// mergesPartial reports whether an accumulator's partial results are known to merge
// through its plain form (run on mongod 6.0.5); with another one in it, a $group runs
// at the merger whole.
func mergesPartial(op string) bool {
	switch op {
	case "$sum", "$avg", "$min", "$max", "$addToSet", "$stdDevPop", "$stdDevSamp":
		return true
	}
	return false
}

// mergingGroup makes the $group that merges partial results: every accumulator reads
// its own field of them (MONGOD.md "Merging").
func mergingGroup(group wire.Doc) (wire.Doc, bool) {
	e, _ := group.First()
	spec, ok := e.Doc()
	if !ok {
		return nil, false
	}
	out := bsoncore.AppendStringElement(nil, "_id", "$$ROOT._id")
	it := spec.Iter()
	var f wire.Elem
	for it.Next(&f) {
		if string(f.Name) == "_id" {
			continue
		}
		acc, ok := f.Doc()
		if !ok {
			return nil, false
		}
		op, ok := acc.First()
		if !ok {
			return nil, false
		}
		if !mergesPartial(string(op.Name)) {
			return nil, false
		}
		arg := bsoncore.AppendStringElement(nil, string(op.Name), "$$ROOT."+string(f.Name))
		out = bsoncore.AppendDocumentElement(out, string(f.Name), bsoncore.BuildDocument(nil, arg))
	}
	if it.Err() != nil {
		return nil, false
	}
	out = bsoncore.AppendBooleanElement(out, "$doingMerge", true)
	return stageDoc("$group", bsoncore.BuildDocument(nil, out)), true
}

// aggregateScatter runs a pipeline over several shards: its first half on each, the
// rest over all that they gave, on a real mongod.
func (r *Router) aggregateScatter(ctx context.Context, op *Op, s *scope, p *pipeline) error {
	if needsShard(p.first) {
		return notYet(p.first + " over several shards")
	}
	if len(p.foreign) > 0 {
		return notYet("a pipeline over several shards that reaches other collections")
	}
	sp := splitPipeline(p.stages)
	if len(sp.merger) == 0 {
		return r.aggregateStream(ctx, op, s, &sp)
	}
	docs, err := r.gather(ctx, op, s, &sp)
	if err != nil {
		return err
	}
	return r.Virtual(ctx, op, s.ns, docs, sp.merger, s.entry.collation())
}

func (sp *split) patch() *patch {
	b := bsoncore.NewArrayBuilder()
	for _, st := range sp.shard {
		b.AppendDocument(bsoncore.Document(st))
	}
	extra := bsoncore.AppendArrayElement(nil, "pipeline", b.Build())
	if sp.partial {
		extra = bsoncore.AppendBooleanElement(extra, "fromMongos", true)
		extra = bsoncore.AppendBooleanElement(extra, "needsMerge", true)
	}
	return &patch{skip: []string{"pipeline"}, extra: extra, drop: wire.ArgAPI}
}

// aggregateStream merges the shards' results as they come.
func (r *Router) aggregateStream(ctx context.Context, op *Op, s *scope, sp *split) error {
	pt := sp.patch()
	if err := r.join(op, s.shards, pt); err != nil {
		return err
	}
	c := r.newCursor(op, s.ns)
	c.atTime = r.oneTime(op, pt)
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, _ int) []byte { return r.appendMessage(dst, op, pt) })
	if err := r.openParts(ctx, op, c, answers); err != nil {
		return err
	}
	return r.firstBatch(ctx, op, c, aggregateBatch(op))
}

// gather collects all that the shard half gives, up to what one command can carry to
// the merging mongod.
func (r *Router) gather(ctx context.Context, op *Op, s *scope, sp *split) ([]bson.Raw, error) {
	var docs []bson.Raw
	err := r.gatherEach(ctx, op, s, sp, func(_ string, d wire.Doc) { docs = append(docs, append(bson.Raw(nil), d...)) })
	return docs, err
}

// gatherEach is gather with a function that gets each document and its shard; the
// document is the function's for the call only.
func (r *Router) gatherEach(ctx context.Context, op *Op, s *scope, sp *split, each func(shard string, d wire.Doc)) error {
	pt := sp.patch()
	pt.skip = append(pt.skip, "cursor")
	pt.extra = bsoncore.AppendDocumentElement(pt.extra, "cursor", emptyDoc)
	if err := r.join(op, s.shards, pt); err != nil {
		return err
	}
	c := r.newCursor(op, s.ns)
	c.atTime = r.oneTime(op, pt)
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, _ int) []byte { return r.appendMessage(dst, op, pt) })
	if err := r.openParts(ctx, op, c, answers); err != nil {
		return err
	}
	defer r.killShardCursors(ctx, c)
	total := 0
	for {
		p, doc, err := r.head(ctx, op, c)
		if err != nil || p == nil {
			return err
		}
		if total += len(doc); total > literalLimit {
			return notYet("a pipeline over several shards whose merging half takes more than 15 MiB")
		}
		each(p.shard, doc)
		p.pop()
	}
}
