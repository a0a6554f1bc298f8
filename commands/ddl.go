package commands

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// namespace returns "db.coll" of a command on a collection.
func (req *request) namespace() (string, error) {
	ns, err := req.NS(nil)
	return string(ns), err
}

// isGeneric reports whether a top-level field belongs to the envelope and not to the
// command.
func isGeneric(name string) bool {
	switch name {
	case "$db", "lsid", "$clusterTime", "$readPreference", "readConcern", "writeConcern", "maxTimeMS",
		"txnNumber", "autocommit", "startTransaction", "apiVersion", "apiStrict", "apiDeprecationErrors",
		"comment", "stmtId", "stmtIds", "collectionUUID":
		return true
	}
	return false
}

// options returns the command's own fields but the first, and without those in skip.
func (req *request) options(skip ...string) bson.D {
	var out bson.D
	it := req.Cmd.Body.Iter()
	var e wire.Elem
	for first := true; it.Next(&e); first = false {
		name := string(e.Name)
		if first || isGeneric(name) || slices.Contains(skip, name) {
			continue
		}
		out = append(out, bson.E{Key: name, Value: e.RawValue()})
	}
	return out
}

// collectionUUID returns the collectionUUID that the client insists on, or nil.
func (req *request) collectionUUID() *router.UUID {
	e, ok := req.Cmd.Arg(wire.ArgCollectionUUID)
	if !ok || e.Type != bson.TypeBinary || len(e.Value) != 21 {
		return nil
	}
	var u router.UUID
	copy(u[:], e.Value[5:])
	return &u
}

func create(ctx context.Context, req *request) error {
	if err := req.writable(); err != nil {
		return err
	}
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	if e, ok := req.Lookup("temp"); ok {
		if v, _ := e.Bool(); v {
			return mongoerr.New(mongoerr.InvalidOptions, "'temp' is not allowed through a router")
		}
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	options := req.options("autoIndexId")
	if _, ok := req.Lookup("viewOn"); ok {
		err = req.h.router.CreateView(ctx, ns, options)
	} else {
		err = req.h.router.Create(ctx, ns, options, false)
	}
	if err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

func drop(ctx context.Context, req *request) error {
	if err := req.notInternal("drop"); err != nil {
		return err
	}
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	exists, err := req.h.router.Drop(ctx, ns, req.collectionUUID())
	if err != nil {
		return err
	}
	if !exists {
		req.Reply.String("info", "database does not exist")
	}
	req.Reply.OK()
	return nil
}

// notInternal refuses DDL on databases that are the cluster's own: 20.
func (req *request) notInternal(what string) error {
	switch string(req.Cmd.DB) {
	case configDB, "admin":
		return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot %s collections in the %s database", what, req.Cmd.DB)
	}
	return nil
}

func dropDatabase(ctx context.Context, req *request) error {
	if n, ok := req.Cmd.First.Int64(); !ok || n != 1 {
		return mongoerr.New(mongoerr.BadValue, "have to pass 1 as db parameter")
	}
	switch db := string(req.Cmd.DB); db {
	case configDB, "admin":
		return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot drop the %s database", db)
	default:
		ctx, cancel := req.Context(ctx)
		defer cancel()
		if err := req.h.router.DropDatabase(ctx, db); err != nil {
			return err
		}
	}
	req.Reply.OK()
	return nil
}

// createIndexes takes what Azure's documentation has users send beside (MONGOD.md
// "Versions and names"): blocking, and enableLargeIndexKeys in an index, are left out.
func createIndexes(ctx context.Context, req *request) error {
	if err := req.writable(); err != nil {
		return err
	}
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	list, ok := req.Lookup("indexes")
	if !ok {
		return mongoerr.New(40414, "BSON field 'createIndexes.indexes' is missing but a required field")
	}
	if list.Type != bson.TypeArray {
		return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'createIndexes.indexes' is the wrong type, expected type 'array'")
	}
	var indexes []bson.Raw
	var clean bson.A
	it := wire.Doc(list.Value).Iter()
	var e wire.Elem
	for it.Next(&e) {
		d, ok := e.Doc()
		if !ok {
			return mongoerr.New(mongoerr.TypeMismatch, "The elements of the 'indexes' array must be objects")
		}
		x := without(d, "enableLargeIndexKeys")
		indexes, clean = append(indexes, x), append(clean, x)
	}
	if len(indexes) == 0 {
		return mongoerr.New(mongoerr.BadValue, "Must specify at least one index to create")
	}
	if it.Err() != nil {
		return it.Err() // what cannot be read to its end is not cut off
	}
	cmd := bson.D{{Key: "createIndexes", Value: req.Cmd.First.RawValue()}, {Key: "indexes", Value: clean}}
	cmd = append(cmd, req.options("indexes", "blocking")...)
	cmd = req.withWriteConcern(cmd)
	ctx, cancel := req.Context(ctx)
	defer cancel()
	replies, err := req.h.router.CreateIndexes(ctx, ns, req.collectionUUID(), cmd, indexes)
	if err != nil {
		return err
	}
	return req.rawReplies(replies)
}

// without copies a document without one field.
func without(d wire.Doc, name string) bson.Raw {
	at, out := wire.AppendDocStart(make([]byte, 0, len(d)))
	it := d.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if string(e.Name) != name {
			out = append(out, e.Raw...)
		}
	}
	return bson.Raw(wire.AppendDocEnd(out, at))
}

func (req *request) withWriteConcern(cmd bson.D) bson.D {
	if e, ok := req.Cmd.Arg(wire.ArgWriteConcern); ok && req.Drop&wire.ArgWriteConcern == 0 {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: e.RawValue()})
	}
	if e, ok := req.Cmd.Arg(wire.ArgComment); ok {
		cmd = append(cmd, bson.E{Key: "comment", Value: e.RawValue()})
	}
	return cmd
}

