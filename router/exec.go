package router

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// sent is a shard's reply to one request.
type sent struct {
	shard string
	addr  string
	buf   *[]byte // holds msg; from the pool
	msg   []byte
	info  wire.ShardReply
	body  wire.Doc
}

// exchange sends a message to a shard and returns its reply, read in one walk. It
// repeats what is certainly safe to repeat: nothing was sent, or the operation is a
// read, or it carries a transaction number by which the shard knows it again, and
// is not part of a transaction; and what a member refused because it is not the
// primary. It raises the clock.
func (r *Router) exchange(ctx context.Context, op *Op, shard string, req *backend.Request) (out sent, err error) {
	out = sent{shard: shard, buf: op.Buffers.Get(4096)}
	b := r.Shard(shard)
	if b == nil {
		return out, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", shard)
	}
	req.Deadline, req.MayBeCut, req.Buffers = op.Deadline, !op.Write && !op.Txn.InTxn, op.Buffers
	if op.ReadTime != 0 && op.ReadTime <= r.Clock.Now() && !b.HasReached(op.ReadTime) {
		r.advance(ctx, b, op.ReadTime)
	}
	lost := lostWrite{shard: shard} // attempts whose replies never came
	start := time.Now()
	defer func() {
		op.Trace.Asked = append(op.Trace.Asked, Asked{Shard: shard, Took: time.Since(start)})
		if len(lost.conns) > 0 && (err != nil || !out.info.OK) {
			op.lost = append(op.lost, lost) // a later attempt did not find it done, so it may still run
		}
	}()
	var until time.Time
	for {
		var reply []byte
		reply, out.addr, err = b.RoundTrip(ctx, req, *out.buf)
		*out.buf = reply
		if err == nil {
			if err = out.read(); err != nil {
				return out, err
			}
			r.Clock.Advance(out.info.ClusterTime)
			b.Reached(out.info.OperationTime)
			if err = r.shutOutByShard(op, b, &out); err != nil {
				return out, err
			}
			if !r.refusedUnrun(op, &out, req) {
				return out, out.hideStepDown()
			}
		} else {
			if conn, may := op.mayStillRun(err); may {
				lost.conns = append(lost.conns, conn)
			}
			if !r.mayRepeat(op, err, req) {
				return out, err
			}
		}
		if until.IsZero() {
			until = time.Now().Add(r.opts.RetryTimeout)
		}
		if time.Now().After(until) || r.isStopped() || op.Expired() != nil || !sleep(ctx, 50*time.Millisecond) {
			if err == nil {
				err = out.hideStepDown()
			}
			return out, err
		}
	}
}

// advance writes a note into an idle shard's log, so that a read at or after time t need
// not wait for its periodic one, which comes every 10 s (MONGOD.md "Cluster time,
// snapshots, transactions"). That it fails is no error: the read waits then.
func (r *Router) advance(ctx context.Context, b *backend.Shard, t uint64) {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	body, err := r.run(ctx, b.ID, "admin", bson.D{
		{Key: "appendOplogNote", Value: int32(1)},
		{Key: "maxClusterTime", Value: bson.Timestamp{T: uint32(t >> 32), I: uint32(t)}},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "shardgate: a read needs this time"}}},
	})
	if err != nil {
		r.log.Debug().Err(err).Str("shard", b.ID).Msg("advance an idle shard")
	}
	if info, ierr := wire.Inspect(body); body != nil && ierr == nil {
		b.Reached(info.OperationTime)
	}
}

// mayStillRun reports whether a failure left a write behind on its shard: it was sent,
// and no reply came. It returns the connection on which it was sent.
func (op *Op) mayStillRun(err error) (conn string, may bool) {
	var be *backend.Error
	if !op.Write || !errors.As(err, &be) || be.SafeToRetry() {
		return "", false
	}
	return be.Conn, true
}

func (s *sent) read() error {
	body, err := wire.ReplyBody(*s.buf)
	if err != nil {
		return err
	}
	s.msg, s.body = *s.buf, body
	s.info, err = wire.Inspect(body)
	return err
}

// repeatable reports whether the operation may run a second time without harm.
func (op *Op) repeatable() bool {
	if op.Txn.Statement() {
		return false
	}
	return !op.Write || op.Txn.Present
}

func (r *Router) mayRepeat(op *Op, err error, req *backend.Request) bool {
	var be *backend.Error
	if !errors.As(err, &be) || errors.Is(err, context.Canceled) || be.Timeout() {
		return false
	}
	if be.Client().Code == mongoerr.FailedToSatisfyReadPreference || req.Addr != "" {
		return false
	}
	return be.SafeToRetry() || op.repeatable()
}

// refusedUnrun reports whether the reply says that the operation did not run, or may
// run again, and another attempt can help.
func (r *Router) refusedUnrun(op *Op, s *sent, req *backend.Request) bool {
	if req.Addr != "" || op.Txn.Statement() {
		return false
	}
	code := s.info.Code
	if s.info.OK {
		code = wcErrorCode(s.info.WCError, op.repeatable())
	}
	switch {
	case code == 0:
		return false
	case code == mongoerr.NotWritablePrimary, code == mongoerr.NotPrimaryNoSecondaryOk:
		return true // the member refused it before running it
	default:
		return code.Retriable() && op.repeatable()
	}
}

