package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// begin starts transaction 1 on an operation's session.
func begin(t *testing.T, r *Router) func(*Op) {
	t.Helper()
	return func(op *Op) {
		op.Txn = Txn{Number: 1, Present: true, InTxn: true, Start: true}
		require.NoError(t, r.BeginStatement(op))
	}
}

func committal(op *Op) { op.Txn = Txn{Number: 1, Present: true, InTxn: true, Committal: true} }

// TestCommitFindsNoTransaction: the driver is to run the whole transaction again.
func TestCommitFindsNoTransaction(t *testing.T) {
	t.Parallel()
	r := overShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "insert":
			return bson.D{e("n", int32(1)), e("ok", 1.0)}
		case "commitTransaction":
			return bson.D{e("ok", 0.0), e("errmsg", "gone"), e("code", int32(251))}
		}
		return nil
	})
	_, err := do(t, r, begin(t, r), oneInsert...)
	require.Nil(t, err)
	_, err = do(t, r, committal, e("commitTransaction", int32(1)))
	require.NotNil(t, err)
	require.Equal(t, mongoerr.NoSuchTransaction, err.Code)
	require.Equal(t, []string{mongoerr.LabelTransientTransaction}, err.Labels)
}

// TestStatementThatTheRouterRefuses ends the transaction: what ran before must not be
// committed without it.
func TestStatementThatTheRouterRefuses(t *testing.T) {
	t.Parallel()
	aborted := make(chan int64, 1)
	r := overShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "insert":
			return bson.D{e("n", int32(1)), e("ok", 1.0)}
		case "abortTransaction":
			el, _ = cmd.Lookup("txnNumber")
			n, _ := el.Int64()
			aborted <- n
		}
		return nil
	})
	var op Op
	_, err := do(t, r, func(o *Op) { begin(t, r)(o); op = *o }, oneInsert...)
	require.Nil(t, err)
	r.FailStatement(t.Context(), &op)
	require.Equal(t, int64(1), <-aborted)
	r.FailStatement(t.Context(), &op) // once is enough

	op.Txn.Start = false
	requireCode(t, mongoerr.NoSuchTransaction, r.BeginStatement(&op))
	_, err = do(t, r, committal, e("commitTransaction", int32(1)))
	require.NotNil(t, err)
	require.Equal(t, mongoerr.NoSuchTransaction, err.Code)
	require.Equal(t, []string{mongoerr.LabelTransientTransaction}, err.Labels)
}

// TestBatchOfATransactionOverShards is refused before any of it has run.
func TestBatchOfATransactionOverShards(t *testing.T) {
	t.Parallel()
	on := func(shards ...string) statement { return statement{aim: aim{shards: shards}} }
	for _, c := range []struct {
		name   string
		joined string
		stmts  []statement
		fits   bool
	}{
		{"one shard", "", []statement{on("s"), on("s")}, true},
		{"the transaction's", "s", []statement{on("s"), {err: mongoerr.New(mongoerr.BadValue, "")}}, true},
		{"two", "", []statement{on("s"), on("s"), on("u")}, false},
		{"one for two", "", []statement{on("s", "u")}, false},
		{"another", "s", []statement{on("u")}, false},
	} {
		var r Router
		r.txns.init()
		op := &Op{Txn: Txn{Number: 1, InTxn: true}}
		r.txns.open[op.Session.ID] = &txn{number: 1, shard: c.joined}
		if err := r.joinAll(op, c.stmts); c.fits {
			require.NoError(t, err, c.name)
		} else {
			requireCode(t, mongoerr.NotImplemented, err)
		}
		op.Txn.InTxn = false
		require.NoError(t, r.joinAll(op, c.stmts), c.name)
	}
}
