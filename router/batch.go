package router

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// batch is a client's write command with its statements targeted.
type batch struct {
	kind    writeKind
	entry   *Entry
	stmts   []statement
	ordered bool
}

// child is what one shard gets of a client's batch: the client's statements by
// index.
type child struct {
	shard string
	index []int
	bytes int
	cond  *owned.Predicate // leaves out what the shard does not own; nil: it owns all it has
}

// childLimit bounds a child's statements in bytes.
const childLimit = 16 << 20

// writeBatches splits a batch over shards. Ordered batches go run by run, each run
// being what follows one another to the same shard, and stop at the first error;
// unordered ones go to all shards at once (MONGOS.md §2.8).
func (r *Router) writeBatches(ctx context.Context, op *Op, b *batch) error {
	stmts := b.stmts
	ordered := true
	if e, ok := op.Lookup("ordered"); ok {
		ordered, _ = e.Bool()
	}
	b.ordered = ordered
	if err := r.joinAll(op, stmts); err != nil {
		return err
	}
	var res writeResult
	for from := 0; from < len(stmts); {
		round, to := nextRound(stmts, from, ordered)
		for i := from; i < to; i++ {
			if stmts[i].err != nil {
				res.addError(i, stmts[i].err)
			}
		}
		var err error
		if stmts[from].way != wayDirect {
			err = r.writeOne(ctx, op, b, from, &res)
		} else {
			err = r.writeRound(ctx, op, b, round, &res)
		}
		if err != nil {
			if mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch && (from > 0 || res.n > 0) {
				return mongoerr.Wrap(mongoerr.ConflictingOperationInProgress, err, "the collection changed during the batch")
			}
			return err
		}
		from = to
		if ordered && len(res.errors) > 0 {
			break
		}
	}
	r.replyWrite(op, b.kind, ordered, &res)
	return nil
}

// writeOne runs a statement that is a single write.
func (r *Router) writeOne(ctx context.Context, op *Op, b *batch, i int, res *writeResult) error {
	err := r.writeSingle(ctx, op, r.singleOf(op, b, i, res))
	if err == nil || mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch {
		return err
	}
	res.addError(i, ClientError(op, err))
	return nil
}

// nextRound groups statements from index from on: for an ordered batch the run to
// one shard, or one statement for several; else all that fit. A single write is a round
// of its own.
func nextRound(stmts []statement, from int, ordered bool) (round []child, to int) {
	byShard := map[string]int{}
	for to = from; to < len(stmts); to++ {
		st := &stmts[to]
		if st.way != wayDirect {
			return round, max(to, from+1)
		}
		if ordered && to > from {
			prev := &stmts[to-1]
			if st.err != nil || prev.err != nil || len(st.shards) != 1 || len(prev.shards) != 1 || st.shards[0] != prev.shards[0] {
				return round, to
			}
		}
		for _, shard := range st.shards {
			if i, ok := byShard[shard]; ok && round[i].bytes+len(st.doc) > childLimit {
				return round, to
			}
		}
		for _, shard := range st.shards {
			i, ok := byShard[shard]
			if !ok {
				i = len(round)
				byShard[shard] = i
				round = append(round, child{shard: shard})
			}
			round[i].index = append(round[i].index, to)
			round[i].bytes += len(st.doc)
		}
	}
	return round, to
}

// writeRound runs a round, and again what met documents that a shard does not own.
func (r *Router) writeRound(ctx context.Context, op *Op, b *batch, round []child, res *writeResult) error {
	tries := maxBlockers
	for i := range round {
		tries += len(round[i].index)
	}
	for ; len(round) > 0; tries-- {
		if tries == 0 {
			for i := range round {
				res.addChildError(op, round[i].index, errBlocked)
			}
			return nil
		}
		if err := r.sendRound(ctx, op, b, round, res); err != nil || len(b.entry.unowned) == 0 {
			return err
		}
		var err error
		if round, err = r.unblockRound(ctx, op, b, round, res); err != nil {
			return err
		}
	}
	return nil
}

