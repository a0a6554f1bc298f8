package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
)

// nothingColl is a collection of InternalDB that is never made.
const nothingColl = "nothing"

// refusedOnNothing returns what a mongod has against a command whose collection does not
// exist: a filter may be wrong where there is nothing to find.
func (r *Router) refusedOnNothing(ctx context.Context, op *Op) error {
	s, err := r.onNothing(ctx, op)
	if err != nil || s == nil {
		return err
	}
	defer r.release(op, s)
	if !s.info.OK {
		return shardError(op, s.body)
	}
	return nil
}

// nothingWritten answers an update or delete on a collection that does not exist.
func (r *Router) nothingWritten(ctx context.Context, op *Op, kind writeKind) error {
	s, err := r.onNothing(ctx, op)
	if err != nil {
		return err
	}
	if s == nil {
		op.Reply.Int32("n", 0)
		if kind.update {
			op.Reply.Int32("nModified", 0)
		}
		op.Reply.OK()
		return nil
	}
	if s.info.WriteErrors.Type != 0 {
		r.FailStatement(ctx, op) // in a transaction: no shard has seen the statement
	}
	_, _, err = r.adopt(op, s)
	return err
}

// onNothing runs a command whose collection does not exist where there is none for
// certain, on a mongod that is there; nil if there is none. Under its own name another
// router may be making the collection right now. It takes no part in the client's
// transaction or session, and has nothing to write.
func (r *Router) onNothing(ctx context.Context, op *Op) (*sent, error) {
	shards := r.anyShards()
	if len(shards) == 0 || rank(r.Shard(shards[0])) != 0 {
		return nil, nil
	}
	in := *op
	in.Write, in.lost, in.Txn, in.ReadTime, in.Pref = false, nil, Txn{}, 0, backend.ReadPref{}
	msg := r.nothingMessage(&in, op.Txn.InTxn)
	if len(msg) > wire.MaxMessageLen {
		return nil, nil
	}
	s, err := r.exchange(ctx, &in, shards[0], &backend.Request{Msg: msg})
	if err != nil {
		r.release(op, &s)
		return nil, err
	}
	return &s, nil
}

func (r *Router) nothingMessage(op *Op, inTxn bool) []byte {
	drop := op.Drop | alwaysReplaced | wire.ArgDB | wire.ArgWriteConcern | wire.ArgStmtID | wire.ArgStmtIDs |
		wire.ArgTxnNumber | wire.ArgAutocommit | wire.ArgStartTransaction
	if inTxn {
		drop |= wire.ArgReadConcern
	}
	elems := op.Cmd.AppendWithout(nil, drop)
	_, first := wire.FirstElem(elems)
	msg := wire.AppendMsgStart(nil, 0, 0, 0)
	at, msg := wire.AppendDocStart(msg)
	msg = bsoncore.AppendStringElement(msg, string(op.Cmd.First.Name), nothingColl)
	msg = append(msg, elems[first:]...)
	msg = bsoncore.AppendStringElement(msg, "$db", InternalDB)
	msg = r.appendEnvelope(msg, op, &patch{noSession: true})
	msg = wire.AppendDocEnd(msg, at)
	if op.Msg != nil {
		for _, s := range op.Msg.Seqs[:op.Msg.NSeqs] {
			msg = wire.AppendSequence(msg, string(s.Name), s.Docs)
		}
	}
	wire.SetLength(msg)
	return msg
}
