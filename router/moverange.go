package router

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// within reports whether a document belongs to what moves. It is decided here, by the same
// key that decides which shard owns it, and never by a query: no collation bends it
// (PROTOCOL.md F14).
func (m *mover) within(doc []byte) (bool, error) {
	if m.row.Range == nil {
		return true, nil
	}
	if m.keys == nil {
		e := m.entry()
		if e == nil {
			return false, mongoerr.Newf(mongoerr.NamespaceNotFound, "%s is gone", m.row.NS)
		}
		m.keys = e.Table.Pattern()
	}
	var buf [128]byte
	key, err := m.keys.AppendKey(buf[:0], doc)
	if errors.Is(err, shardkey.ErrArray) {
		err = mongoerr.Newf(mongoerr.ShardKeyNotFound, "a document of %s has an array in its shard key", m.row.NS)
	}
	if err != nil {
		return false, err
	}
	return holds(m.keys, m.row.Range, key), nil
}

// holds reports whether a key lies in a range. What is at or above the last bound of all
// lies in the last range (see shardkey.Table.Find).
func holds(p *shardkey.Pattern, r *catalog.Range, key []byte) bool {
	return bytes.Compare(key, r.MinKey) >= 0 && (bytes.Compare(key, r.MaxKey) < 0 || bytes.Equal(r.Max, p.MaxBound()))
}

// keyFields is the projection by which a document's _id and key are seen.
func (m *mover) keyFields() bson.D {
	e := m.entry()
	if e == nil || m.row.Range == nil {
		return bson.D{{Key: "_id", Value: int32(1)}}
	}
	var fields bson.D
	for _, path := range identifying(e) {
		fields = append(fields, bson.E{Key: path.Name, Value: int32(1)})
	}
	return fields
}

// part keeps of documents those that belong to what moves.
func (m *mover) part(docs []bson.Raw) ([]bson.Raw, error) {
	if m.row.Range == nil {
		return docs, nil
	}
	return those(docs, m.within)
}

// part keeps of the donor's documents those that belong to what moves.
func (c *copier) part(docs []bson.Raw) ([]bson.Raw, error) {
	if c.re == nil {
		return c.m.part(docs)
	}
	return those(docs, c.within)
}

// those keeps of documents those that belong to something.
func those(docs []bson.Raw, belongs func([]byte) (bool, error)) ([]bson.Raw, error) {
	var in []bson.Raw
	for _, d := range docs {
		is, err := belongs(d)
		if err != nil {
			return nil, err
		}
		if is {
			in = append(in, d)
		}
	}
	return in, nil
}

// scanOf is the command that reads what moves on a shard, and more: what reads it looks at
// each document. The shard key's index serves where it can.
func (m *mover) scanOf(ctx context.Context, shard string, batch int) (bson.D, error) {
	_, coll := catalog.SplitNS(m.row.NS)
	cmd := bson.D{{Key: "find", Value: coll}, {Key: "batchSize", Value: int32(batch)}}
	if r := m.row.Range; r != nil {
		x, err := m.keyIndex(ctx, shard)
		if err != nil {
			return nil, err
		}
		if x != nil {
			p := m.entry().Table.Pattern()
			cmd = append(cmd, bson.E{Key: "hint", Value: x.Name})
			if !bytes.Equal(r.Min, p.MinBound()) {
				cmd = append(cmd, bson.E{Key: "min", Value: startOf(r.Min, x.Key)})
			}
			if !bytes.Equal(r.Max, p.MaxBound()) {
				cmd = append(cmd, bson.E{Key: "max", Value: startOf(r.Max, x.Key)})
			}
			return cmd, nil
		}
	}
	return append(cmd, bson.E{Key: "hint", Value: bson.D{{Key: "$natural", Value: int32(1)}}}), nil
}

