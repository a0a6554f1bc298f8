package router

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// answer is what one of several shards gave.
type answer struct {
	sent
	err error
}

// scatter sends to several shards at once and waits for all of them; build appends
// the message for the i-th. Answers come in the order of shards. Every answer's
// buffer must be released.
func (r *Router) scatter(ctx context.Context, op *Op, shards []string, build func(dst []byte, i int) []byte) []answer {
	answers := make([]answer, len(shards))
	ops := make([]Op, len(shards)) // exchange counts in its own
	var wg sync.WaitGroup
	for i := range shards {
		ops[i] = *op
		ops[i].lost, ops[i].Trace.Asked = nil, nil
		wg.Go(func() {
			defer r.survive(&answers[i].err)
			buf := op.Buffers.Get(512)
			defer op.Buffers.Put(buf)
			*buf = build(*buf, i)
			a := &answers[i]
			a.sent, a.err = r.exchange(ctx, &ops[i], shards[i], &backend.Request{Msg: *buf, Pref: op.Pref})
			if a.err == nil && !a.info.OK {
				a.err = shardError(op, a.body)
			}
		})
	}
	wg.Wait()
	for i := range ops {
		op.Trace.Asked = append(op.Trace.Asked, ops[i].Trace.Asked...)
		op.lost = append(op.lost, ops[i].lost...)
	}
	for i := range answers {
		if a := &answers[i]; a.err == nil {
			op.Reply.ShardTime = max(op.Reply.ShardTime, a.info.OperationTime)
		}
	}
	return answers
}

// oneTime makes a snapshot read over several shards read at one cluster time: the
// client's, or else the newest that this router knows. It returns the time that the
// reply is to show, 0 where there is none to show.
func (r *Router) oneTime(op *Op, p *patch) uint64 {
	e, ok := op.Cmd.Arg(wire.ArgReadConcern)
	if !ok || op.Txn.InTxn {
		return 0
	}
	d, _ := e.Doc()
	level, _ := d.Lookup("level")
	if l, _ := level.Str(); l != "snapshot" {
		return 0
	}
	if at, ok := d.Lookup("atClusterTime"); ok {
		t, _ := at.Timestamp()
		return t
	}
	op.ReadTime = max(r.Clock.Now(), op.ReadTime)
	at, b := bsoncore.AppendDocumentElementStart(p.extra, "readConcern")
	b = bsoncore.AppendStringElement(b, "level", "snapshot")
	b = wire.AppendTimestampElement(b, "atClusterTime", op.ReadTime)
	p.extra, _ = bsoncore.AppendDocumentEnd(b, at)
	p.drop |= wire.ArgReadConcern
	return op.ReadTime
}

// survive makes an error of a panic: what one client or shard sends must not end the
// others' router.
func (r *Router) survive(err *error) {
	if p := recover(); p != nil {
		r.panicked(p, debug.Stack())
		*err = mongoerr.New(mongoerr.InternalError, "internal error in the router")
	}
}

// firstError returns the first failure among answers.
func firstError(answers []answer) error {
	for i := range answers {
		if answers[i].err != nil {
			return answers[i].err
		}
	}
	return nil
}

func (r *Router) releaseAll(op *Op, answers []answer) {
	for i := range answers {
		r.release(op, &answers[i].sent)
	}
}

// shardIDs returns the ids of all shards, ascending.
func (s *Snapshot) shardIDs() []string {
	ids := make([]string, 0, len(s.Shards))
	for id := range s.Shards {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// notYet is 238 for what a mongos does and shardgate does not do yet.
func notYet(what string) error {
	return mongoerr.Newf(mongoerr.NotImplemented, "shardgate does not do this yet: %s", what)
}
