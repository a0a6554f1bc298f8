package router

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// majorityWrites is the write concern of DDL: what a failover may take back is not done.
var majorityWrites = bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int32(60000)}}

// run runs a DDL command on one shard's primary. What the shard did but could not
// confirm as its write concern asks is an error, too: see isUnsure.
func (r *Router) run(ctx context.Context, shard, db string, cmd bson.D) (wire.Doc, error) {
	body, err := r.ask(ctx, shard, db, cmd)
	if err != nil {
		return body, err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return body, err
	}
	if wc, ok := info.WCError.Doc(); ok {
		return body, &unconfirmedError{wcErrorOf(shard, wc)}
	}
	return body, nil
}

// ask is run without a look at the write concern. Reaching the shard's clock raises
// ours, so that later reads see what it did.
func (r *Router) ask(ctx context.Context, shard, db string, cmd bson.D) (wire.Doc, error) {
	b := r.Shard(shard)
	if b == nil {
		return nil, mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", shard)
	}
	raw, err := bson.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	elems := raw[4 : len(raw)-1]
	if t := r.Clock.Now(); t != 0 {
		elems = wire.AppendClusterTime(append([]byte(nil), elems...), &wire.ClusterTime{Time: t})
	}
	body, err := b.Run(ctx, db, elems)
	if body != nil {
		if info, ierr := wire.Inspect(body); ierr == nil {
			r.Clock.Advance(info.ClusterTime)
		}
	}
	if err != nil && r.shutOutBy(b, mongoerr.CodeOf(err)) {
		err = errShutOut(shard)
	}
	return body, notOurs(err)
}

// unconfirmedError says that a shard did what it was told, but a failover may undo it.
type unconfirmedError struct{ cause *mongoerr.Error }

// Error implements error.
func (e *unconfirmedError) Error() string { return e.cause.Error() }

// Unwrap returns what the client is to see.
func (e *unconfirmedError) Unwrap() error { return e.cause }

// wcErrorOf makes an error of a shard's writeConcernError.
func wcErrorOf(shard string, wc wire.Doc) *mongoerr.Error {
	c, _ := wc.Lookup("code")
	code, _ := c.Int64()
	m, _ := wc.Lookup("errmsg")
	msg, _ := m.Str()
	return mongoerr.New(clientCode(mongoerr.Code(code)), msg+" at "+shard)
}

// isUnsure reports whether an error leaves it open what a shard has done, or will do:
// it could not be reached, or did not confirm.
func isUnsure(err error) bool {
	var be *backend.Error
	var u *unconfirmedError
	return errors.As(err, &be) || errors.As(err, &u)
}

// collInfo is what listCollections says of one namespace.
type collInfo struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"`
	Options bson.Raw `bson:"options"`
	Info    struct {
		UUID bson.Binary `bson:"uuid"`
	} `bson:"info"`
	IDIndex bson.Raw `bson:"idIndex"`
}

func (i *collInfo) uuid() uuid.UUID {
	var u uuid.UUID
	copy(u[:], i.Info.UUID.Data)
	return u
}

// find returns what a shard holds under a name, nil for nothing.
func (r *Router) find(ctx context.Context, shard, ns string) (*collInfo, error) {
	db, coll := catalog.SplitNS(ns)
	list, err := r.listOn(ctx, shard, db, bson.D{{Key: "name", Value: coll}})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// listOn lists what a shard's database holds, by filter.
func (r *Router) listOn(ctx context.Context, shard, db string, filter bson.D) ([]collInfo, error) {
	var list []collInfo
	err := r.drain(ctx, shard, db, bson.D{{Key: "listCollections", Value: int32(1)}, {Key: "filter", Value: filter}},
		func(doc bson.Raw) error {
			var i collInfo
			if err := bson.Unmarshal(doc, &i); err != nil {
				return err
			}
			list = append(list, i)
			return nil
		})
	return list, err
}

func (r *Router) isEmpty(ctx context.Context, shard, ns string) (bool, error) {
	db, coll := catalog.SplitNS(ns)
	empty := true
	err := r.drain(ctx, shard, db, bson.D{
		{Key: "find", Value: coll},
		{Key: "limit", Value: int32(1)},
		{Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: int32(1)}}},
	}, func(bson.Raw) error { empty = false; return nil })
	return empty, err
}

// drain runs a command that answers with a cursor and hands over every document.
func (r *Router) drain(ctx context.Context, shard, db string, cmd bson.D, each func(bson.Raw) error) error {
	for {
		body, err := r.run(ctx, shard, db, cmd)
		if err != nil {
			return err
		}
		info, err := wire.Inspect(body)
		if err != nil {
			return err
		}
		id, coll, batch, err := cursorReply(info.Cursor)
		if err != nil {
			return err
		}
		for len(batch) > 0 {
			e, n := wire.FirstElem(batch)
			if n == 0 {
				return wire.ErrMalformed
			}
			if err := each(bson.Raw(e.Value)); err != nil {
				return err
			}
			batch = batch[n:]
		}
		if id == 0 {
			return nil
		}
		cmd = bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}}
	}
}

// isUnreachable reports whether an error is about getting to a shard, not from it.
func isUnreachable(err error) bool {
	var be *backend.Error
	return errors.As(err, &be)
}

// confirm waits until what shards have shown so far is as safe as a client's write concern
// asks, and returns the first write concern error.
func (r *Router) confirm(ctx context.Context, shards []string, concern bson.RawValue) (unconfirmed []byte) {
	replies := r.onShards(ctx, shards, "admin", bson.D{
		{Key: "appendOplogNote", Value: int32(1)},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "shardgate: what is here stays"}}},
		{Key: "writeConcern", Value: concern},
	})
	for i := range replies {
		e, _ := replies[i].Body.Lookup("writeConcernError")
		if wc, is := e.Doc(); is {
			return UnconfirmedAt(replies[i].Shard, wc)
		}
	}
	return nil
}

// settle waits until a majority of a shard has all that its primary has shown so far.
func (r *Router) settle(ctx context.Context, shard string) error {
	_, err := r.run(ctx, shard, "admin", bson.D{
		{Key: "appendOplogNote", Value: int32(1)},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "shardgate: what is here stays"}}},
		{Key: "writeConcern", Value: majorityWrites},
	})
	return err
}
