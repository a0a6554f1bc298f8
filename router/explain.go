package router

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Explain says how a command would run: where the router sends it, with the shards' own
// explanations inside (MONGOS.md §3.6).
func (r *Router) Explain(ctx context.Context, op *Op, inner *wire.Command) error {
	in := *op
	in.Cmd, in.Msg = inner, nil
	s, err := r.admit(ctx, &in)
	if isOnView(err) {
		return r.explainView(ctx, op, &in, s.entry)
	}
	if err != nil {
		return err
	}
	if s.entry != nil {
		defer r.leave(s.entry)
		if err := r.routeExplained(&s, &in); err != nil {
			return err
		}
	} else if s.shards = r.anyShards(); len(s.shards) > 1 {
		s.shards = s.shards[:1]
	}
	p := &patch{}
	if string(inner.First.Name) == "find" && len(s.shards) > 1 {
		if p, err = explainedScatter(&in); err != nil {
			return err
		}
	}
	var pl *pipeline
	var sp split
	if string(inner.First.Name) == "aggregate" {
		if pl, err = parsePipeline(&in); err != nil {
			return err
		}
		if len(s.shards) > 1 {
			sp = splitPipeline(pl.stages)
			p = sp.patch()
			if err := r.checkMerger(ctx, &in, &sp); err != nil {
				return err
			}
		}
	}
	own, err := s.explained(&in, p, pl, &sp)
	if err != nil {
		return err
	}
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, i int) []byte {
		return r.appendElems(dst, op, explainCommand(op, inner, own.at(i)))
	})
	defer r.releaseAll(op, answers)
	if err := firstError(answers); err != nil {
		return err
	}
	if pl != nil || s.entry.isSeries() { // a shard reads a time series collection by a pipeline
		r.explainAggregate(op, answers, &sp)
	} else {
		r.explainPlain(op, inner, answers)
	}
	op.Reply.Doc("command", inner.Body)
	op.Reply.OK()
	return nil
}

// explained makes the patches of the explained command.
func (s *scope) explained(in *Op, p *patch, pl *pipeline, sp *split) (patches, error) {
	name := string(in.Cmd.First.Name)
	switch {
	case pl != nil && len(s.shards) > 1:
		return s.withStages(p, sp.shard)
	case !s.leavesOut(), name == "find" && positional(projectionOf(in)):
		return patches{all: p}, nil
	case pl != nil:
		return s.withStages(&patch{skip: []string{"pipeline"}}, pl.stages)
	case name == "update", name == "delete":
		field := kindOf(in.Cmd.First.Name).field
		docs, _, err := statements(in, field)
		if err != nil || isSet(docs, "upsert") {
			return patches{all: p}, err
		}
		return s.adapt(p, func(own *patch, cond *owned.Predicate) {
			own.skip = append(own.skip, field)
			own.extra = bsoncore.AppendArrayElement(own.extra, field, stageArray([]wire.Doc{narrowStatement(docs, cond)}))
		})
	case isSet(in.Cmd.Body, "upsert"): // it names the whole key, or is found as another command
		return patches{all: p}, nil
	}
	field := "query"
	if name == "find" {
		field = "filter"
	}
	filter, err := filterOf(in, field)
	if err != nil {
		return patches{}, err
	}
	return s.narrow(p, field, filter)
}

// checkMerger refuses a merging half that cannot run, which no shard gets to see.
func (r *Router) checkMerger(ctx context.Context, in *Op, sp *split) error {
	if len(sp.merger) == 0 {
		return nil
	}
	_, err := r.VirtualDocs(ctx, in, nil, sp.merger, nil)
	return err
}

// routeExplained finds the shards that the explained command goes to.
func (r *Router) routeExplained(s *scope, in *Op) error {
	switch string(in.Cmd.First.Name) {
	case "find":
		return r.routeBy(s, in, "filter")
	case "aggregate":
		p, err := parsePipeline(in)
		if err != nil {
			return err
		}
		if p.out || len(p.foreign) > 0 && s.entry.Sharded() {
			return notYet("explain of a pipeline that reaches other collections")
		}
		return r.route(s, in, p.match())
	case "update", "delete":
		docs, _, err := statements(in, kindOf(in.Cmd.First.Name).field)
		if err != nil {
			return err
		}
		q, ok := wire.Doc(docs).Lookup("q")
		d, isDoc := q.Doc()
		if !ok || !isDoc {
			return mongoerr.New(mongoerr.TypeMismatch, "the statement's q must be an object")
		}
		return r.route(s, in, bson.Raw(d))
	default:
		return r.routeBy(s, in, "query")
	}
}