// rawReplies answers with every shard's reply under raw; the first failure is the
// whole command's, and so is the first write concern error (MONGOS.md §1.5).
func (req *request) rawReplies(replies []router.ShardReplies) error {
	at, raw := bsoncore.AppendDocumentStart(nil)
	var failed error
	var unconfirmed, details []byte
	for _, s := range replies {
		doc := s.Body
		if s.Err != nil && failed == nil {
			failed, details = s.Err, errorDetails(doc)
		}
		if doc == nil {
			e := router.ClientError(req.Op, s.Err)
			doc = wire.Doc(bsoncore.BuildDocument(nil, e.AppendElements(nil)))
		}
		e, _ := doc.Lookup("writeConcernError")
		if wc, ok := e.Doc(); ok && unconfirmed == nil {
			unconfirmed = router.UnconfirmedAt(s.Shard, wc)
		}
		raw = bsoncore.AppendDocumentElement(raw, s.Host, stripped(doc))
	}
	raw, _ = bsoncore.AppendDocumentEnd(raw, at)
	elem := bsoncore.AppendDocumentElement(nil, "raw", raw)
	if unconfirmed != nil {
		elem = bsoncore.AppendDocumentElement(elem, "writeConcernError", unconfirmed)
	}
	if failed != nil {
		e := router.ClientError(req.Op, failed)
		e.Extra = append(append(e.Extra, details...), elem...)
		return e
	}
	req.Reply.Elems = append(req.Reply.Elems, elem...)
	req.Reply.OK()
	return nil
}

// errorDetails returns the elements of an ok:0 reply that only this kind of error has, like keyValue.
func errorDetails(doc wire.Doc) []byte {
	var out []byte
	it := wire.Doc(stripped(doc)).Iter()
	var f wire.Elem
	for it.Next(&f) {
		switch string(f.Name) {
		case "ok", "errmsg", "code", "codeName", "errorLabels", "writeConcernError":
		default:
			out = append(out, f.Raw...)
		}
	}
	return out
}

// stripped is a shard's reply without what is its own affair.
func stripped(d wire.Doc) []byte {
	at, out := wire.AppendDocStart(nil)
	it := d.Iter()
	var e wire.Elem
	for it.Next(&e) {
		switch string(e.Name) {
		case "$clusterTime", "operationTime", "electionId", "opTime", "topologyVersion":
		default:
			out = append(out, e.Raw...)
		}
	}
	return wire.AppendDocEnd(out, at)
}

func dropIndexes(ctx context.Context, req *request) error {
	if err := req.writable(); err != nil {
		return err
	}
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	index, ok := req.Lookup("index")
	if !ok {
		return mongoerr.New(40414, "BSON field 'dropIndexes.index' is missing but a required field")
	}
	cmd := bson.D{{Key: "dropIndexes", Value: req.Cmd.First.RawValue()}}
	cmd = req.withWriteConcern(append(cmd, req.options()...))
	ctx, cancel := req.Context(ctx)
	defer cancel()
	replies, err := req.h.router.DropIndexes(ctx, ns, req.collectionUUID(), cmd, func(name string, key bson.Raw) bool { return drops(index, name, key) })
	if err != nil {
		return err
	}
	return req.rawReplies(replies)
}

// drops reports whether the argument of dropIndexes names an index: "*", a name, a
// list of names, or a key.
func drops(arg wire.Elem, name string, key bson.Raw) bool {
	switch arg.Type {
	case bson.TypeString:
		s, _ := arg.Str()
		return s == "*" || s == name
	case bson.TypeArray:
		it := wire.Doc(arg.Value).Iter()
		var e wire.Elem
		for it.Next(&e) {
			if s, _ := e.Str(); s == name {
				return true
			}
		}
		return false
	default:
		return router.SameIndexKey(bson.Raw(arg.Value), key)
	}
}
