package router

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire"
)

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
	docs := &spool{op: op}
	defer docs.discard(ctx, r)
	err := r.gather(ctx, op, s, &sp, func(_ string, d wire.Doc) error { return docs.add(ctx, r, d) })
	if err != nil {
		return err
	}
	return r.virtual(ctx, op, s.ns, docs, sp.merger, s.entry.collation())
}

// patch is what a shard gets of the command beside the stages.
func (s *split) patch() *patch {
	var extra []byte
	if s.partial || len(s.order) > 0 {
		extra = bsoncore.AppendBooleanElement(extra, "fromMongos", true)
		extra = bsoncore.AppendBooleanElement(extra, "needsMerge", true)
	}
	return &patch{skip: []string{"pipeline"}, extra: extra, drop: wire.ArgAPI}
}

// withStages makes the patches of an aggregate by which the shards run the given stages.
func (s *scope) withStages(p *patch, stages []wire.Doc) (patches, error) {
	whole := *p
	whole.extra = appendStages(slices.Clip(p.extra), stages)
	own, err := s.adapt(p, func(own *patch, cond *owned.Predicate) {
		own.extra = appendStages(own.extra, narrowStages(stages, cond))
	})
	own.all = &whole
	for i := range own.by {
		if own.by[i] == p {
			own.by[i] = &whole
		}
	}
	return own, err
}

// appendStages appends a pipeline's field.
func appendStages(dst []byte, stages []wire.Doc) []byte {
	return bsoncore.AppendArrayElement(dst, "pipeline", stageArray(stages))
}

// openSplit runs the shard half on every shard and opens the merge of what they give.
func (r *Router) openSplit(ctx context.Context, op *Op, s *scope, sp *split, pt *patch) (*Cursor, error) {
	if err := r.join(op, s.shards, pt); err != nil {
		return nil, err
	}
	c := r.newCursor(op, s.entry, s.ns)
	c.order, c.skip, c.limit = sp.order, sp.skip, sp.limit
	c.atTime = r.oneTime(op, pt)
	own, err := s.withStages(pt, sp.shard)
	if err != nil {
		return nil, err
	}
	answers := r.scatter(ctx, op, s.shards, func(dst []byte, i int) []byte { return r.appendMessage(dst, op, own.at(i)) })
	return c, r.openParts(ctx, op, c, answers)
}

// aggregateStream merges the shards' results as they come.
func (r *Router) aggregateStream(ctx context.Context, op *Op, s *scope, sp *split) error {
	c, err := r.openSplit(ctx, op, s, sp, sp.patch())
	if err != nil {
		return err
	}
	return r.firstBatch(ctx, op, c, aggregateBatch(op))
}

// gather hands over all that the shard half gives, in the order of the merge; a document
// is the function's for the call only.
func (r *Router) gather(ctx context.Context, op *Op, s *scope, sp *split, each func(shard string, d wire.Doc) error) error {
	pt := sp.patch()
	pt.skip = append(pt.skip, "cursor")
	pt.extra = bsoncore.AppendDocumentElement(pt.extra, "cursor", emptyDoc)
	c, err := r.openSplit(ctx, op, s, sp, pt)
	if err != nil {
		return err
	}
	defer r.killShardCursors(ctx, c)
	var plain []byte
	for {
		p, doc, err := r.next(ctx, op, c)
		if err != nil || p == nil {
			return err
		}
		if c.order != nil {
			plain = appendPlain(plain[:0], doc)
			doc = plain
		}
		if err := each(p.shard, doc); err != nil {
			return err
		}
		p.pop()
		c.taken()
	}
}
