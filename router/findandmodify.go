package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/router/target"
	"github.com/shardgate/shardgate/wire"
)

// FindAndModify runs findAndModify: on the shard that its query pins, or as a single
// write.
func (r *Router) FindAndModify(ctx context.Context, op *Op) error {
	if err := readStmtIDs(op, 1); err != nil {
		return err
	}
	s, err := r.admit(ctx, op)
	if err != nil {
		return err
	}
	upsert := isSet(op.Cmd.Body, "upsert")
	if s.entry == nil {
		if !upsert {
			if err := r.refusedOnNothing(ctx, op); err != nil {
				return err
			}
			noneModified(op)
			return nil
		}
		if s, err = r.createAndAdmit(ctx, op, s.ns); err != nil {
			return err
		}
	}
	defer func() { r.finish(ctx, op, s.entry) }()
	a, refused := targetFindAndModify(op, s.entry, upsert)
	one := []statement{{aim: a}}
	ran, again, err := r.ranBefore(ctx, op, s.entry, 1, one)
	if err == nil && again {
		err = r.sendBack(ctx, op, s.entry, one, ran, false)
		a = one[0].aim
	}
	if err == nil && !(again && a.exact) {
		err = refused // unless it ran when the collection had another key
	}
	if err != nil {
		return err
	}
	s.shards, op.Trace.Why = a.shards, a.why
	if modifiesSingly(op, s.entry, &a, upsert) {
		if op.Txn.InTxn {
			return errSingleInTxn
		}
		a.way = waySingle
	}
	if a.way != wayDirect {
		return r.modifyOne(ctx, op, &s, upsert, a.way)
	}
	s.exact = a.exact || upsert // which names the whole key
	return r.modifyThere(ctx, op, &s)
}

// modifyThere runs a findAndModify on the one shard that its query needs.
func (r *Router) modifyThere(ctx context.Context, op *Op, s *scope) error {
	p := patch{}
	if err := r.join(op, s.shards, &p); err != nil {
		return err
	}
	if !s.entry.hasUnowned(s.shards[0]) {
		_, _, err := r.forward(ctx, op, s.shards[0], &p)
		return err
	}
	return r.modifyOwned(ctx, op, s, p)
}

// modifyOwned is modifyThere on a shard that has more than it owns.
func (r *Router) modifyOwned(ctx context.Context, op *Op, s *scope, p patch) error {
	q, err := filterOf(op, "query")
	if err != nil {
		return err
	}
	own, err := s.narrow(&p, "query", q)
	if err != nil {
		return err
	}
	return r.unblocked(ctx, op, s.entry, s.shards[0], newcomer{doc: q}, func() error {
		_, _, err := r.forward(ctx, op, s.shards[0], own.at(0))
		return err
	})
}

// noneModified answers that there was no document.
func noneModified(op *Op) {
	last := bsoncore.AppendInt32Element(nil, "n", 0)
	if !isSet(op.Cmd.Body, "remove") {
		last = bsoncore.AppendBooleanElement(last, "updatedExisting", false)
	}
	op.Reply.Doc("lastErrorObject", bsoncore.BuildDocument(nil, last))
	op.Reply.Elems = bsoncore.AppendNullElement(op.Reply.Elems, "value")
	op.Reply.OK()
}

func targetFindAndModify(op *Op, e *Entry, upsert bool) (a aim, err error) {
	if !e.Sharded() {
		return aim{shards: e.Table.Shards()}, nil
	}
	q, err := filterOf(op, "query")
	if err != nil {
		return a, err
	}
	collated := Collated(op, e)
	if mods, ok := op.Lookup("update"); ok {
		u := target.Update{Filter: q, Collated: collated, Mods: mods.RawValue(), Upsert: upsert}
		a, err = e.targetMods(u, false)
	} else {
		a, err = e.targetWrite(q, collated, false, false)
	}
	if err == nil && a.way != wayDirect && op.Txn.InTxn {
		err = errSingleInTxn
	}
	return a, err
}

