package router

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// The lock of all settings, and what the ids of those begin with that are not shown.
const (
	settingsLock    = "$settings"
	internalSetting = "shardgate."
)

// configUpdate is one statement on a collection of config: the document with this _id gets
// some fields and loses others.
type configUpdate struct {
	id     string
	set    []bson.RawElement
	unset  []string
	upsert bool
}

// UpdateConfig runs an update on config.settings or config.collections, as mongosh's
// helpers and MongoDB's manual have users send it: plain fields set or unset in one document
// that is named by its _id. Such a statement may be repeated without harm, so nothing is
// kept of retryable ones.
func (r *Router) UpdateConfig(ctx context.Context, op *Op, coll string) error {
	if coll != "settings" && coll != "collections" {
		return notYet("writes to config." + coll)
	}
	docs, _, err := statements(op, "updates")
	if err != nil {
		return err
	}
	ordered := true
	if e, ok := op.Lookup("ordered"); ok {
		ordered, _ = e.Bool()
	}
	var w writeResult
	for i := 0; len(docs) > 0; i++ {
		n := binary.LittleEndian.Uint32(docs)
		var done writeResult // which is so only where there is no error
		err := r.updateConfig(ctx, coll, docs[:n], i, &done)
		if mongoerr.CodeOf(err) == mongoerr.FailedToSatisfyReadPreference || errors.Is(err, ErrEvicted) {
			return err
		}
		if err == nil {
			w.take(&done)
		} else {
			w.addError(i, mongoerr.As(err))
			if ordered {
				break
			}
		}
		docs = docs[n:]
	}
	r.replyWrite(op, kindOf([]byte("update")), ordered, &w)
	return nil
}

func (r *Router) updateConfig(ctx context.Context, coll string, stmt wire.Doc, index int, w *writeResult) error {
	u, err := readConfigUpdate(stmt)
	if err != nil {
		return err
	}
	if coll == "collections" {
		return r.updateCollectionRow(ctx, u, w)
	}
	return r.changeSetting(ctx, u.id, func(old bson.Raw) (bson.Raw, error) {
		if old == nil && !u.upsert {
			return nil, nil
		}
		doc := u.applied(old)
		w.n++
		switch {
		case old == nil:
			w.upserted = append(w.upserted, indexed{index: index, elems: bsoncore.AppendStringElement(nil, "_id", u.id)})
		case !slices.Equal(old, doc):
			w.modified++
		}
		return doc, nil
	})
}

// readConfigUpdate reads {q: {_id: …}, u: {$set: …, $unset: …}}.
func readConfigUpdate(stmt wire.Doc) (*configUpdate, error) {
	refused := notYet("an update of config but of plain fields, by $set or $unset, in a document named by its _id")
	if err := kindOf([]byte("update")).check(stmt); err != nil {
		return nil, err
	}
	it := stmt.Iter()
	var e wire.Elem
	for it.Next(&e) {
		switch string(e.Name) {
		case "q", "u", "upsert", "multi": // it is one document in any case
		default:
			return nil, notYet("an update of config with " + string(e.Name))
		}
	}
	u := &configUpdate{upsert: isSet(stmt, "upsert")}
	q, _ := stmt.Lookup("q")
	filter, _ := q.Doc()
	first, _ := filter.First()
	var ok bool
	if u.id, ok = first.Str(); !ok || string(first.Name) != "_id" || u.id == "" || len(filter) != len(first.Raw)+len(emptyDoc) {
		return nil, refused
	}
	mods, _ := stmt.Lookup("u")
	d, ok := mods.Doc()
	if !ok {
		return nil, refused
	}
	ops, err := bson.Raw(d).Elements()
	if err != nil || len(ops) == 0 {
		return nil, refused
	}
	for _, o := range ops {
		fields, ok := o.Value().DocumentOK()
		if !ok || o.Key() != "$set" && o.Key() != "$unset" {
			return nil, refused
		}
		elems, err := fields.Elements()
		if err != nil {
			return nil, err
		}
		for _, f := range elems {
			if name := f.Key(); name == "_id" || strings.ContainsAny(name, ".$") {
				return nil, refused
			}
			if u.touches(f.Key()) {
				return nil, mongoerr.Newf(mongoerr.ConflictingUpdateOperators, "Updating the path '%s' would create a conflict at '%s'", f.Key(), f.Key())
			}
			if o.Key() == "$set" {
				u.set = append(u.set, f)
			} else {
				u.unset = append(u.unset, f.Key())
			}
		}
	}
	return u, nil
}

// touches reports whether the update has an operation on a field already.
func (u *configUpdate) touches(field string) bool {
	return slices.Contains(u.unset, field) || slices.ContainsFunc(u.set, func(s bson.RawElement) bool { return s.Key() == field })
}

