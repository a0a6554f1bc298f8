package router

import (
	"context"
	"hash/maphash"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// compare counts both copies. Counts from the metadata may be wrong after a crash, so that
// a difference is looked into; where documents expire by themselves there may be one.
func (c *copier) compare(ctx context.Context) error {
	if c.m.row.Range != nil {
		return c.compareRange(ctx)
	}
	if c.ttl {
		return nil
	}
	db, coll := c.names()
	counts := func(cmd bson.D, field ...string) (donor, recipient int64, err error) {
		for i, shard := range []string{c.m.row.From, c.m.row.To} {
			body, err := c.m.r.run(ctx, shard, db, cmd)
			if err != nil {
				return 0, 0, err
			}
			n, _ := bson.Raw(body).Lookup(field...).AsInt64OK()
			if i == 0 {
				donor = n
			} else {
				recipient = n
			}
		}
		return donor, recipient, nil
	}
	a, b, err := counts(bson.D{{Key: "count", Value: coll}}, "n")
	if err != nil || a == b {
		return err
	}
	a, b, err = counts(bson.D{
		{Key: "aggregate", Value: coll},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$count", Value: "n"}}}},
		{Key: "cursor", Value: bson.D{}},
	}, "cursor", "firstBatch", "0", "n")
	if err == nil && a != b {
		err = mongoerr.Newf(mongoerr.InternalError, "the copy of %s has %d documents, the original %d", c.m.row.NS, b, a)
	}
	return err
}

// compareMax is how many documents of a range are compared while writes are held: more take
// too long.
const compareMax = 20_000

// compareRange compares the documents of a range by _id and key. It must, however many they
// are, where writes have deleted copies that were in their way: of a document that is still
// there one cannot be missing.
func (c *copier) compareRange(ctx context.Context) error {
	disturbed, err := c.m.isDisturbed(ctx)
	if err != nil {
		return err
	}
	if !disturbed && (c.ttl || c.copied > compareMax) {
		return nil
	}
	seed := maphash.MakeSeed()
	a, x, err := c.m.digest(ctx, c.m.row.From, seed)
	if err != nil {
		return err
	}
	b, y, err := c.m.digest(ctx, c.m.row.To, seed)
	if err == nil && (a != b || x != y) {
		err = mongoerr.Newf(mongoerr.InternalError, "the copy of a range of %s has %d documents, the original %d, or others", c.m.row.NS, b, a)
	}
	return err
}

// digest is the number of a shard's documents of the range and a sum over their _ids and
// keys.
func (m *mover) digest(ctx context.Context, shard string, seed maphash.Seed) (n int64, sum uint64, err error) {
	err = m.keysOn(ctx, shard, func(docs []bson.Raw) (bool, error) {
		for _, d := range docs {
			n++
			sum += maphash.Bytes(seed, d)
		}
		return true, nil
	})
	return n, sum, err
}