// modifyOne runs a findAndModify that must first look for its document.
func (r *Router) modifyOne(ctx context.Context, op *Op, s *scope, upsert bool, how way) error {
	q, err := filterOf(op, "query")
	if err != nil {
		return err
	}
	w := &single{entry: s.entry, coll: collOf(s.ns), filter: wire.Doc(q), shards: s.shards, stmt: clientStmtID(op, 0)}
	w.by.near = target.HasNear(q)
	if e, ok := op.Lookup("sort"); ok {
		w.by.sort, _ = e.Doc()
	}
	for _, name := range []string{"collation", "hint", "let"} {
		w.meaning = appendField(w.meaning, op.Cmd.Body, name)
	}
	if upsert && !isSet(op.Cmd.Body, "remove") {
		w.upsert = []byte{}
		for _, name := range []string{"update", "arrayFilters", "collation", "let"} {
			w.upsert = appendField(w.upsert, op.Cmd.Body, name)
		}
	}
	shows := isSet(op.Cmd.Body, "new")
	if e, ok := op.Lookup("fields"); ok && shows {
		w.projects = e
	}
	w.rekeys = how == wayRekey
	w.do = &modifySingle{r: r, shows: shows}
	return r.writeSingle(ctx, op, w)
}

// modifySingle is a single write that is a findAndModify.
type modifySingle struct {
	r     *Router
	shows bool // the document as it is afterwards
}

// write makes the shard's reply the client's, unless there was no document.
func (k *modifySingle) write(ctx context.Context, op *Op, _ *single, shard string, filter []byte) (int64, error) {
	p := &patch{skip: []string{"query", "upsert"}, extra: bsoncore.AppendDocumentElement(nil, "query", filter)}
	buf := op.Buffers.Get(len(op.Cmd.Body) + len(filter) + 512)
	defer op.Buffers.Put(buf)
	*buf = k.r.appendMessage(*buf, op, p)
	s, err := k.r.exchange(ctx, op, shard, &backend.Request{Msg: *buf})
	if err != nil {
		op.Buffers.Put(s.buf)
		return 0, err
	}
	if s.info.OK && countOf(s.body) == 0 || isOtherKind(s.info.Code) {
		k.r.release(op, &s)
		return 0, nil
	}
	_, _, err = k.r.adopt(op, &s)
	return 1, err
}

func (k *modifySingle) command(op *Op, w *single, filter []byte) []byte {
	b := bsoncore.AppendStringElement(nil, "findAndModify", w.coll)
	b = bsoncore.AppendDocumentElement(b, "query", filter)
	for _, name := range []string{"update", "sort", "new", "fields", "arrayFilters", "collation", "hint", "let", "bypassDocumentValidation", "comment"} {
		b = appendField(b, op.Cmd.Body, name)
	}
	return b
}

func (k *modifySingle) took(op *Op, _ string, reply wire.Doc) error {
	for _, name := range []string{"lastErrorObject", "value", "writeConcernError"} {
		op.Reply.Elems = appendField(op.Reply.Elems, reply, name)
	}
	op.Reply.OK()
	return nil
}

func (k *modifySingle) nothing(op *Op) { noneModified(op) }

func (k *modifySingle) inserted(op *Op, c choice, unconfirmed wire.Elem) {
	id := c.Insert.Lookup("_id")
	last := bsoncore.AppendInt32Element(nil, "n", 1)
	last = bsoncore.AppendBooleanElement(last, "updatedExisting", false)
	last = append(bsoncore.AppendHeader(last, bsoncore.Type(id.Type), "upserted"), id.Value...)
	op.Reply.Doc("lastErrorObject", bsoncore.BuildDocument(nil, last))
	switch {
	case !k.shows:
		op.Reply.Elems = bsoncore.AppendNullElement(op.Reply.Elems, "value")
	case c.Value != nil:
		op.Reply.Doc("value", c.Value)
	default:
		op.Reply.Doc("value", c.Insert)
	}
	op.Reply.OK()
	op.Reply.Elems = append(op.Reply.Elems, unconfirmed.Raw...)
}
