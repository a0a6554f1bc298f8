package commands

import (
	"context"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/configdb"
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
	if _, ok := req.Lookup("viewOn"); ok {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not do views yet")
	}
	if e, ok := req.Lookup("temp"); ok {
		if v, _ := e.Bool(); v {
			return mongoerr.New(mongoerr.InvalidOptions, "'temp' is not allowed through a router")
		}
	}
	if _, ok := req.Lookup("timeseries"); ok {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not do time series collections yet")
	}
	if err := req.h.router.Create(ctx, ns, req.options("autoIndexId"), false); err != nil {
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
	cmd := bson.D{{Key: "createIndexes", Value: req.Cmd.First.RawValue()}, {Key: "indexes", Value: clean}}
	cmd = append(cmd, req.options("indexes", "blocking")...)
	cmd = req.withWriteConcern(cmd)
	replies, err := req.h.router.CreateIndexes(ctx, ns, cmd, indexes)
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
// whole command's (MONGOS.md §1.5).
func (req *request) rawReplies(replies []router.ShardReplies) error {
	at, raw := bsoncore.AppendDocumentStart(nil)
	var failed error
	for _, s := range replies {
		doc := s.Body
		if s.Err != nil && failed == nil {
			failed = s.Err
		}
		if doc == nil {
			e := router.ClientError(req.Op, s.Err)
			doc = wire.Doc(bsoncore.BuildDocument(nil, e.AppendElements(nil)))
		}
		raw = bsoncore.AppendDocumentElement(raw, s.Host, stripped(doc))
	}
	raw, _ = bsoncore.AppendDocumentEnd(raw, at) //nolint:errcheck // at is a start
	elem := bsoncore.AppendDocumentElement(nil, "raw", raw)
	if failed != nil {
		e := router.ClientError(req.Op, failed)
		e.Extra = append(e.Extra, elem...)
		return e
	}
	req.Reply.Elems = append(req.Reply.Elems, elem...)
	req.Reply.OK()
	return nil
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
	replies, err := req.h.router.DropIndexes(ctx, ns, cmd, func(name string, key bson.Raw) bool { return drops(index, name, key) })
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
		return string(arg.Value) == string(key)
	}
}

func listIndexes(ctx context.Context, req *request) error {
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	if string(req.Cmd.DB) == configDB {
		if coll, _ := req.Cmd.First.Str(); slices.Contains(configdb.Names(), coll) {
			return req.h.router.Virtual(ctx, req.Op, ns, []bson.Raw{idIndex()}, nil)
		}
	}
	return req.h.router.ListIndexes(ctx, req.Op)
}

func idIndex() bson.Raw {
	key := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1))
	b := bsoncore.AppendInt32Element(nil, "v", 2)
	b = bsoncore.AppendDocumentElement(b, "key", key)
	b = bsoncore.AppendStringElement(b, "name", "_id_")
	return bson.Raw(bsoncore.BuildDocument(nil, b))
}

