package router

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// literalLimit bounds the documents that one command may carry to a shard, in bytes.
const literalLimit = wire.MaxDocumentLen - 1<<20

// Virtual runs pipeline stages over documents that lie in no collection, on a real
// mongod of whichever shard is there (MONGOD.md "Merging"). The reply's cursor is given
// as one on ns; collation as for VirtualDocs.
func (r *Router) Virtual(ctx context.Context, op *Op, ns string, docs []bson.Raw, stages []wire.Doc, collation bson.Raw) error {
	if err := reachesNothing(op, stages); err != nil {
		return err
	}
	if len(stages) == 0 && len(r.anyShards()) == 0 || len(docs) == 0 && len(stages) == 0 {
		return r.virtualAlone(op, ns, docs)
	}
	all, err := r.spoolOf(ctx, op, docs)
	defer all.discard(ctx, r)
	if err != nil {
		return err
	}
	return r.virtual(ctx, op, ns, all, stages, collation)
}

// reachesNothing refuses stages that read or write collections: they would be the
// router's own on the shard.
func reachesNothing(op *Op, stages []wire.Doc) error {
	var p pipeline
	for _, d := range stages {
		spec, _ := d.First()
		if err := p.stage(&spec, string(op.Cmd.DB), 0); err != nil {
			return err
		}
	}
	switch {
	case p.out:
		return notYet("$out and $merge")
	case len(p.foreign) > 0:
		return notYet("a pipeline over what is in no collection that reaches one")
	}
	return nil
}

func (r *Router) virtual(ctx context.Context, op *Op, ns string, docs *spool, stages []wire.Doc, collation bson.Raw) error {
	c, err := r.virtualCursor(ctx, op, ns, docs, stages, collation)
	if err != nil {
		return err
	}
	var n int64
	n, c.single = virtualBatch(op)
	return r.firstBatch(ctx, op, c, n)
}

// VirtualDocs is Virtual for results that the caller reads itself. collation is that of
// the documents' collection, for a command that brings none of its own; nil: simple.
func (r *Router) VirtualDocs(ctx context.Context, op *Op, docs []bson.Raw, stages []wire.Doc, collation bson.Raw) ([]bson.Raw, error) {
	all, err := r.spoolOf(ctx, op, docs)
	defer all.discard(ctx, r)
	if err != nil {
		return nil, err
	}
	c, err := r.virtualCursor(ctx, op, "admin.$cmd.aggregate", all, stages, collation)
	if err != nil {
		return nil, err
	}
	defer r.killShardCursors(ctx, c)
	var out []bson.Raw
	for {
		head, doc, err := r.head(ctx, op, c)
		if head == nil || err != nil {
			return out, err
		}
		out = append(out, append(bson.Raw(nil), doc...))
		head.pop()
	}
}

// virtualCursor opens a cursor over the documents and stages.
func (r *Router) virtualCursor(ctx context.Context, op *Op, ns string, docs *spool, stages []wire.Doc, collation bson.Raw) (*Cursor, error) {
	if err := docs.fit(ctx, r); err != nil {
		return nil, err
	}
	s, err := r.runVirtual(ctx, op, docs, stages, collation)
	if err != nil {
		return nil, err
	}
	p := &part{shard: s.shard, addr: s.addr, buf: s.buf, db: InternalDB, spilled: docs.keep()}
	c := r.newCursor(op, nil, ns)
	c.parts = []*part{p}
	if p.id, p.coll, p.rest, err = cursorReply(s.info.Cursor); err != nil {
		r.killShardCursors(ctx, c)
	}
	return c, err
}

// runVirtual sends the documents and stages to the shard that has them already, else to
// the first that answers.
func (r *Router) runVirtual(ctx context.Context, op *Op, docs *spool, stages []wire.Doc, collation bson.Raw) (s sent, err error) {
	shards := r.anyShards()
	if docs.coll != "" {
		shards = []string{docs.shard}
	}
	if len(shards) == 0 {
		return s, mongoerr.New(mongoerr.ShardNotFound, "no shard is there to run the query: add one with addShard")
	}
	msg := r.virtualMessage(op, docs, stages, collation)
	for _, shard := range shards {
		s, err = r.exchange(ctx, op, shard, &backend.Request{Msg: msg})
		if err == nil {
			break
		}
		op.Buffers.Put(s.buf)
		if !isUnreachable(err) {
			return sent{}, err
		}
	}
	if err != nil {
		return sent{}, err
	}
	if !s.info.OK {
		defer r.release(op, &s)
		return sent{}, shardError(op, s.body)
	}
	return s, nil
}

// virtualBatch reads the batch size of find or aggregate.
func virtualBatch(op *Op) (n int64, single bool) {
	if _, ok := op.Lookup("cursor"); ok {
		return aggregateBatch(op), false
	}
	if e, ok := op.Lookup("batchSize"); ok {
		if n, ok := e.Int64(); ok && n >= 0 {
			return n, isSet(op.Cmd.Body, "singleBatch")
		}
	}
	return defaultBatch, isSet(op.Cmd.Body, "singleBatch")
}

// aggregateBatch reads the batch size of aggregate.
func aggregateBatch(op *Op) int64 {
	c, _ := op.Lookup("cursor")
	d, _ := c.Doc()
	if e, ok := d.Lookup("batchSize"); ok {
		if n, ok := e.Int64(); ok && n >= 0 {
			return n
		}
	}
	return defaultBatch
}

// virtualAlone answers without any shard: the documents themselves.
func (r *Router) virtualAlone(op *Op, ns string, docs []bson.Raw) error {
	b := bsoncore.NewArrayBuilder()
	for _, d := range docs {
		b.AppendDocument(bsoncore.Document(d))
	}
	at, out := bsoncore.AppendDocumentElementStart(op.Reply.Elems, "cursor")
	out = bsoncore.AppendArrayElement(out, "firstBatch", b.Build())
	out = bsoncore.AppendInt64Element(out, "id", 0)
	out = bsoncore.AppendStringElement(out, "ns", ns)
	op.Reply.Elems, _ = bsoncore.AppendDocumentEnd(out, at)
	op.Reply.OK()
	return nil
}

// anyShards lists all shards, those with a primary first.
func (r *Router) anyShards() []string {
	ids := r.snap.Load().shardIDs()
	slices.SortStableFunc(ids, func(a, b string) int {
		return rank(r.Shard(a)) - rank(r.Shard(b))
	})
	return ids
}

func rank(s *backend.Shard) int {
	if s != nil && s.HasPrimary() {
		return 0
	}
	return 1
}

func (r *Router) virtualMessage(op *Op, docs *spool, stages []wire.Doc, collation bson.Raw) []byte {
	elems := docs.source()
	pipe := bsoncore.NewArrayBuilder()
	for _, st := range append(docs.stages(), stages...) {
		pipe.AppendDocument(bsoncore.Document(st))
	}
	elems = bsoncore.AppendArrayElement(elems, "pipeline", pipe.Build())
	elems = bsoncore.AppendDocumentElement(elems, "cursor", emptyDoc)
	for _, name := range []string{"collation", "let", "allowDiskUse"} {
		elems = appendField(elems, op.Cmd.Body, name)
	}
	if _, ok := op.Lookup("collation"); !ok && len(collation) > 0 {
		elems = bsoncore.AppendDocumentElement(elems, "collation", bsoncore.Document(collation))
	}
	elems = r.appendEnvelope(elems, op, &patch{})
	return backend.AppendCommand(nil, InternalDB, elems)
}
