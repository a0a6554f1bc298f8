package router

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// txnLifetime is how long an idle transaction is remembered; shards end theirs after
// 60 s by themselves.
const txnLifetime = 10 * time.Minute

// txn is a transaction that this router carries. It lives on one shard: a second one
// is refused with 238 until transactions over shards are built.
type txn struct {
	number      int64
	shard       string // "" before the first statement that reached one
	readConcern []byte // element of the first statement
	api         string // apiArguments of the first statement
	aborted     bool   // a statement failed
	began       uint64 // cluster time: its snapshots are not older
	lastUsed    time.Time
}

type txnTable struct {
	mu   sync.Mutex
	open map[UUID]*txn // guarded by mu; the newest of each session
}

func (t *txnTable) init() { t.open = map[UUID]*txn{} }

func (t *txnTable) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, x := range t.open {
		if time.Since(x.lastUsed) > txnLifetime {
			delete(t.open, id)
		}
	}
}

// BeginStatement notes a statement of a transaction before it is routed: the first
// one begins it. Outside transactions it does nothing.
func (r *Router) BeginStatement(op *Op) error {
	if !op.Txn.InTxn || op.Txn.Committal {
		return nil
	}
	r.txns.mu.Lock()
	defer r.txns.mu.Unlock()
	x := r.txns.open[op.Session.ID]
	switch {
	case op.Txn.Start && x != nil && x.number > op.Txn.Number:
		return mongoerr.Newf(mongoerr.TransactionTooOld, "txnNumber %d is less than last txnNumber %d seen in session", op.Txn.Number, x.number)
	case op.Txn.Start && x != nil && x.number == op.Txn.Number:
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "txnNumber %d for session was already started", op.Txn.Number)
	case op.Txn.Start:
		x = &txn{number: op.Txn.Number, api: apiArguments(op), began: r.Clock.Now()}
		if rc, ok := op.Cmd.Arg(wire.ArgReadConcern); ok {
			x.readConcern = append([]byte(nil), rc.Raw...)
		}
		r.txns.open[op.Session.ID] = x
	case x == nil || x.number != op.Txn.Number || x.aborted:
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "cannot continue txnId %d for session", op.Txn.Number).
			WithLabel(mongoerr.LabelTransientTransaction)
	}
	x.lastUsed = time.Now()
	return x.checkAPI(op)
}

// apiArguments is what a command says of the versioned API, in MongoDB's notation.
func apiArguments(op *Op) string {
	if !op.Cmd.Has(wire.ArgAPI) {
		return "{}"
	}
	var args []string
	for _, arg := range []wire.Generic{wire.ArgAPIVersion, wire.ArgAPIStrict, wire.ArgAPIDeprecation} {
		if e, ok := op.Cmd.Arg(arg); ok {
			args = append(args, string(e.Name)+": "+e.RawValue().String())
		}
	}
	return "{ " + strings.Join(args, ", ") + " }"
}

// checkAPI refuses a command that declares another version of the API than the
// transaction's first one; the transaction goes on (run on mongod 6.0.5).
func (x *txn) checkAPI(op *Op) error {
	if used := apiArguments(op); used != x.api {
		return mongoerr.Newf(mongoerr.APIMismatchError, "API parameter mismatch: %s used params %s, the transaction's first command used %s",
			op.Cmd.First.Name, used, x.api)
	}
	return nil
}

// join makes shards the participants of the operation's transaction; p gets what the
// first statement on a shard carries.
func (r *Router) join(op *Op, shards []string, p *patch) error {
	if !op.Txn.InTxn {
		return nil
	}
	r.txns.mu.Lock()
	defer r.txns.mu.Unlock()
	x := r.txns.open[op.Session.ID]
	if x == nil || x.number != op.Txn.Number {
		return mongoerr.New(mongoerr.NoSuchTransaction, "the transaction is gone").WithLabel(mongoerr.LabelTransientTransaction)
	}
	if op.movedAt > x.began {
		return errMovedMeanwhile()
	}
	if len(shards) != 1 || (x.shard != "" && x.shard != shards[0]) {
		return notYet("a transaction on more than one shard")
	}
	if x.shard == "" {
		x.shard = shards[0]
		p.startTxn, p.readConc = true, x.readConcern
	}
	return nil
}

