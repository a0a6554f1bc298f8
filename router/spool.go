package router

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// spool collects documents, in order, on which a real mongod is to run a pipeline: in
// memory what one command can carry, and what is more in a temporary collection on the
// shard that will run it (MONGOD.md "Merging").
type spool struct {
	op    *Op
	docs  []bson.Raw
	bytes int // that docs take in a command

	shard, coll string // of the temporary collection; coll is "" without one
	uuid        UUID   // of it: one that is gone must not read as empty
	seq         int64  // documents in it
	kept        bool   // a cursor reads the collection and drops it
}

// spillPrefix begins the names of temporary collections; the router's incarnation comes
// next.
const spillPrefix = "spill."

// temporaryName names a temporary collection of this router in InternalDB.
func (r *Router) temporaryName() string {
	return fmt.Sprint(spillPrefix, r.Self().Incarnation, ".", r.spills.Add(1))
}

// spoolOf is a spool of documents that are there already.
func (r *Router) spoolOf(ctx context.Context, op *Op, docs []bson.Raw) (*spool, error) {
	s := &spool{op: op}
	for _, d := range docs {
		if err := s.add(ctx, r, wire.Doc(d)); err != nil {
			return s, err
		}
	}
	return s, nil
}

// elementCost is what an element of an array takes beside its value: type, index, a zero.
const elementCost = 10

// add copies a document.
func (s *spool) add(ctx context.Context, r *Router, d wire.Doc) error {
	size := len(d) + elementCost
	if len(s.docs) > 0 && s.bytes+size > literalLimit {
		if err := s.spill(ctx, r); err != nil {
			return err
		}
	}
	s.docs = append(s.docs, append(bson.Raw(nil), d...))
	s.bytes += size
	return nil
}

// fit sees to it that one command can read what was collected.
func (s *spool) fit(ctx context.Context, r *Router) error {
	if s.coll == "" && s.bytes <= literalLimit {
		return nil
	}
	return s.spill(ctx, r)
}

// spill moves what is in memory to the temporary collection.
func (s *spool) spill(ctx context.Context, r *Router) error {
	if s.coll == "" {
		shards := r.anyShards()
		if len(shards) == 0 {
			return mongoerr.New(mongoerr.ShardNotFound, "no shard is there to run the query: add one with addShard")
		}
		if err := r.prepareInternal(ctx, shards[0]); err != nil {
			return err
		}
		if err := s.make(ctx, r, shards[0], r.temporaryName()); err != nil {
			return err
		}
	}
	for docs := range slices.Chunk(s.docs, wire.MaxBatch) {
		if err := s.insert(ctx, r, docs); err != nil {
			return err
		}
	}
	s.docs, s.bytes = nil, 0
	return nil
}

// make makes the temporary collection.
func (s *spool) make(ctx context.Context, r *Router, shard, name string) error {
	if _, err := r.run(ctx, shard, InternalDB, bson.D{{Key: "create", Value: name}, {Key: "writeConcern", Value: oneWrites}}); err != nil {
		return err
	}
	s.shard, s.coll = shard, name
	list, err := r.listOn(ctx, shard, InternalDB, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return mongoerr.New(mongoerr.InternalError, "a temporary collection is gone")
	}
	s.uuid = UUID(list[0].uuid())
	return nil
}

// oneWrites: what is temporary need not survive its shard's primary.
var oneWrites = bson.D{{Key: "w", Value: int32(1)}}

