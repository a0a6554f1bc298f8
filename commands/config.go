package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/configdb"
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
		if e.Table != nil && (coll == "chunks" || coll == "placementHistory" || coll == "reshardingOperations") {
			for i := range e.Table.Len() {
				c.Chunks = append(c.Chunks, *e.Table.Chunk(i))
			}
		}
		view.Collections = append(view.Collections, c)
	}
	for _, m := range s.Movements {
		view.Movements = append(view.Movements, m)
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

// configRead runs find, aggregate, count or distinct on a collection of config.
func configRead(ctx context.Context, req *request) error {
	coll, ok := req.Cmd.First.Str()
	if !ok {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "collection name has invalid type %s", req.Cmd.First.Type)
	}
	docs, err := configDocuments(ctx, req, coll)
	if err != nil {
		return err
	}
	if first := req.firstStage(); coll == sessionsColl && string(first.Name) == listSessions {
		stages, err := req.stages()
		if err != nil {
			return err
		}
		return sessionsAggregate(ctx, req, first, stages[1:])
	}
	return req.h.router.VirtualRead(ctx, req.Op, configDB+"."+coll, docs)
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
	case listLocalSessions, listSessions:
		return sessionsAggregate(ctx, req, first, stages[1:])
	case shardedDataDistribution:
		return dataDistribution(ctx, req, first, stages[1:])
	case currentOp:
		return currentOps(ctx, req, first, stages[1:])
	case "$changeStream":
		return mongoerr.Newf(mongoerr.NotImplemented, "shardgate does not do %s yet", first.Name)
	}
	return mongoerr.Newf(mongoerr.InvalidNamespace, "{aggregate: 1} is not valid for '%s'; a collection is required.", first.Name)
}
