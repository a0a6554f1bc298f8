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
// mongod of whichever shard is there (MONGOD.md "Merging": $documents with $literal).
// The reply's cursor is given as one on ns; collation as for VirtualDocs.
func (r *Router) Virtual(ctx context.Context, op *Op, ns string, docs []bson.Raw, stages []wire.Doc, collation bson.Raw) error {
	if len(stages) == 0 && len(r.anyShards()) == 0 || len(docs) == 0 && len(stages) == 0 {
		return r.virtualAlone(op, ns, docs)
	}
	s, err := r.runVirtual(ctx, op, docs, stages, collation)
	if err != nil {
		return err
	}
	p := &part{shard: s.shard, addr: s.addr, buf: s.buf, db: "admin"}
	if p.id, p.coll, p.rest, err = cursorReply(s.info.Cursor); err != nil {
		return err
	}
	c := r.newCursor(op, ns)
	c.parts = []*part{p}
	var n int64
	n, c.single = virtualBatch(op)
	return r.firstBatch(ctx, op, c, n)
}

// VirtualDocs is Virtual for results that the caller reads itself. collation is that of
// the documents' collection, for a command that brings none of its own; nil: simple.
func (r *Router) VirtualDocs(ctx context.Context, op *Op, docs []bson.Raw, stages []wire.Doc, collation bson.Raw) ([]bson.Raw, error) {
	s, err := r.runVirtual(ctx, op, docs, stages, collation)
	if err != nil {
		return nil, err
	}
	c := r.newCursor(op, "admin.$cmd.aggregate")
	p := &part{shard: s.shard, addr: s.addr, buf: s.buf, db: "admin"}
	c.parts = []*part{p}
	defer r.killShardCursors(ctx, c)
	if p.id, p.coll, p.rest, err = cursorReply(s.info.Cursor); err != nil {
		return nil, err
	}
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

// runVirtual sends the documents and stages to the first shard that answers.
func (r *Router) runVirtual(ctx context.Context, op *Op, docs []bson.Raw, stages []wire.Doc, collation bson.Raw) (sent, error) {
	total := 0
	for _, d := range docs {
		total += len(d)
	}
	if total > literalLimit {
		return sent{}, notYet("queries on a virtual collection of more than 15 MiB")
	}
	shards := r.anyShards()
	if len(shards) == 0 {
		return sent{}, mongoerr.New(mongoerr.ShardNotFound, "no shard is there to run the query: add one with addShard")
	}
	msg := r.virtualMessage(op, docs, stages, collation)
	var s sent
	var err error
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

func (r *Router) virtualMessage(op *Op, docs []bson.Raw, stages []wire.Doc, collation bson.Raw) []byte {
	lit := bsoncore.NewArrayBuilder()
	for _, d := range docs {
		lit.AppendDocument(bsoncore.Document(d))
	}
	literal := bsoncore.BuildDocument(nil, bsoncore.AppendArrayElement(nil, "$literal", lit.Build()))
	pipe := bsoncore.NewArrayBuilder()
	pipe.AppendDocument(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$documents", literal)))
	for _, st := range stages {
		pipe.AppendDocument(bsoncore.Document(st))
	}
	elems := bsoncore.AppendInt32Element(nil, "aggregate", 1)
	elems = bsoncore.AppendArrayElement(elems, "pipeline", pipe.Build())
	elems = bsoncore.AppendDocumentElement(elems, "cursor", emptyDoc)
	for _, name := range []string{"collation", "let", "allowDiskUse"} {
		if e, ok := op.Lookup(name); ok {
			elems = append(elems, e.Raw...)
		}
	}
	if _, ok := op.Lookup("collation"); !ok && len(collation) > 0 {
		elems = bsoncore.AppendDocumentElement(elems, "collation", bsoncore.Document(collation))
	}
	elems = r.appendEnvelope(elems, op, &patch{})
	return backend.AppendCommand(nil, "admin", elems)
}
