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
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func listIndexes(ctx context.Context, req *request) error {
	ns, err := req.namespace()
	if err != nil {
		return err
	}
	if string(req.Cmd.DB) == configDB {
		if coll, _ := req.Cmd.First.Str(); slices.Contains(configdb.Names(), coll) {
			return req.h.router.Virtual(ctx, req.Op, ns, []bson.Raw{idIndex()}, nil, nil)
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
	s := req.h.router.Latest(ctx)
	var names []string
	for ns := range s.Entries {
		if strings.HasPrefix(ns, db+".") {
			names = append(names, ns)
		}
	}
	sort.Strings(names)
	for _, ns := range names {
		c := s.Entries[ns].Coll
		docs = append(docs, collectionDoc(ns[len(db)+1:], c))
		if series(c) {
			doc, err := bucketsDoc(ns[len(db)+1:], c)
			if err != nil {
				return err
			}
			docs = append(docs, doc)
		}
	}
	var stages []wire.Doc
	if e, ok := req.Lookup("filter"); ok {
		if d, isDoc := e.Doc(); !isDoc {
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'listCollections.filter' must be an object")
		} else if len(d) > 5 {
			stages = append(stages, matchStage(e))
		}
	}
	if nameOnly {
		p := bsoncore.AppendInt32Element(nil, "name", 1)
		p = bsoncore.AppendInt32Element(p, "type", 1)
		stages = append(stages, wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$project", bsoncore.BuildDocument(nil, p)))))
	}
	return req.h.router.Virtual(ctx, req.Op, db+".$cmd.listCollections", docs, stages, nil)
}

func collectionDoc(name string, c *catalog.Collection) bson.Raw {
	b := bsoncore.AppendStringElement(nil, "name", name)
	kind := "collection"
	switch {
	case c.Kind == catalog.KindView:
		kind = "view"
	case series(c):
		kind = "timeseries"
	}
	b = bsoncore.AppendStringElement(b, "type", kind)
	options := bsoncore.BuildDocument(nil, nil)
	if len(c.Options) > 0 {
		options = bsoncore.Document(c.Options)
	}
	b = bsoncore.AppendDocumentElement(b, "options", options)
	info := bsoncore.AppendBooleanElement(nil, "readOnly", c.Kind == catalog.KindView)
	if kind == "collection" {
		info = bsoncore.AppendBinaryElement(info, "uuid", 4, c.UUID[:])
	}
	b = bsoncore.AppendDocumentElement(b, "info", bsoncore.BuildDocument(nil, info))
	if kind == "collection" {
		b = bsoncore.AppendDocumentElement(b, "idIndex", bsoncore.Document(idIndex()))
	}
	return bson.Raw(bsoncore.BuildDocument(nil, b))
}

// series reports whether a collection is a time series.
func series(c *catalog.Collection) bool {
	_, err := c.Options.LookupErr("timeseries")
	return c.Kind == catalog.KindUnsharded && err == nil
}

// bucketsDoc is what listCollections says of a time series collection's buckets: their options
// are the series' and those that a mongod gives all buckets.
func bucketsDoc(name string, c *catalog.Collection) (bson.Raw, error) {
	field, _ := c.Options.Lookup("timeseries", "timeField").StringValueOK()
	bound := bson.D{
		{Key: "bsonType", Value: "object"},
		{Key: "required", Value: bson.A{field}},
		{Key: "properties", Value: bson.D{{Key: field, Value: bson.D{{Key: "bsonType", Value: "date"}}}}},
	}
	control := bson.D{
		{Key: "bsonType", Value: "object"},
		{Key: "required", Value: bson.A{"version", "min", "max"}},
		{Key: "properties", Value: bson.D{
			{Key: "version", Value: bson.D{{Key: "bsonType", Value: "number"}}},
			{Key: "min", Value: bound},
			{Key: "max", Value: bound},
			{Key: "closed", Value: bson.D{{Key: "bsonType", Value: "bool"}}},
		}},
	}
	validator := bson.D{{Key: "$jsonSchema", Value: bson.D{
		{Key: "bsonType", Value: "object"},
		{Key: "required", Value: bson.A{"_id", "control", "data"}},
		{Key: "properties", Value: bson.D{
			{Key: "_id", Value: bson.D{{Key: "bsonType", Value: "objectId"}}},
			{Key: "control", Value: control},
			{Key: "data", Value: bson.D{{Key: "bsonType", Value: "object"}}},
			{Key: "meta", Value: bson.D{}},
		}},
		{Key: "additionalProperties", Value: false},
	}}}
	var options bson.D
	add := func(names ...string) {
		for _, n := range names {
			if v, err := c.Options.LookupErr(n); err == nil {
				options = append(options, bson.E{Key: n, Value: v})
			}
		}
	}
	add("storageEngine")
	options = append(options, bson.E{Key: "validator", Value: validator})
	add("collation")
	options = append(options, bson.E{Key: "clusteredIndex", Value: true})
	add("expireAfterSeconds", "timeseries")
	return bson.Marshal(bson.D{
		{Key: "name", Value: "system.buckets." + name},
		{Key: "type", Value: "collection"},
		{Key: "options", Value: options},
		{Key: "info", Value: bson.D{{Key: "readOnly", Value: false}, {Key: "uuid", Value: bson.Binary{Subtype: 4, Data: c.UUID[:]}}}},
	})
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
	for name := range req.h.router.Latest(ctx).Databases {
		names = append(names, name)
	}
	sort.Strings(names)
	docs, total := databaseDocs(names, sizes, nameOnly)
	if e, ok := req.Lookup("filter"); ok && len(e.Value) > 5 {
		var err error
		if docs, err = req.h.router.VirtualDocs(ctx, req.Op, docs, []wire.Doc{matchStage(e)}, nil); err != nil {
			return err
		}
	}
	at, b := bsoncore.AppendArrayElementStart(req.Reply.Elems, "databases")
	for i, d := range docs {
		b = bsoncore.AppendDocumentElement(b, strconv.Itoa(i), bsoncore.Document(d))
	}
	req.Reply.Elems, _ = bsoncore.AppendArrayEnd(b, at)
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

// matchStage makes {$match: filter}.
func matchStage(filter wire.Elem) wire.Doc {
	return wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$match", filter.Value)))
}