// wcErrorCode returns the code by which a write concern error asks for a repetition of the
// write, 0 if it does not or there is none to be had.
func wcErrorCode(wcError wire.Elem, repeatable bool) mongoerr.Code {
	if !repeatable || wcError.Type == 0 {
		return 0
	}
	d, _ := wcError.Doc()
	e, ok := d.Lookup("code")
	if !ok {
		return 0
	}
	n, _ := e.Int64()
	if c := mongoerr.Code(n); c.NotPrimary() {
		return c
	}
	return 0
}

// shutOutByShard notices that a shard no longer knows this router's user: the router
// was evicted. Its pools are dropped and the client is told of a network error, or its
// connection closed (see Evicted), never of missing rights, as another router can serve
// it (PROTOCOL.md, "More rules" 3).
func (r *Router) shutOutByShard(op *Op, b *backend.Shard, s *sent) error {
	if s.info.OK || !r.shutOutBy(b, s.info.Code) {
		return nil
	}
	label := mongoerr.LabelRetryableWrite
	if op.Txn.Statement() {
		label = mongoerr.LabelTransientTransaction
	}
	return errShutOut(s.shard).WithLabel(label)
}

// shutOutBy reports whether a shard's code says so.
func (r *Router) shutOutBy(b *backend.Shard, c mongoerr.Code) bool {
	if r.opts.Backend.Admin.None() || c != mongoerr.Unauthorized && c != mongoerr.AuthenticationFailed {
		return false
	}
	b.Clear()
	r.refused.Store(true)
	r.reload.signal()
	return true
}

func errShutOut(shard string) *mongoerr.Error {
	return mongoerr.Newf(mongoerr.HostUnreachable, "shard %s has shut this router out", shard)
}

// release gives the reply's buffer back.
func (r *Router) release(op *Op, s *sent) {
	op.Buffers.Put(s.buf)
	s.buf, s.msg, s.body = nil, nil, nil
}

// forward sends the client's command to one shard and makes the shard's reply the
// client's, patched in place. It is the way of the point operations.
func (r *Router) forward(ctx context.Context, op *Op, shard string, p *patch) (wire.ShardReply, string, error) {
	buf := op.Buffers.Get(len(op.Cmd.Body) + sequenceBytes(op, p) + 512)
	defer op.Buffers.Put(buf)
	*buf = r.appendMessage(*buf, op, p)
	s, err := r.exchange(ctx, op, shard, &backend.Request{Msg: *buf, Pref: op.Pref})
	if err != nil {
		op.Buffers.Put(s.buf)
		return wire.ShardReply{}, "", err
	}
	return r.adopt(op, &s)
}

func sequenceBytes(op *Op, p *patch) int {
	if !p.seqs || op.Msg == nil {
		return 0
	}
	return int(op.Msg.Length)
}

// adopt makes a shard's reply the client's. Codes that would make a driver think
// ill of the router are rewritten (MONGOS.md §5.1).
func (r *Router) adopt(op *Op, s *sent) (wire.ShardReply, string, error) {
	if !s.info.OK || s.info.WCError.Type != 0 {
		err := r.adoptError(op, s)
		if err != nil || !s.info.OK {
			r.release(op, s)
			return s.info, s.addr, err
		}
	}
	old, info, err := op.Reply.Adopt(*s.buf)
	if err != nil {
		op.Buffers.Put(s.buf)
		return info, s.addr, err
	}
	*s.buf = old
	op.Buffers.Put(s.buf)
	return info, s.addr, nil
}

// adoptError handles replies with ok:0: they are returned as an error, all their
// further fields kept.
func (r *Router) adoptError(op *Op, s *sent) error {
	if s.info.OK {
		return nil
	}
	op.Reply.ShardTime = max(op.Reply.ShardTime, s.info.OperationTime)
	return shardError(op, s.body)
}

// shardError makes the client's error of a shard's ok:0 reply.
func shardError(op *Op, body wire.Doc) *mongoerr.Error {
	e := &mongoerr.Error{}
	it := body.Iter()
	var el wire.Elem
	for it.Next(&el) {
		switch string(el.Name) {
		case "ok", "codeName", "errorLabels", "$clusterTime", "operationTime", "electionId",
			"opTime", "topologyVersion":
		case "errmsg":
			e.Message, _ = el.Str()
		case "code":
			n, _ := el.Int64()
			e.Code = mongoerr.Code(n)
		default:
			e.Extra = append(e.Extra, el.Raw...)
		}
	}
	if op.Txn.InTxn && e.Code.TransientInTransaction() && !(op.Txn.Committal && e.Code != mongoerr.NoSuchTransaction) {
		e.Labels = append(e.Labels, mongoerr.LabelTransientTransaction)
	}
	if e.Code == mongoerr.Interrupted && op.Expired() != nil {
		// A script that is stopped by the time limit says only that it was stopped.
		e.Code, e.Message = mongoerr.MaxTimeMSExpired, "operation exceeded time limit"
	}
	e.Code = clientCode(e.Code)
	return e
}

// ClientError makes the error that a client sees of any failure on the way.
func ClientError(op *Op, err error) *mongoerr.Error {
	var be *backend.Error
	if !errors.As(err, &be) {
		if errors.Is(err, wire.ErrMalformed) {
			return mongoerr.New(mongoerr.InvalidBSON, "invalid BSON in the command")
		}
		return mongoerr.As(err)
	}
	e := be.Client()
	if op.Txn.Statement() {
		e = e.WithLabel(mongoerr.LabelTransientTransaction)
	}
	return e
}