// applied is a document after the update; old may be nil.
func (u *configUpdate) applied(old bson.Raw) bson.Raw {
	at, out := bsoncore.AppendDocumentStart(nil)
	if old == nil {
		out = bsoncore.AppendStringElement(out, "_id", u.id)
	}
	left := slices.Clone(u.set)
	elems, _ := old.Elements() // it is the catalog's
	for _, f := range elems {
		if i := slices.IndexFunc(left, func(s bson.RawElement) bool { return s.Key() == f.Key() }); i >= 0 {
			out = append(out, left[i]...)
			left = slices.Delete(left, i, i+1)
		} else if !slices.Contains(u.unset, f.Key()) {
			out = append(out, f...)
		}
	}
	for _, f := range left {
		out = append(out, f...)
	}
	out, _ = bsoncore.AppendDocumentEnd(out, at)
	return bson.Raw(out)
}

// updateCollectionRow sets what users may set of a collection: noBalance.
func (r *Router) updateCollectionRow(ctx context.Context, u *configUpdate, w *writeResult) error {
	if len(u.set) != 1 || len(u.unset) > 0 || u.set[0].Key() != "noBalance" {
		return notYet("an update of config.collections but of noBalance")
	}
	no, ok := u.set[0].Value().BooleanOK()
	if !ok {
		return mongoerr.New(mongoerr.DocumentValidationFailure, "Document failed validation: noBalance must be a boolean")
	}
	if u.upsert && r.snap.Load().Entries[u.id] == nil {
		return notYet("an insert into config.collections")
	}
	return r.withLock(ctx, u.id, "config.collections", func(l catalog.Lock) error {
		e := r.snap.Load().Entries[u.id]
		if e == nil || e.Table == nil {
			return nil
		}
		w.n++
		if e.Coll.NoBalance == no {
			return nil
		}
		row := *e.Coll
		row.NoBalance = no
		w.modified++
		return r.apply(context.WithoutCancel(ctx), catalog.Change{Locks: []catalog.Lock{l}, Rows: []catalog.Collection{row}})
	})
}

// changeSetting replaces a document of config.settings by what change makes of it; nil and
// what is the same leave it. old is nil where there is none.
func (r *Router) changeSetting(ctx context.Context, id string, change func(old bson.Raw) (bson.Raw, error)) error {
	if strings.HasPrefix(id, internalSetting) {
		return mongoerr.Newf(mongoerr.IllegalOperation, "the setting %s is the cluster's own", id)
	}
	return r.withLock(ctx, settingsLock, "config.settings", func(l catalog.Lock) error {
		old := r.snap.Load().Settings[id].Doc
		doc, err := change(old)
		if doc == nil || err != nil || slices.Equal(old, doc) {
			return err
		}
		if why := badSetting(id, doc); why != "" {
			return mongoerr.New(mongoerr.DocumentValidationFailure, "Document failed validation: "+why)
		}
		return r.apply(context.WithoutCancel(ctx), catalog.Change{Locks: []catalog.Lock{l}, Settings: []catalog.Setting{{ID: id, Doc: doc}}})
	})
}

// badSetting says what is wrong with a document of config.settings.
func badSetting(id string, doc bson.Raw) string {
	boolean := func(name string) string {
		v, err := doc.LookupErr(name)
		if _, ok := v.BooleanOK(); err == nil && !ok {
			return name + " must be a boolean"
		}
		return ""
	}
	switch id {
	case "chunksize":
		if n, ok := doc.Lookup("value").AsInt64OK(); !ok || n < 1 || n > 1024 {
			return "the chunk size must be between 1 and 1024 MB"
		}
	case "balancer":
		mode, err := doc.LookupErr("mode")
		if s, _ := mode.StringValueOK(); err == nil && !slices.Contains([]string{"full", "off", "autoSplitOnly"}, s) {
			return "mode must be full or off"
		}
		if w, err := doc.LookupErr("activeWindow"); err == nil && !isWindow(w) {
			return "activeWindow must be an object with start and stop, as HH:MM"
		}
		return boolean("stopped")
	case "automerge", "autosplit":
		return boolean("enabled")
	}
	return ""
}

// isWindow reports whether v says when the balancer may work, as {start: "HH:MM", stop: "HH:MM"}.
func isWindow(v bson.RawValue) bool {
	doc, ok := v.DocumentOK()
	if !ok {
		return false
	}
	for _, name := range []string{"start", "stop"} {
		s, ok := doc.Lookup(name).StringValueOK()
		if _, err := time.Parse("15:04", s); !ok || err != nil {
			return false
		}
	}
	return true
}
