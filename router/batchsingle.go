package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
)

// batchSingle is a single write that is a statement of an update or delete command.
type batchSingle struct {
	r     *Router
	batch *batch
	i     int
	doc   wire.Doc // the client's statement
	res   *writeResult
}

// singleOf makes the single write of statement i of a batch.
func (r *Router) singleOf(op *Op, b *batch, i int, res *writeResult) *single {
	st := &b.stmts[i]
	doc := wire.Doc(st.doc)
	w := &single{
		entry: b.entry, coll: collOf(b.entry.Coll.NS), shards: st.shards, stmt: clientStmtID(op, i), rekeys: st.way == wayRekey,
		do: &batchSingle{r: r, batch: b, i: i, doc: doc, res: res},
	}
	q, _ := doc.Lookup("q")
	w.filter, _ = q.Doc()
	w.by.near = target.HasNear(bson.Raw(w.filter))
	for _, name := range []string{"collation", "hint"} {
		w.meaning = appendField(w.meaning, doc, name)
	}
	w.meaning = appendField(w.meaning, op.Cmd.Body, "let")
	if b.kind.update && isSet(doc, "upsert") {
		w.upsert = []byte{}
		if u, ok := doc.Lookup("u"); ok {
			w.upsert = append(bsoncore.AppendHeader(w.upsert, bsoncore.Type(u.Type), "update"), u.Value...)
		}
		for _, name := range []string{"arrayFilters", "collation"} {
			w.upsert = appendField(w.upsert, doc, name)
		}
		w.upsert = appendField(w.upsert, op.Cmd.Body, "let")
	}
	return w
}

func (k *batchSingle) write(ctx context.Context, op *Op, w *single, shard string, filter []byte) (int64, error) {
	st := &k.batch.stmts[k.i]
	st.doc, st.exact = withFilter(k.doc, filter), true
	defer func() { st.doc, st.exact = k.doc, false }()
	var sub writeResult
	err := k.r.writeRound(ctx, op, k.batch, []child{{shard: shard, index: []int{k.i}}}, &sub)
	if err != nil || sub.n == 0 && len(sub.errors) == 0 {
		return 0, err
	}
	// The statement does not upsert: an upserted document is the mark of an attempt that
	// others have closed. A delete that meets the mark does not show it.
	if len(sub.upserted) > 0 {
		return 0, nil
	}
	if !k.batch.kind.update && len(sub.retried) > 0 {
		if closed, err := k.r.isClosed(ctx, op, w, shard); closed || err != nil {
			return 0, err
		}
	}
	k.res.take(&sub)
	return 1, nil
}

func (k *batchSingle) command(op *Op, w *single, filter []byte) []byte {
	kind := k.batch.kind
	out := bsoncore.AppendStringElement(nil, kind.name, w.coll)
	one := bsoncore.NewArrayBuilder().AppendDocument(withFilter(k.doc, filter)).Build()
	out = bsoncore.AppendArrayElement(out, kind.field, one)
	for _, name := range []string{"let", "bypassDocumentValidation", "comment"} {
		out = appendField(out, op.Cmd.Body, name)
	}
	return out
}

func (k *batchSingle) took(_ *Op, shard string, reply wire.Doc) error {
	return k.res.add(&sent{shard: shard, body: reply}, []int{k.i})
}

func (k *batchSingle) inserted(_ *Op, c choice, unconfirmed wire.Elem) {
	id := c.Insert.Lookup("_id")
	k.res.n++
	elem := append(bsoncore.AppendHeader(nil, bsoncore.Type(id.Type), "_id"), id.Value...)
	k.res.upserted = append(k.res.upserted, indexed{index: k.i, elems: elem})
	if wc, ok := unconfirmed.Doc(); ok {
		k.res.wcErrors = append(k.res.wcErrors, wcError{shard: c.Shard, doc: append(wire.Doc(nil), wc...)})
	}
}

func (k *batchSingle) nothing(*Op) {}

// withFilter is an update or delete statement with another filter and without upsert.
func withFilter(stmt wire.Doc, filter []byte) []byte {
	at, b := wire.AppendDocStart(make([]byte, 0, len(stmt)+len(filter)))
	b = bsoncore.AppendDocumentElement(b, "q", filter)
	it := stmt.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if name := string(e.Name); name != "q" && name != "upsert" {
			b = append(b, e.Raw...)
		}
	}
	return wire.AppendDocEnd(b, at)
}
