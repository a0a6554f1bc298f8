package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/configdb"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// logLimit is how many of the newest entries of a log config shows.
const logLimit = 10_000

// configDocuments returns the documents of config.<coll>, made from the catalog; none
// for a collection that config does not have.
func configDocuments(ctx context.Context, req *request, coll string) ([]bson.Raw, error) {
	s := req.h.router.Latest(ctx)
	view := configdb.Snapshot{}
	for _, sh := range s.Shards {
		view.Shards = append(view.Shards, sh)
	}
	for _, d := range s.Databases {
		view.Databases = append(view.Databases, d)
	}
	for _, set := range s.Settings {
		view.Settings = append(view.Settings, set)
	}
	view.ClusterID = configdb.ClusterID(view.Settings)
	for _, e := range s.Entries {
		c := catalog.CollectionChunks{Collection: *e.Coll}
		if e.Table != nil {
			for i := range e.Table.Len() {
				c.Chunks = append(c.Chunks, *e.Table.Chunk(i))
			}
		}
		view.Collections = append(view.Collections, c)
	}
	var err error
	switch coll {
	case "mongos":
		view.Routers, err = req.h.router.Store().Routers(ctx)
	case "changelog":
		view.Changes, err = req.h.router.Store().Log(ctx, false, logLimit)
	case "actionlog":
		view.Actions, err = req.h.router.Store().Log(ctx, true, logLimit)
	}
	if err != nil {
		return nil, mongoerr.Wrap(mongoerr.FailedToSatisfyReadPreference, err, "the catalog (PostgreSQL) cannot be reached")
	}
	docs, _ := configdb.Documents(coll, view)
	return docs, nil
}

func configCollection(req *request) (string, error) {
	coll, ok := req.Cmd.First.Str()
	if !ok {
		return "", mongoerr.Newf(mongoerr.InvalidNamespace, "collection name has invalid type %s", req.Cmd.First.Type)
	}
	return coll, nil
}

// findStages says a find as a pipeline.
func findStages(req *request) []wire.Doc {
	var stages []wire.Doc
	for _, o := range []struct{ option, stage string }{
		{"filter", "$match"}, {"query", "$match"}, {"sort", "$sort"}, {"skip", "$skip"}, {"limit", "$limit"}, {"projection", "$project"},
	} {
		e, ok := req.Lookup(o.option)
		if !ok {
			continue
		}
		if d, isDoc := e.Doc(); isDoc && len(d) <= 5 {
			continue
		}
		if n, isNum := e.Int64(); isNum && n == 0 {
			continue
		}
		if o.stage == "$sort" {
			if d, _ := e.Doc(); hasNatural(d) {
				continue
			}
		}
		stages = append(stages, router.StageOf(o.stage, e))
	}
	return stages
}

func hasNatural(d wire.Doc) bool {
	_, ok := d.Lookup("$natural")
	return ok
}

func configFind(ctx context.Context, req *request) error {
	coll, err := configCollection(req)
	if err != nil {
		return err
	}
	docs, err := configDocuments(ctx, req, coll)
	if err != nil {
		return err
	}
	return req.h.router.Virtual(ctx, req.Op, configDB+"."+coll, docs, findStages(req), nil)
}

func configAggregate(ctx context.Context, req *request) error {
	coll, err := configCollection(req)
	if err != nil {
		return err
	}
	docs, err := configDocuments(ctx, req, coll)
	if err != nil {
		return err
	}
	stages, err := req.stages()
	if err != nil {
		return err
	}
	return req.h.router.Virtual(ctx, req.Op, configDB+"."+coll, docs, stages, nil)
}

// stages returns the pipeline's stages.
func (req *request) stages() ([]wire.Doc, error) {
	e, ok := req.Lookup("pipeline")
	if !ok || e.Type != bson.TypeArray {
		return nil, mongoerr.New(mongoerr.TypeMismatch, "'pipeline' option must be specified as an array")
	}
	var stages []wire.Doc
	it := wire.Doc(e.Value).Iter()
	var s wire.Elem
	for it.Next(&s) {
		d, ok := s.Doc()
		if !ok {
			return nil, mongoerr.New(mongoerr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		stages = append(stages, d)
	}
	return stages, it.Err()
}

func configCount(ctx context.Context, req *request) error {
	coll, err := configCollection(req)
	if err != nil {
		return err
	}
	docs, err := configDocuments(ctx, req, coll)
	if err != nil {
		return err
	}
	n := len(docs)
	if stages := findStages(req); len(stages) > 0 {
		if docs, err = req.h.router.VirtualDocs(ctx, req.Op, docs, append(stages, countStage()), nil); err != nil {
			return err
		}
		n = 0
		if len(docs) == 1 {
			n64, _ := docs[0].Lookup("n").AsInt64OK()
			n = int(n64)
		}
	}
	req.Reply.Int32("n", int32(n))
	req.Reply.OK()
	return nil
}

func countStage() wire.Doc {
	return wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$count", "n")))
}

func configDistinct(ctx context.Context, req *request) error {
	coll, err := configCollection(req)
	if err != nil {
		return err
	}
	e, ok := req.Lookup("key")
	key, isStr := e.Str()
	if !ok || !isStr {
		return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'distinct.key' must be a string")
	}
	docs, err := configDocuments(ctx, req, coll)
	if err != nil {
		return err
	}
	field := "$" + key
	group := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "_id", field))
	sort := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1))
	stages := append(findStages(req),
		wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$unwind", field))),
		wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$group", group))),
		wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$sort", sort))))
	if docs, err = req.h.router.VirtualDocs(ctx, req.Op, docs, stages, nil); err != nil {
		return err
	}
	values := bsoncore.NewArrayBuilder()
	for _, d := range docs {
		v := d.Lookup("_id")
		values.AppendValue(bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
	}
	req.Reply.Elems = bsoncore.AppendArrayElement(req.Reply.Elems, "values", values.Build())
	req.Reply.OK()
	return nil
}

// aggregateDatabase runs aggregate: 1: pipelines that begin with documents of their
// own run on any shard; others report on the server and are not there yet.
func aggregateDatabase(ctx context.Context, req *request) error {
	stages, err := req.stages()
	if err != nil {
		return err
	}
	first := wire.Elem{}
	if len(stages) > 0 {
		first, _ = stages[0].First()
	}
	switch string(first.Name) {
	case "$documents":
		return req.h.router.OnAnyShard(ctx, req.Op)
	case "$currentOp", "$changeStream", "$listLocalSessions", "$shardedDataDistribution", "$listSessions":
		return mongoerr.Newf(mongoerr.NotImplemented, "shardgate does not do %s yet", first.Name)
	}
	return mongoerr.Newf(mongoerr.InvalidNamespace, "{aggregate: 1} is not valid for '%s'; a collection is required.", first.Name)
}