func (r *Router) routeBy(s *scope, in *Op, field string) error {
	filter, err := filterOf(in, field)
	if err != nil {
		return err
	}
	return r.route(s, in, filter)
}

func explainedScatter(in *Op) (*patch, error) {
	filter, err := filterOf(in, "filter")
	if err != nil {
		return nil, err
	}
	o, err := parseFindOptions(in, filter)
	if err != nil {
		return nil, err
	}
	p := &patch{skip: []string{"skip", "limit", "singleBatch", "batchSize"}}
	p.extra, err = scatterFindArgs(&o, p)
	return p, err
}

// explainCommand makes {explain: <the command as a shard would get it>, verbosity}.
func explainCommand(op *Op, inner *wire.Command, p *patch) []byte {
	at, b := bsoncore.AppendDocumentElementStart(nil, "explain")
	b = appendSkipping(b, inner, wire.ArgDB|wire.ArgLSID|wire.ArgClusterTime|wire.ArgReadPreference, p.skip)
	b = append(b, p.extra...)
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	if v, ok := op.Lookup("verbosity"); ok {
		b = append(b, v.Raw...)
	}
	return b
}

// appendElems appends a command of the router's making with the client's envelope.
func (r *Router) appendElems(dst []byte, op *Op, elems []byte) []byte {
	start := len(dst)
	dst = wire.AppendMsgStart(dst, 0, 0, 0)
	at, dst := wire.AppendDocStart(dst)
	dst = append(dst, elems...)
	dst = r.appendEnvelope(dst, op, &patch{})
	dst = bsoncore.AppendStringElement(dst, "$db", string(op.Cmd.DB))
	dst = wire.AppendDocEnd(dst, at)
	wire.SetLength(dst[start:])
	return dst
}

// stageName says how the router carries a command out.
func stageName(inner *wire.Command, shards int) string {
	switch string(inner.First.Name) {
	case "update", "delete", "findAndModify", "findandmodify":
		return "SHARD_WRITE"
	}
	if shards == 1 {
		return "SINGLE_SHARD"
	}
	if e, ok := inner.Body.Lookup("sort"); ok {
		if d, _ := e.Doc(); len(sortOrder(d)) > 0 {
			return "SHARD_MERGE_SORT"
		}
	}
	return "SHARD_MERGE"
}

func (r *Router) explainPlain(op *Op, inner *wire.Command, answers []answer) {
	stage := stageName(inner, len(answers))
	shards := bsoncore.NewArrayBuilder()
	for i := range answers {
		a := &answers[i]
		b := bsoncore.AppendStringElement(nil, "shardName", a.shard)
		b = bsoncore.AppendStringElement(b, "connectionString", r.snap.Load().Shards[a.shard].Host)
		b = appendField(b, a.body, "serverInfo")
		if q, ok := a.body.Lookup("queryPlanner"); ok {
			d, _ := q.Doc()
			b = append(b, d[4:len(d)-1]...)
		}
		shards.AppendDocument(bsoncore.BuildDocument(nil, b))
	}
	plan := bsoncore.AppendStringElement(nil, "stage", stage)
	plan = bsoncore.AppendArrayElement(plan, "shards", shards.Build())
	planner := bsoncore.AppendInt32Element(nil, "mongosPlannerVersion", 1)
	planner = bsoncore.AppendDocumentElement(planner, "winningPlan", bsoncore.BuildDocument(nil, plan))
	op.Reply.Doc("queryPlanner", bsoncore.BuildDocument(nil, planner))
	explainExecution(op, stage, answers)
	if len(answers) > 0 {
		op.Reply.Elems = appendField(op.Reply.Elems, answers[0].body, "serverInfo")
		op.Reply.Elems = appendField(op.Reply.Elems, answers[0].body, "serverParameters")
	}
}

func appendField(dst []byte, d wire.Doc, name string) []byte {
	if e, ok := d.Lookup(name); ok {
		return append(dst, e.Raw...)
	}
	return dst
}

