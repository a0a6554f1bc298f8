package router

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
)

// shutOutFormer begins to shut out every user of a former incarnation on its shard.
func (r *Router) shutOutFormer(ctx context.Context) {
	r.usersMu.Lock()
	defer r.usersMu.Unlock()
	for u, begun := range r.former {
		if !begun {
			r.former[u] = true
			r.wg.Go(func() { r.shutOut(ctx, u) })
		}
	}
}

// shutOut shuts a user of a former incarnation out of its shard. Till then the user is in
// this router's row, and no collection that lies on the shard is changed (see behind).
func (r *Router) shutOut(ctx context.Context, u catalog.ShardUser) {
	ctx, cancel := r.untilStopped(ctx)
	defer cancel()
	if !r.untilShutOut(ctx, u) {
		return
	}
	r.usersMu.Lock()
	delete(r.former, u)
	r.usersMu.Unlock()
	r.reload.signal() // it can be acknowledged
}

// untilShutOut tries until a user is shut out of its shard, or the shard is none any more.
// It reports false if ctx ends first.
func (r *Router) untilShutOut(ctx context.Context, u catalog.ShardUser) bool {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		if _, exists := r.snap.Load().Shards[u.Shard]; !exists {
			return true
		}
		err := r.tryShutOut(ctx, u)
		if err == nil {
			return true
		}
		r.log.Debug().Err(err).Str("shard", u.Shard).Str("user", u.User).Msg("shut a router out")
		if !sleep(ctx, wait) {
			return false
		}
	}
}

var (
	errNotOpen = errors.New("the shard is not open")
	// What was the primary is a secondary by now, on which nobody has looked for reads.
	errOtherPrimary = errors.New("the shard has another primary")
	errStillRuns    = errors.New("an operation or a transaction of the user is still there")
)

// tryShutOut makes certain that nothing is done by a user on its shard any more, and that
// nothing which was is unfinished there (docs/architecture.md, "Eviction"). Users are
// administered by the administrator, all else is done by this router's own user. Without
// auth nobody can be shut out.
func (r *Router) tryShutOut(ctx context.Context, u catalog.ShardUser) error {
	if r.opts.Backend.Admin.None() {
		return nil
	}
	b := r.Shard(u.Shard)
	if b == nil {
		return errNotOpen
	}
	ctx, cancel := context.WithTimeout(ctx, backgroundLimit)
	defer cancel()
	if err := b.DropUser(ctx, u.User); err != nil {
		return err
	}
	// An earlier attempt may have dropped the user without a majority; this has one.
	body, err := r.run(ctx, u.Shard, "admin", bson.D{
		{Key: "appendOplogNote", Value: int32(1)},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "shardgate: shut out " + u.User}}},
		{Key: "writeConcern", Value: majorityWrites},
	})
	if err != nil {
		return err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return err
	}
	primary := b.PrimaryAddr()
	for _, addr := range b.Members() {
		if addr == primary {
			continue
		}
		if err := r.memberReached(ctx, b, addr, info.OperationTime); err != nil {
			return err
		}
		if err := r.endReads(ctx, b, addr, u.User); err != nil {
			return err
		}
	}
	if err := r.endLeft(ctx, u); err != nil {
		return err
	}
	if b.PrimaryAddr() != primary {
		return errOtherPrimary
	}
	return nil
}

// endReads kills what a user that is dropped still reads on a secondary: what it reads
// there may be cleaned up when it is shut out.
func (r *Router) endReads(ctx context.Context, b *backend.Shard, addr, user string) error {
	ask := func(cmd bson.D) (wire.Doc, error) {
		raw, err := bson.Marshal(append(cmd, bson.E{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "secondaryPreferred"}}}))
		if err != nil {
			return nil, err
		}
		return b.RunAt(ctx, addr, "admin", raw[4:len(raw)-1])
	}
	body, err := ask(bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}}}},
			bson.D{{Key: "$match", Value: runBy(user)}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "opid", Value: int32(1)}}}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: int32(10000)}}},
	})
	if err != nil {
		return err
	}
	var reply struct {
		Cursor struct {
			Batch shardOps `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	if err := bson.Unmarshal(body, &reply); err != nil {
		return err
	}
	for _, o := range reply.Cursor.Batch {
		if _, err := ask(bson.D{{Key: "killOp", Value: int32(1)}, {Key: "op", Value: o.ID}}); err != nil {
			return err
		}
	}
	if len(reply.Cursor.Batch) > 0 {
		return errStillRuns
	}
	return nil
}

// ofUser finds what came by a user's connections: by their names.
func ofUser(user string) bson.E {
	return bson.E{Key: "appName", Value: bson.Regex{Pattern: " " + quoteRegex(user) + " "}}
}

// runBy finds the operations that a user runs.
func runBy(user string) bson.D {
	return bson.D{
		{Key: "$or", Value: bson.A{bson.D{{Key: "effectiveUsers.user", Value: user}}, bson.D{ofUser(user)}}},
		{Key: "active", Value: true},
	}
}

// memberReached waits until a member that can be read has applied what its shard did up
// to t.
func (r *Router) memberReached(ctx context.Context, b *backend.Shard, addr string, t uint64) error {
	cmd, err := bson.Marshal(bson.D{
		{Key: "find", Value: "system.version"},
		{Key: "limit", Value: int32(1)},
		{Key: "readConcern", Value: bson.D{{Key: "afterClusterTime", Value: catalog.Timestamp(t).BSON()}}},
		{Key: "maxTimeMS", Value: backgroundLimit.Milliseconds()},
		{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "secondaryPreferred"}}},
	})
	if err != nil {
		return err
	}
	elems := wire.AppendClusterTime(cmd[4:len(cmd)-1:len(cmd)-1], &wire.ClusterTime{Time: max(t, r.Clock.Now())})
	_, err = b.RunAt(ctx, addr, "admin", elems)
	return err
}

// endLeft kills what a user that is dropped has left running, as an operation outlives its
// user and its connection (PROTOCOL.md F3), and what it has left open: a transaction of
// which it ran the last statement, which another router might commit yet (F2).
func (r *Router) endLeft(ctx context.Context, u catalog.ShardUser) error {
	running, err := r.listOps(ctx, u.Shard, runBy(u.User))
	if err != nil {
		return err
	}
	r.killOps(ctx, u.Shard, running.active())
	open, err := r.openSessions(ctx, u.Shard, ofUser(u.User))
	if err != nil {
		return err
	}
	if len(open) > 0 {
		if _, err := r.run(ctx, u.Shard, "admin", bson.D{{Key: "killSessions", Value: open}}); err != nil {
			return err
		}
	}
	if len(running)+len(open) > 0 {
		return errStillRuns // it is certain when none is found
	}
	return nil
}

// openSessions lists the sessions in which a transaction is open that nobody runs just now
// and whose last connection suits. What is prepared is not to be killed.
func (r *Router) openSessions(ctx context.Context, shard string, match bson.E) (list []bson.Raw, err error) {
	err = r.drain(ctx, shard, "admin", bson.D{
		{Key: "aggregate", Value: int32(1)},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleSessions", Value: true}}}},
			bson.D{{Key: "$match", Value: bson.D{
				{Key: "type", Value: "idleSession"},
				match,
				{Key: "transaction.timePreparedMicros", Value: bson.D{{Key: "$exists", Value: false}}},
			}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "id", Value: "$lsid.id"}, {Key: "uid", Value: "$lsid.uid"}}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	}, func(doc bson.Raw) error {
		list = append(list, append(bson.Raw(nil), doc...))
		return nil
	})
	return list, err
}