// insert adds documents to the temporary collection.
func (s *spool) insert(ctx context.Context, r *Router, list []bson.Raw) error {
	msg := wire.AppendMsgStart(nil, 0, 0, 0)
	at, msg := wire.AppendDocStart(msg)
	msg = bsoncore.AppendStringElement(msg, "insert", s.coll)
	msg = bsoncore.AppendDocumentElement(msg, "writeConcern", bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "w", 1)))
	msg = r.appendEnvelope(msg, s.op, &patch{uuid: &s.uuid})
	msg = bsoncore.AppendStringElement(msg, "$db", InternalDB)
	msg = wire.AppendDocEnd(msg, at)
	var docs []byte
	for _, d := range list {
		start, b := wire.AppendDocStart(docs)
		b = bsoncore.AppendInt64Element(b, "_id", s.seq)
		b = bsoncore.AppendDocumentElement(b, "d", bsoncore.Document(d))
		docs = wire.AppendDocEnd(b, start)
		s.seq++
	}
	msg = wire.AppendSequence(msg, "documents", docs)
	wire.SetLength(msg)
	write := *s.op // it is not to be repeated
	write.Write, write.lost = true, nil
	reply, err := r.exchange(ctx, &write, s.shard, &backend.Request{Msg: msg})
	defer r.release(s.op, &reply)
	if err == nil && !reply.info.OK {
		err = shardError(s.op, reply.body)
	}
	if err == nil {
		err = firstWriteError(reply.info.WriteErrors)
	}
	return err
}

// source begins the aggregate command that reads the documents.
func (s *spool) source() []byte {
	if s.coll == "" {
		return bsoncore.AppendInt32Element(nil, "aggregate", 1)
	}
	b := bsoncore.AppendStringElement(nil, "aggregate", s.coll)
	return bsoncore.AppendBinaryElement(b, "collectionUUID", 4, s.uuid[:])
}

// stages are the stages by which a pipeline reads the documents. $literal matters:
// without it strings that begin with $ are evaluated.
func (s *spool) stages() []wire.Doc {
	if s.coll != "" {
		order := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1))
		inner := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "newRoot", "$d"))
		return []wire.Doc{stageDoc("$sort", order), stageDoc("$replaceRoot", inner)}
	}
	lit := bsoncore.NewArrayBuilder()
	for _, d := range s.docs {
		lit.AppendDocument(bsoncore.Document(d))
	}
	return []wire.Doc{stageDoc("$documents", bsoncore.BuildDocument(nil, bsoncore.AppendArrayElement(nil, "$literal", lit.Build())))}
}

// keep leaves the temporary collection to a cursor, which drops it at its end; "" if there
// is none.
func (s *spool) keep() string {
	s.kept = true
	return s.coll
}

// discard drops the temporary collection if no cursor has it.
func (s *spool) discard(ctx context.Context, r *Router) {
	if s.coll != "" && !s.kept {
		r.dropSpilled(ctx, s.shard, s.coll)
	}
}

// dropSpilled drops a temporary collection behind the client's back.
func (r *Router) dropSpilled(ctx context.Context, shard, coll string) {
	r.wg.Go(func() {
		ctx, cancel := withTimeout(ctx)
		defer cancel()
		if _, err := r.run(ctx, shard, InternalDB, bson.D{{Key: "drop", Value: coll}, {Key: "writeConcern", Value: oneWrites}}); err != nil {
			r.log.Warn().Err(err).Str("shard", shard).Str("collection", coll).Msg("drop a temporary collection")
		}
	})
}

// sweepSpilled drops the temporary collections that routers have left on a shard which
// are no more.
func (r *Router) sweepSpilled(ctx context.Context, shard string) error {
	list, err := r.listOn(ctx, shard, InternalDB, bson.D{})
	if err != nil {
		return err
	}
	// Now: what a router has made that registered meanwhile is not in the list.
	routers, err := r.store.Routers(ctx)
	if err != nil {
		return err
	}
	alive := map[string]bool{}
	for i := range routers {
		alive[routers[i].Incarnation] = true
	}
	for i := range list {
		name, spilled := strings.CutPrefix(list[i].Name, spillPrefix)
		incarnation, n, _ := strings.Cut(name, ".")
		if _, err := strconv.Atoi(n); spilled && err == nil && !alive[incarnation] {
			r.dropSpilled(ctx, shard, list[i].Name)
		}
	}
	return nil
}