// explainExecution adds up the shards' execution statistics, where there are any.
func explainExecution(op *Op, stage string, answers []answer) {
	names := []string{"nReturned", "totalKeysExamined", "totalDocsExamined"}
	sums := make([]int64, len(names))
	var slowest, all int64
	shards, plans := bsoncore.NewArrayBuilder(), bsoncore.NewArrayBuilder()
	found, withPlans := false, false
	for i := range answers {
		e, ok := answers[i].body.Lookup("executionStats")
		d, isDoc := e.Doc()
		if !ok || !isDoc {
			continue
		}
		found = true
		for j, n := range names {
			sums[j] += int64Field(d, n)
		}
		ms := int64Field(d, "executionTimeMillis")
		slowest, all = max(slowest, ms), all+ms
		b := bsoncore.AppendStringElement(nil, "shardName", answers[i].shard)
		for _, n := range append([]string{"executionSuccess", "executionTimeMillis", "executionStages"}, names...) {
			b = appendField(b, d, n)
		}
		shards.AppendDocument(bsoncore.BuildDocument(nil, b))
		if a, ok := d.Lookup("allPlansExecution"); ok {
			withPlans = true
			pb := bsoncore.AppendStringElement(nil, "shardName", answers[i].shard)
			pb = bsoncore.AppendHeader(pb, bsoncore.Type(a.Type), "allPlans")
			plans.AppendDocument(bsoncore.BuildDocument(nil, append(pb, a.Value...)))
		}
	}
	if !found {
		return
	}
	totals := func(b []byte) []byte {
		b = appendCount(b, "nReturned", sums[0])
		b = appendCount(b, "executionTimeMillis", slowest)
		b = appendCount(b, "totalKeysExamined", sums[1])
		return appendCount(b, "totalDocsExamined", sums[2])
	}
	stages := totals(bsoncore.AppendStringElement(nil, "stage", stage))
	stages = bsoncore.AppendInt64Element(stages, "totalChildMillis", all)
	stages = bsoncore.AppendArrayElement(stages, "shards", shards.Build())
	stats := bsoncore.AppendDocumentElement(totals(nil), "executionStages", bsoncore.BuildDocument(nil, stages))
	if withPlans {
		stats = bsoncore.AppendArrayElement(stats, "allPlansExecution", plans.Build())
	}
	op.Reply.Doc("executionStats", bsoncore.BuildDocument(nil, stats))
}

func int64Field(d wire.Doc, name string) int64 {
	e, _ := d.Lookup(name)
	n, _ := e.Int64()
	return n
}

// explainAggregate shows the two halves of a pipeline and the shards' plans.
func (r *Router) explainAggregate(op *Op, answers []answer, sp *split) {
	if len(answers) > 1 {
		merge := "mongos"
		if len(sp.merger) > 0 {
			merge = "anyShard"
		}
		op.Reply.String("mergeType", merge)
		b := bsoncore.AppendArrayElement(nil, "shardsPart", stageArray(sp.shard))
		b = bsoncore.AppendArrayElement(b, "mergerPart", stageArray(sp.merger))
		op.Reply.Doc("splitPipeline", bsoncore.BuildDocument(nil, b))
	} else {
		op.Reply.Elems = bsoncore.AppendNullElement(op.Reply.Elems, "splitPipeline")
	}
	at, b := bsoncore.AppendDocumentElementStart(op.Reply.Elems, "shards")
	for i := range answers {
		a := &answers[i]
		d := bsoncore.AppendStringElement(nil, "host", a.addr)
		for _, n := range []string{"explainVersion", "queryPlanner", "executionStats", "stages"} {
			d = appendField(d, a.body, n)
		}
		b = bsoncore.AppendDocumentElement(b, a.shard, bsoncore.BuildDocument(nil, d))
	}
	op.Reply.Elems, _ = bsoncore.AppendDocumentEnd(b, at)
}

func stageArray(stages []wire.Doc) []byte {
	at, b := bsoncore.AppendArrayStart(nil)
	for i, st := range stages {
		b = bsoncore.AppendDocumentElement(b, strconv.Itoa(i), bsoncore.Document(st))
	}
	b, _ = bsoncore.AppendArrayEnd(b, at)
	return b
}