func (r *Router) sendRound(ctx context.Context, op *Op, b *batch, round []child, res *writeResult) error {
	shards := make([]string, len(round))
	for i := range round {
		shards[i] = round[i].shard
		var err error
		if round[i].cond, err = b.entry.leaveOut(shards[i]); err != nil {
			return err
		}
	}
	base := patch{skip: []string{b.kind.field}, drop: wire.ArgStmtID | wire.ArgStmtIDs}
	id := UUID(b.entry.Coll.UUID)
	base.uuid = &id
	if err := r.join(op, shards, &base); err != nil {
		return err
	}
	answers := r.scatter(ctx, op, shards, func(dst []byte, i int) []byte {
		p := base
		p.extra = stmtIDs(op, round[i].index)
		start := len(dst)
		dst = r.appendMessage(dst, op, &p)
		return b.appendStatements(dst, start, &round[i])
	})
	defer r.releaseAll(op, answers)
	return res.addRound(op, round, answers)
}

// addRound takes in the answers to a round. It returns the whole command's error: in a
// transaction any, else one by which every child that was asked refused to run.
func (w *writeResult) addRound(op *Op, round []child, answers []answer) error {
	var other, refused error // of a child that found another collection, or would not run
	var failed []int         // children whose error is their statements'
	ran := !w.nothing()      // some child ran, or may have
	for i := range answers {
		a := &answers[i]
		if a.err == nil {
			a.err = w.add(&a.sent, round[i].index)
		}
		switch {
		case a.err == nil:
			ran = true
		case op.Txn.InTxn:
			return a.err
		case mongoerr.CodeOf(a.err) == mongoerr.CollectionUUIDMismatch:
			other = a.err
		default:
			failed = append(failed, i)
			if !refusesCommand(a.err) {
				ran = true
			} else if refused == nil {
				refused = a.err
			}
		}
	}
	switch {
	case other != nil && ran:
		// To run all again would write twice.
		return mongoerr.Wrap(mongoerr.ConflictingOperationInProgress, other, "the collection changed during the batch")
	case other != nil:
		return other
	case refused != nil && !ran:
		return refused
	}
	for _, i := range failed {
		w.addChildError(op, round[i].index, ClientError(op, answers[i].err))
	}
	return nil
}

// refusesCommand reports whether a shard refused the command for its form: that is the
// whole command's error and not one statement's.
func refusesCommand(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.FailedToParse, mongoerr.TypeMismatch, mongoerr.InvalidOptions, 40414, 40415:
		return true
	default:
		return false
	}
}

// stmtIDs gives a child's statements the numbers that they have in the client's
// batch, so that a retry is recognised however it is grouped (MONGOD.md, "What a
// plain mongod does not refuse").
func stmtIDs(op *Op, index []int) []byte {
	if !op.Txn.Present {
		return nil
	}
	at, b := bsoncore.AppendArrayElementStart(nil, "stmtIds")
	for i, n := range index {
		b = bsoncore.AppendInt32Element(b, strconv.Itoa(i), clientStmtID(op, n))
	}
	b, _ = bsoncore.AppendArrayEnd(b, at)
	return b
}

// clientStmtID returns the id of the n-th statement: what the client says, or n.
func clientStmtID(op *Op, n int) int32 {
	if op.stmtIDs != nil {
		return op.stmtIDs[n]
	}
	return op.stmtID + int32(n)
}

// appendStatements appends the sequence of a child's statements to its message.
func (b *batch) appendStatements(dst []byte, start int, c *child) []byte {
	at := len(dst) + 1
	dst = append(dst, 1, 0, 0, 0, 0)
	dst = append(dst, b.kind.field...)
	dst = append(dst, 0)
	for _, i := range c.index {
		doc := b.stmts[i].doc
		if c.cond != nil && b.narrows(&b.stmts[i]) {
			doc = narrowStatement(doc, c.cond)
		}
		dst = append(dst, doc...)
	}
	wire.SetLength(dst[start:])
	putInt32(dst[at:], len(dst)-at)
	return dst
}

func putInt32(b []byte, n int) {
	b[0], b[1], b[2], b[3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
}