// joinAll refuses a batch in a transaction of which some statement needs another shard,
// before any has run.
func (r *Router) joinAll(op *Op, stmts []statement) error {
	if !op.Txn.InTxn {
		return nil
	}
	var shards []string
	for i := range stmts {
		for _, s := range stmts[i].shards {
			if !slices.Contains(shards, s) {
				shards = append(shards, s)
			}
		}
	}
	r.txns.mu.Lock()
	defer r.txns.mu.Unlock()
	if x := r.txns.open[op.Session.ID]; x != nil && op.movedAt > x.began {
		return errMovedMeanwhile()
	} else if len(shards) > 1 || x != nil && x.shard != "" && len(shards) == 1 && x.shard != shards[0] {
		return notYet("a transaction on more than one shard")
	}
	return nil
}

// FailStatement ends the transaction of a statement that failed, as a mongos does: what
// a shard has refused it has aborted, but what the router refuses no shard has seen.
func (r *Router) FailStatement(ctx context.Context, op *Op) {
	if !op.Txn.Statement() {
		return
	}
	r.txns.mu.Lock()
	x := r.txns.open[op.Session.ID]
	if x == nil || x.number != op.Txn.Number || x.aborted {
		r.txns.mu.Unlock()
		return
	}
	x.aborted = true
	shard := x.shard
	r.txns.mu.Unlock()
	b := r.Shard(shard)
	if b == nil {
		return
	}
	elems := bsoncore.AppendInt32Element(nil, "abortTransaction", 1)
	elems = appendSession(elems, &op.Session)
	elems = bsoncore.AppendInt64Element(elems, "txnNumber", op.Txn.Number)
	elems = bsoncore.AppendBooleanElement(elems, "autocommit", false)
	r.wg.Go(func() {
		ctx, cancel := withTimeout(ctx)
		defer cancel()
		if _, err := b.Run(ctx, "admin", elems); err != nil {
			r.log.Debug().Err(err).Str("shard", shard).Msg("abort a transaction whose statement failed")
		}
	})
}

// RecoveryToken appends the token that drivers send back with commit and abort, so
// that another router can find the transaction.
func (r *Router) RecoveryToken(op *Op) {
	if !op.Txn.InTxn {
		return
	}
	r.txns.mu.Lock()
	x := r.txns.open[op.Session.ID]
	shard := ""
	if x != nil && x.number == op.Txn.Number {
		shard = x.shard
	}
	r.txns.mu.Unlock()
	if shard == "" {
		return
	}
	var at int32
	at, op.Reply.Elems = bsoncore.AppendDocumentElementStart(op.Reply.Elems, "recoveryToken")
	op.Reply.String("recoveryShardId", shard)
	op.Reply.Elems, _ = bsoncore.AppendDocumentEnd(op.Reply.Elems, at)
}

// EndTransaction runs commitTransaction or abortTransaction on the transaction's
// shard. Every transaction has at most one, so another router's may be ended by its
// recovery token without any decision to look for (PROTOCOL.md F11). It passes no gate: one
// that was lost on the way may run late, but until then the transaction holds its locks on
// the shard, and who must know that nothing is in flight waits for these.
func (r *Router) EndTransaction(ctx context.Context, op *Op) error {
	abort := string(op.Cmd.First.Name) == "abortTransaction"
	shard, known, aborted, err := r.txnShard(op)
	if shard == "" && !known {
		shard = recoveryShard(op)
	}
	switch {
	case err != nil:
		return err
	case aborted:
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction %d has been aborted.", op.Txn.Number).
			WithLabel(mongoerr.LabelTransientTransaction)
	case shard != "":
		op.Write = true // it carries a transaction number: repeating is safe
		p := &patch{skip: []string{"recoveryToken"}}
		_, _, err := r.forward(ctx, op, shard, p)
		return err
	case known && !abort:
		op.Reply.OK()
		return nil
	default:
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "no transaction %d to end", op.Txn.Number)
	}
}

func (r *Router) txnShard(op *Op) (shard string, known, aborted bool, err error) {
	r.txns.mu.Lock()
	defer r.txns.mu.Unlock()
	x := r.txns.open[op.Session.ID]
	if x == nil || x.number != op.Txn.Number {
		return "", false, false, nil
	}
	x.lastUsed = time.Now()
	return x.shard, true, x.aborted, x.checkAPI(op)
}

func recoveryShard(op *Op) string {
	e, ok := op.Lookup("recoveryToken")
	if !ok {
		return ""
	}
	d, _ := e.Doc()
	s, ok := d.Lookup("recoveryShardId")
	if !ok {
		return ""
	}
	id, _ := s.Str()
	return id
}