// keyIndex finds an index by which a range of the shard key can be read on a shard; nil if
// there is none.
func (m *mover) keyIndex(ctx context.Context, shard string) (*indexInfo, error) {
	e := m.entry()
	if e == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "%s is gone", m.row.NS)
	}
	indexes, err := m.r.indexesOn(ctx, e, shard)
	if err != nil {
		return nil, err
	}
	var best *indexInfo
	for i := range indexes {
		x := &indexes[i]
		collated := x.isID() && len(e.Coll.Collation) > 0
		if indexSupports(e.Table.Pattern(), x.Key) && x.plain() && !x.Hidden && !collated && ordered(x.Key, e.Table.Pattern().Len()) &&
			(best == nil || len(x.Key) < len(best.Key)) {
			best = x
		}
	}
	return best, nil
}

// ordered reports whether the fields of an index from the n-th on are in plain order.
func ordered(index bson.Raw, n int) bool {
	elems, err := index.Elements()
	if err != nil {
		return false
	}
	for _, e := range elems[n:] {
		if _, number := e.Value().AsFloat64OK(); !number {
			return false
		}
	}
	return true
}

// startOf is the place in an index where a bound of the shard key begins.
func startOf(bound, index bson.Raw) bson.Raw {
	out := append([]byte(nil), bound[:len(bound)-1]...)
	fields, _ := index.Elements()
	values, _ := bound.Elements()
	for _, f := range fields[len(values):] {
		t := bsoncore.TypeMinKey
		if n, _ := f.Value().AsFloat64OK(); n < 0 {
			t = bsoncore.TypeMaxKey
		}
		out = bsoncore.AppendHeader(out, t, f.Key())
	}
	return wire.AppendDocEnd(out, 0)
}

// idsAt lists the documents of a shard, by _id, that belong to what moves. run is a
// transaction's, or a plain command's.
func (m *mover) idsAt(run txnRun, ids []bson.RawValue, more ...bson.E) ([]bson.RawValue, error) {
	db, coll := catalog.SplitNS(m.row.NS)
	body, err := run(db, append(bson.D{
		{Key: "find", Value: coll},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "projection", Value: m.keyFields()},
		{Key: "batchSize", Value: int32(len(ids) + 1)},
	}, more...))
	if err != nil {
		return nil, err
	}
	info, err := wire.Inspect(body)
	if err != nil {
		return nil, err
	}
	open, _, batch, err := cursorReply(info.Cursor)
	if err == nil && open != 0 {
		err = mongoerr.Newf(mongoerr.InternalError, "the keys of documents of %s are too long to be moved", m.row.NS)
	}
	if err != nil {
		return nil, err
	}
	var found []bson.RawValue
	for len(batch) > 0 {
		e, n := wire.FirstElem(batch)
		if n == 0 {
			return nil, wire.ErrMalformed
		}
		is, err := m.within(e.Value)
		if err != nil {
			return nil, err
		}
		if is {
			found = append(found, bson.Raw(e.Value).Lookup("_id"))
		}
		batch = batch[n:]
	}
	return found, nil
}

// concerned leaves of changed documents those of which donor or recipient has something that
// moves: most changes may be elsewhere in the collection.
func (c *copier) concerned(ctx context.Context, ids []bson.RawValue) ([]bson.RawValue, error) {
	if c.m.row.Range == nil {
		return ids, nil
	}
	var out []bson.RawValue
	for len(ids) > 0 {
		n, size := 0, 0
		for n < len(ids) && (n == 0 || size+len(ids[n].Value) <= copyBytes) {
			size += len(ids[n].Value)
			n++
		}
		there, err := c.m.idsAt(c.m.at(ctx, c.m.row.From), ids[:n], bson.E{Key: "readConcern", Value: c.snapshot()})
		if err != nil {
			return nil, err
		}
		here, err := c.m.idsAt(c.m.at(ctx, c.m.row.To), ids[:n])
		if err != nil {
			return nil, err
		}
		seen := map[string]bool{}
		for _, id := range slices.Concat(there, here) {
			if name := string(byte(id.Type)) + string(id.Value); !seen[name] {
				seen[name] = true
				out = append(out, id)
			}
		}
		ids = ids[n:]
	}
	return out, nil
}

// at runs plain commands on a shard.
func (m *mover) at(ctx context.Context, shard string) txnRun {
	return func(db string, cmd bson.D) (wire.Doc, error) { return m.r.run(ctx, shard, db, cmd) }
}
