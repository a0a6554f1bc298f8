package router

import (
	"context"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Documents of up to 16 MiB do not fit into a claim or a record that says more: what is
// longer than inlineLimit lies beside it, in parts of partSize bytes.
const (
	inlineLimit = 8 << 20
	partSize    = 8 << 20
)

// bulky names parts that lie beside a claim or a record, of which N is 0 where there are
// none. Parts that nobody names any more go with time, as claims do.
type bulky struct {
	ID bson.ObjectID `bson:"id"`
	N  int32         `bson:"n"`
}

// partID names one part.
func (b bulky) partID(i int32) bson.D {
	return bson.D{{Key: "part", Value: b.ID}, {Key: "n", Value: i}}
}

// inParts divides data into documents for the collection of claims.
func inParts(data []byte) (b bulky, docs []bson.D) {
	b.ID = bson.NewObjectID()
	for ; len(data) > 0; b.N++ {
		n := min(len(data), partSize)
		docs = append(docs, bson.D{
			{Key: "_id", Value: b.partID(b.N)}, {Key: "until", Value: time.Now().Add(claimLifetime)}, {Key: "data", Value: bson.Binary{Data: data[:n]}},
		})
		data = data[n:]
	}
	return b, docs
}

// keepParts stores data on a shard.
func (r *Router) keepParts(ctx context.Context, op *Op, shard string, data []byte) (bulky, error) {
	b, docs := inParts(data)
	for _, d := range docs {
		s, err := r.keep(ctx, op, shard, InternalDB, insertClaim(d, majorityWrites))
		if err == nil {
			err = firstWriteError(s.info.WriteErrors)
		}
		if err == nil {
			err = s.unconfirmed()
		}
		r.release(op, &s)
		if err != nil && mongoerr.CodeOf(err) != mongoerr.DuplicateKey { // a repetition of its own
			return b, err
		}
	}
	return b, nil
}

// insertClaim is the command that puts a document among the claims.
func insertClaim(doc any, concern bson.D) bson.D {
	cmd := bson.D{{Key: "insert", Value: claimsColl}, {Key: "documents", Value: bson.A{doc}}}
	if concern != nil {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: concern})
	}
	return cmd
}

// parts reads what keepParts stored.
func (r *Router) parts(ctx context.Context, op *Op, shard string, b bulky) ([]byte, error) {
	var data []byte
	for i := range b.N {
		doc, err := r.noted(ctx, op, shard, b.partID(i))
		if err != nil {
			return nil, err
		}
		e, ok := doc.Lookup("data")
		if !ok || e.Type != bson.TypeBinary || len(e.Value) < 5 {
			return nil, mongoerr.New(mongoerr.InternalError, "part "+strconv.Itoa(int(i))+" of a claim is gone")
		}
		data = append(data, e.Value[5:]...)
	}
	return data, nil
}

// setAside takes what is too long for a claim out of a choice.
func (r *Router) setAside(ctx context.Context, op *Op, shard string, c *choice) error {
	if len(c.Insert)+len(c.Value) <= inlineLimit {
		return nil
	}
	data := append(append(make([]byte, 0, len(c.Insert)+len(c.Value)), c.Insert...), c.Value...)
	var err error
	c.Aside, err = r.keepParts(ctx, op, shard, data)
	c.Insert, c.Value = nil, nil
	return err
}

// putBack undoes setAside.
func (r *Router) putBack(ctx context.Context, op *Op, shard string, c *choice) error {
	if c.Aside.N == 0 {
		return nil
	}
	data, err := r.parts(ctx, op, shard, c.Aside)
	if err != nil {
		return err
	}
	insert, value, ok := bsoncore.ReadDocument(data)
	if !ok {
		return wire.ErrMalformed
	}
	c.Insert = bson.Raw(insert)
	if len(value) > 0 {
		c.Value = bson.Raw(value)
	}
	return nil
}
