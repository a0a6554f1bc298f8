package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// guardOf names the collection that guards createWithUUID on a shard while it is at work
// on a namespace.
func guardOf(ns string) string {
	db, _ := catalog.SplitNS(ns)
	sum := sha256.Sum256([]byte(ns))
	return db + ".shardgate.guard." + hex.EncodeToString(sum[:12])
}

// createWithUUID makes a collection of a given UUID by applyOps (MONGOD.md "Versions
// and names"): one logical collection has one UUID everywhere.
//
// An applyOps renames out of the way whatever has its name or its UUID. One of a failed
// attempt that arrived late would so take a later collection away. Its first operation
// therefore needs a guard, a collection of this attempt alone, and fails without it:
// who begins anything on the shard under the name drops the guard first.
func (r *Router) createWithUUID(ctx context.Context, shard, ns string, like *collInfo) error {
	db, coll := catalog.SplitNS(ns)
	o := bson.D{{Key: "create", Value: coll}}
	if err := appendElements(&o, like.Options); err != nil {
		return err
	}
	if like.IDIndex != nil {
		o = append(o, bson.E{Key: "idIndex", Value: like.IDIndex})
	}
	u := like.uuid()
	return r.applyGuarded(ctx, shard, ns, bson.D{
		{Key: "op", Value: "c"},
		{Key: "ns", Value: db + ".$cmd"},
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: u[:]}},
		{Key: "o", Value: o},
	})
}

// applyGuarded applies operations behind a guard of their own, which dropGuard has left room
// for: whoever drops it before they have come makes them do nothing.
func (r *Router) applyGuarded(ctx context.Context, shard, ns string, ops ...bson.D) (err error) {
	guard, err := r.makeGuard(ctx, shard, ns)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := withTimeout(ctx)
		defer cancel()
		if derr := r.dropGuard(ctx, shard, ns); err == nil {
			err = derr
		}
	}()
	first := bson.D{
		{Key: "op", Value: "i"},
		{Key: "ns", Value: guardOf(ns)},
		{Key: "ui", Value: guard.Info.UUID},
		{Key: "o", Value: bson.D{{Key: "_id", Value: int32(0)}}},
	}
	return r.applyOps(ctx, shard, append([]bson.D{first}, ops...)...)
}

// makeGuard makes a guard where dropGuard has left none.
func (r *Router) makeGuard(ctx context.Context, shard, ns string) (*collInfo, error) {
	db, name := catalog.SplitNS(guardOf(ns))
	_, err := r.run(ctx, shard, db, bson.D{{Key: "create", Value: name}, {Key: "writeConcern", Value: majorityWrites}})
	if err != nil {
		return nil, err
	}
	guard, err := r.find(ctx, shard, guardOf(ns))
	if err == nil && guard == nil {
		err = mongoerr.Newf(mongoerr.NamespaceNotFound, "the guard of %s is gone from shard %s", ns, shard)
	}
	return guard, err
}

// dropGuard takes what is left of earlier attempts its guard: from now on it fails.
func (r *Router) dropGuard(ctx context.Context, shard, ns string) error {
	guard, err := r.find(ctx, shard, guardOf(ns))
	if err != nil || guard == nil {
		return err
	}
	return r.dropAt(ctx, shard, guardOf(ns), guard.uuid())
}

// applyOpsWait is how long an applyOps may wait for its lock. It is that of the whole
// shard: behind one that waits for an open transaction everything else there waits, too.
const applyOpsWait = 200 * time.Millisecond

// applyOps runs what can be run again. While transactions are in its way, it tries and
// steps aside in turn, so that they and all others go on.
func (r *Router) applyOps(ctx context.Context, shard string, ops ...bson.D) error {
	cmd := bson.D{
		{Key: "applyOps", Value: ops},
		{Key: "maxTimeMS", Value: applyOpsWait.Milliseconds()},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: int32(1)}}}, // the limit is for the lock alone
	}
	until := time.Now().Add(r.opts.LockTimeout)
	for {
		_, err := r.run(ctx, shard, "admin", cmd)
		switch {
		case err == nil:
			return r.settle(ctx, shard)
		case mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired || ctx.Err() != nil:
			return err
		case time.Now().After(until):
			return mongoerr.Newf(mongoerr.LockBusy, "transactions on shard %s are open all the time", shard)
		}
		if !sleep(ctx, 4*applyOpsWait) {
			return err
		}
	}
}
