package commands

import (
	"context"
	"crypto/sha256"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// The stages that list sessions, and the collection of config on which the second runs.
const (
	listLocalSessions = "$listLocalSessions"
	listSessions      = "$listSessions"
	sessionsColl      = "system.sessions"
)

// firstStage is the first stage's name and argument, if there is one.
func (req *request) firstStage() wire.Elem {
	var none wire.Elem
	stages, err := req.stages()
	if err != nil || len(stages) == 0 || string(req.Cmd.First.Name) != "aggregate" {
		return none
	}
	first, _ := stages[0].First()
	return first
}

// firstStageFits refuses a stage of ours on a collection that it is not for.
func (req *request) firstStageFits() error {
	switch first := req.firstStage(); string(first.Name) {
	case listLocalSessions, listSessions:
		return req.sessionStage(first)
	case shardedDataDistribution:
		return req.distributionStage(first)
	}
	return nil
}

// sessionStage refuses a stage that lists sessions on a collection that it is not for.
func (req *request) sessionStage(first wire.Elem) error {
	name := string(first.Name)
	if _, err := sessionUsers(first); err != nil {
		return err
	}
	coll, _ := req.Cmd.First.Str()
	switch {
	case name == listLocalSessions:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "%s must be run against the database with {aggregate: 1}, not a collection", name)
	case string(req.Cmd.DB) != configDB, coll != sessionsColl:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "%s may only be run against config.system.sessions", name)
	}
	return nil
}

// sessionsAggregate answers a pipeline that begins with a stage that lists sessions: the
// local ones are those that this router has seen, the others those of all shards, too.
func sessionsAggregate(ctx context.Context, req *request, first wire.Elem, rest []wire.Doc) error {
	name := string(first.Name)
	users, err := sessionUsers(first)
	if err != nil {
		return err
	}
	ns := string(req.Cmd.DB) + ".$cmd.aggregate"
	if coll, ok := req.Cmd.First.Str(); ok {
		ns = string(req.Cmd.DB) + "." + coll
	} else if name == listSessions {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "%s may only be run against config.system.sessions", name)
	}
	if err := req.stageOptions(name); err != nil {
		return err
	}
	list := req.h.router.LocalSessions()
	if name == listSessions {
		ctx, cancel := req.Context(ctx)
		defer cancel()
		if list, err = req.h.router.AllSessions(ctx); err != nil {
			return err
		}
	}
	var docs []bson.Raw
	for i := range list {
		s := &list[i]
		if !slices.Contains(users, s.UID) && (users != nil || s.UID != req.h.anonymous) {
			continue
		}
		doc, err := bson.Marshal(bson.D{
			{Key: "_id", Value: bson.D{
				{Key: "id", Value: bson.Binary{Subtype: 4, Data: s.ID[:]}},
				{Key: "uid", Value: bson.Binary{Data: s.UID[:]}},
			}},
			{Key: "lastUse", Value: s.LastUse},
		})
		if err != nil {
			return err
		}
		docs = append(docs, doc)
	}
	return req.h.router.Virtual(ctx, req.Op, ns, docs, rest, nil)
}

// stageOptions refuses what stages that the router answers itself do not go with.
func (req *request) stageOptions(name string) error {
	if req.strict() {
		return mongoerr.Newf(mongoerr.APIStrictError, "%s is not allowed with 'apiStrict: true' in API Version 1", name)
	}
	if e, ok := req.Lookup("explain"); ok {
		if on, _ := e.Bool(); on {
			return mongoerr.Newf(mongoerr.NotImplemented, "shardgate does not explain %s", name)
		}
	} else if _, ok := req.Lookup("cursor"); !ok {
		return mongoerr.New(mongoerr.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument")
	}
	if e, ok := req.Cmd.Arg(wire.ArgReadConcern); ok && name != listSessions {
		d, _ := e.Doc()
		level, _ := d.Lookup("level")
		if s, set := level.Str(); set && s != "local" {
			return mongoerr.Newf(mongoerr.InvalidOptions,
				"Command aggregate does not support { readConcern: { level: \"%s\", provenance: \"clientSupplied\" } } :: caused by :: Aggregation stage %s cannot run with a readConcern other than 'local'. Current readConcern: %s", s, name, s)
		}
	}
	return nil
}

// sessionUsers reads which users' sessions are asked for, as the digests in their
// sessions; nil: the client's own, or all. Nobody logs in yet, so all are of one user.
func sessionUsers(stage wire.Elem) (users [][32]byte, err error) {
	name := string(stage.Name)
	spec, ok := stage.Doc()
	if !ok {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "%s options must be specified in an object, but found: %s", name, router.TypeName(stage.Type))
	}
	it := spec.Iter()
	var e wire.Elem
	for it.Next(&e) {
		switch field := name + "." + string(e.Name); string(e.Name) {
		case "allUsers":
			if e.Type != bson.TypeBoolean {
				return nil, wrongFieldType(field, e, "bool")
			}
		case "users":
			if e.Type != bson.TypeArray {
				return nil, wrongFieldType(field, e, "array")
			}
			if users, err = userDigests(field, wire.Doc(e.Value)); err != nil {
				return nil, err
			}
		case "$_internalPredicate":
		default:
			return nil, mongoerr.Newf(40415, "BSON field '%s' is an unknown field.", field)
		}
	}
	return users, it.Err()
}

func wrongFieldType(field string, e wire.Elem, want string) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type '%s'", field, router.TypeName(e.Type), want)
}

// userDigests reads a list of {user, db}; nil for an empty one.
func userDigests(field string, list wire.Doc) ([][32]byte, error) {
	var out [][32]byte
	it := list.Iter()
	var e wire.Elem
	for it.Next(&e) {
		d, ok := e.Doc()
		if !ok {
			return nil, wrongFieldType(field+"."+string(e.Name), e, "object")
		}
		var names [2]string
		for i, part := range []string{"user", "db"} {
			v, ok := d.Lookup(part)
			if !ok {
				return nil, mongoerr.Newf(40414, "BSON field '%s.%s' is missing but a required field", field, part)
			}
			if names[i], ok = v.Str(); !ok {
				return nil, wrongFieldType(field+"."+part, v, "string")
			}
		}
		var f wire.Elem
		for in := d.Iter(); in.Next(&f); {
			if name := string(f.Name); name != "user" && name != "db" {
				return nil, mongoerr.Newf(40415, "BSON field '%s.%s' is an unknown field.", field, name)
			}
		}
		out = append(out, sha256.Sum256([]byte(names[0]+"@"+names[1])))
	}
	return out, it.Err()
}