// listCollections answers from the catalog: it knows every namespace of the cluster.
func listCollections(ctx context.Context, req *request) error {
	db := string(req.Cmd.DB)
	nameOnly := false
	if e, ok := req.Lookup("nameOnly"); ok {
		nameOnly, _ = e.Bool()
	}
	var docs []bson.Raw
	if db == configDB {
		for _, name := range configdb.Names() {
			docs = append(docs, collectionDoc(name, &catalog.Collection{Kind: catalog.KindUnsharded}))
		}
	}
	s := req.h.router.Snapshot()
	var names []string
	for ns := range s.Entries {
		if strings.HasPrefix(ns, db+".") {
			names = append(names, ns)
		}
	}
	sort.Strings(names)
	for _, ns := range names {
		docs = append(docs, collectionDoc(ns[len(db)+1:], s.Entries[ns].Coll))
	}
	var stages []wire.Doc
	if e, ok := req.Lookup("filter"); ok {
		if d, isDoc := e.Doc(); !isDoc {
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'listCollections.filter' must be an object")
		} else if len(d) > 5 {
			stages = append(stages, stage("$match", e))
		}
	}
	if nameOnly {
		p := bsoncore.AppendInt32Element(nil, "name", 1)
		p = bsoncore.AppendInt32Element(p, "type", 1)
		stages = append(stages, wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$project", bsoncore.BuildDocument(nil, p)))))
	}
	return req.h.router.Virtual(ctx, req.Op, db+".$cmd.listCollections", docs, stages)
}

func collectionDoc(name string, c *catalog.Collection) bson.Raw {
	b := bsoncore.AppendStringElement(nil, "name", name)
	kind := "collection"
	if c.Kind == catalog.KindView {
		kind = "view"
	}
	b = bsoncore.AppendStringElement(b, "type", kind)
	options := bsoncore.BuildDocument(nil, nil)
	if len(c.Options) > 0 {
		options = bsoncore.Document(c.Options)
	}
	b = bsoncore.AppendDocumentElement(b, "options", options)
	info := bsoncore.AppendBooleanElement(nil, "readOnly", c.Kind == catalog.KindView)
	if c.Kind != catalog.KindView {
		info = bsoncore.AppendBinaryElement(info, "uuid", 4, c.UUID[:])
	}
	b = bsoncore.AppendDocumentElement(b, "info", bsoncore.BuildDocument(nil, info))
	if c.Kind != catalog.KindView {
		b = bsoncore.AppendDocumentElement(b, "idIndex", bsoncore.Document(idIndex()))
	}
	return bson.Raw(bsoncore.BuildDocument(nil, b))
}

// listDatabases adds up what the shards hold of each database that the catalog knows;
// a shard that cannot be reached counts nothing.
func listDatabases(ctx context.Context, req *request) error {
	sizes := req.h.router.DatabaseSizes(ctx, req.Op)
	nameOnly := false
	if e, ok := req.Lookup("nameOnly"); ok {
		nameOnly, _ = e.Bool()
	}
	names := []string{"admin", configDB}
	for name := range req.h.router.Snapshot().Databases {
		names = append(names, name)
	}
	sort.Strings(names)
	docs, total := databaseDocs(names, sizes, nameOnly)
	if e, ok := req.Lookup("filter"); ok && len(e.Value) > 5 {
		var err error
		if docs, err = req.h.router.VirtualDocs(ctx, req.Op, docs, []wire.Doc{stage("$match", e)}); err != nil {
			return err
		}
	}
	at, b := bsoncore.AppendArrayElementStart(req.Reply.Elems, "databases")
	for i, d := range docs {
		b = bsoncore.AppendDocumentElement(b, strconv.Itoa(i), bsoncore.Document(d))
	}
	req.Reply.Elems, _ = bsoncore.AppendArrayEnd(b, at) //nolint:errcheck // at is a start
	if !nameOnly {
		req.Reply.Int64("totalSize", total)
		req.Reply.Int64("totalSizeMb", total>>20)
	}
	req.Reply.OK()
	return nil
}

func databaseDocs(names []string, sizes map[string]map[string]int64, nameOnly bool) (docs []bson.Raw, total int64) {
	for _, name := range names {
		b := bsoncore.AppendStringElement(nil, "name", name)
		if !nameOnly {
			var sum int64
			var per []byte
			shards := make([]string, 0, len(sizes[name]))
			for shard := range sizes[name] {
				shards = append(shards, shard)
			}
			sort.Strings(shards)
			for _, shard := range shards {
				sum += sizes[name][shard]
				per = bsoncore.AppendInt64Element(per, shard, sizes[name][shard])
			}
			total += sum
			b = bsoncore.AppendInt64Element(b, "sizeOnDisk", sum)
			b = bsoncore.AppendBooleanElement(b, "empty", sum == 0)
			b = bsoncore.AppendDocumentElement(b, "shards", bsoncore.BuildDocument(nil, per))
		}
		docs = append(docs, bson.Raw(bsoncore.BuildDocument(nil, b)))
	}
	return docs, total
}
