package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// pipeline is what routing has to know of an aggregation pipeline.
type pipeline struct {
	stages  []wire.Doc
	foreign []string // namespaces of other collections, at any depth
	out     bool     // $out or $merge
	first   string   // name of the first stage
}

// parsePipeline reads the command's stages; db completes names without a database.
func parsePipeline(op *Op) (*pipeline, error) {
	e, ok := op.Cmd.Body.Lookup("pipeline") // null is no array
	if !ok {
		return nil, mongoerr.New(40414, "BSON field 'aggregate.pipeline' is missing but a required field")
	}
	if e.Type != bson.TypeArray {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "'pipeline' option must be specified as an array")
	}
	p := &pipeline{}
	return p, p.read(wire.Doc(e.Value), string(op.Cmd.DB), 0)
}

// maxPipelineDepth bounds nested pipelines, as mongod does.
const maxPipelineDepth = 20

func (p *pipeline) read(stages wire.Doc, db string, depth int) error {
	if depth > maxPipelineDepth {
		return mongoerr.New(mongoerr.Overflow, "Maximum number of nested sub-pipelines exceeded")
	}
	it := stages.Iter()
	var e wire.Elem
	for it.Next(&e) {
		d, ok := e.Doc()
		if !ok {
			return mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		spec, ok := d.First()
		if !ok || len(spec.Raw) != len(d)-5 {
			return mongoerr.New(40323, "A pipeline stage specification object must contain exactly one field.")
		}
		if depth == 0 {
			if len(p.stages) == 0 {
				p.first = string(spec.Name)
			}
			p.stages = append(p.stages, d)
		}
		if err := p.stage(&spec, db, depth); err != nil {
			return err
		}
	}
	return it.Err()
}

// stage notes the collections that a stage reaches beside its own.
func (p *pipeline) stage(spec *wire.Elem, db string, depth int) error {
	d, isDoc := spec.Doc()
	switch string(spec.Name) {
	case "$out", "$merge":
		p.out = true
	case "$lookup", "$graphLookup":
		p.reach(d, db, "from")
	case "$unionWith":
		if name, ok := spec.Str(); ok {
			p.foreign = append(p.foreign, db+"."+name)
		}
		p.reach(d, db, "coll")
	case "$facet":
		it := d.Iter()
		var f wire.Elem
		for it.Next(&f) {
			if f.Type == bson.TypeArray {
				if err := p.read(wire.Doc(f.Value), db, depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	default:
		return nil
	}
	if sub, ok := d.Lookup("pipeline"); isDoc && ok && sub.Type == bson.TypeArray {
		return p.read(wire.Doc(sub.Value), db, depth+1)
	}
	return nil
}

func (p *pipeline) reach(d wire.Doc, db, field string) {
	e, ok := d.Lookup(field)
	if !ok {
		return
	}
	if name, ok := e.Str(); ok {
		p.foreign = append(p.foreign, db+"."+name)
		return
	}
	// {db, coll}: a form for config and local only; it reaches elsewhere.
	p.foreign = append(p.foreign, "")
}

// match returns the filter of a leading $match.
func (p *pipeline) match() bson.Raw {
	if p.first != "$match" {
		return emptyDoc
	}
	e, _ := p.stages[0].First()
	d, ok := e.Doc()
	if !ok {
		return emptyDoc
	}
	return bson.Raw(d)
}

// Aggregate runs aggregate on a collection: whole on one shard where one holds all it
// needs. Stages that report on shards ($collStats…) run on each, and what follows
// them on the merged reports.
func (r *Router) Aggregate(ctx context.Context, op *Op) error {
	p, err := parsePipeline(op)
	if err != nil {
		return err
	}
	if p.out {
		return notYet("$out and $merge")
	}
	if op.view != "" && isSet(op.Cmd.Body, "explain") {
		return notYet("explain on views")
	}
	if p.first == "$documents" {
		return mongoerr.New(mongoerr.InvalidNamespace, "'$documents' can only be run with {aggregate: 1}")
	}
	for _, internal := range []string{"fromMongos", "needsMerge"} {
		if isSet(op.Cmd.Body, internal) {
			return mongoerr.Newf(51089, "the aggregate command's field '%s' is for internal use", internal)
		}
	}
	s, err := r.admitInsisted(ctx, op)
	if isOnView(err) {
		return r.readView(ctx, op, s.entry)
	}
	if err != nil {
		return err
	}
	if op.view != "" {
		s.ns = op.view
	}
	if s.entry == nil {
		if p.first == "$changeStream" {
			return notYet("a change stream on a collection that does not exist yet")
		}
		if len(p.foreign) == 0 {
			return r.aggregateNothing(ctx, op, &s, p)
		}
		return notYet("a pipeline on a missing collection that reaches others")
	}
	defer r.leave(s.entry)
	if isReport(p.first) {
		return r.aggregateReports(ctx, op, &s, p)
	}
	if err := r.route(&s, op, p.match()); err != nil {
		return err
	}
	if len(s.shards) > 1 {
		if isSet(op.Cmd.Body, "explain") {
			return notYet("explain over several shards")
		}
		if _, ok := op.Lookup("cursor"); !ok {
			return mongoerr.New(mongoerr.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument")
		}
		if p.first == "$changeStream" {
			return notYet("a change stream over several shards")
		}
		return r.aggregateScatter(ctx, op, &s, p)
	}
	// They are read under one table, too: none of it is dropped meanwhile.
	others, err := r.enterAll(ctx, p.foreign, op.Deadline)
	defer func() {
		for _, e := range others {
			r.leave(e)
		}
	}()
	if err != nil {
		return err
	}
	if err := allOn(p.foreign, others, s.shards[0]); err != nil {
		return err
	}
	if err := p.streamable(s.entry); err != nil {
		return err
	}
	s.streams = p.first == "$changeStream"
	if op.view != "" {
		return r.aggregateStream(ctx, op, &s, &split{shard: p.stages, limit: -1})
	}
	if !s.leavesOut() {
		return r.passCursor(ctx, op, &s, &patch{})
	}
	own, err := s.withStages(&patch{skip: []string{"pipeline"}}, p.stages)
	if err != nil {
		return err
	}
	return r.passCursor(ctx, op, &s, own.at(0))
}

// enterAll passes the gate for reads of several namespaces; who is admitted is among the
// entries, whatever the error.
func (r *Router) enterAll(ctx context.Context, names []string, deadline time.Time) ([]*Entry, error) {
	entries := make([]*Entry, len(names))
	for i, ns := range names {
		e, err := r.enter(ctx, []byte(ns), deadline)
		if err != nil {
			return entries, err
		}
		entries[i] = e
	}
	return entries, nil
}

// allOn refuses a pipeline that reaches what the shard does not hold whole.
func allOn(foreign []string, entries []*Entry, shard string) error {
	for i, ns := range foreign {
		e := entries[i]
		if ns == "" || (e != nil && (e.Coll.Kind != catalog.KindUnsharded || e.Home() != shard)) {
			return notYet("a pipeline that reaches a collection on another shard")
		}
	}
	return nil
}

func isReport(stage string) bool {
	switch stage {
	case "$collStats", "$indexStats", "$planCacheStats":
		return true
	}
	return false
}

// aggregateNothing runs a pipeline over no documents: a $group without key, say,
// still answers something on some servers, and options are checked.
func (r *Router) aggregateNothing(ctx context.Context, op *Op, s *scope, p *pipeline) error {
	if isReport(p.first) {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection [%s] not found.", s.ns)
	}
	return r.Virtual(ctx, op, s.ns, nil, p.stages, nil)
}

// aggregateReports runs a reporting stage on every owner, adds the shard's name to
// each report, and the rest of the pipeline over all reports.
func (r *Router) aggregateReports(ctx context.Context, op *Op, s *scope, p *pipeline) error {
	s.shards = s.entry.Table.Shards()
	var docs []bson.Raw
	err := r.gather(ctx, op, s, &split{shard: p.stages[:1], limit: -1}, func(shard string, d wire.Doc) error {
		docs = append(docs, withShard(d, shard))
		return nil
	})
	if err != nil {
		return err
	}
	return r.Virtual(ctx, op, s.ns, docs, p.stages[1:], nil)
}

// withShard adds the shard's name to a report, as mongos does.
func withShard(doc wire.Doc, shard string) bson.Raw {
	out := append(make([]byte, 0, len(doc)+32), doc[:len(doc)-1]...)
	out = bsoncore.AppendStringElement(out, "shard", shard)
	return wire.AppendDocEnd(out, 0)
}
