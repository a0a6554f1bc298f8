package commands

import (
	"context"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// renameCollection checks the command's form and names (MONGOS.md §1.7); the router checks
// it against the collections. stayTemp changes nothing: there are no temporary collections.
func renameCollection(ctx context.Context, req *request) error {
	if err := req.known("to", "dropTarget", "stayTemp"); err != nil {
		return err
	}
	spec := router.RenameSpec{UUID: req.collectionUUID()}
	if e, given := req.Lookup("stayTemp"); given && e.Type != bson.TypeBoolean {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'renameCollection.stayTemp' is the wrong type '%s', expected type 'bool'", router.TypeName(e.Type))
	}
	if e, given := req.Cmd.Arg(wire.ArgWriteConcern); given && req.Drop&wire.ArgWriteConcern == 0 {
		spec.Concern = e.RawValue()
	}
	var ok bool
	if spec.From, ok = req.Cmd.First.Str(); !ok {
		return mongoerr.Newf(mongoerr.BadValue, "collection name has invalid type %s", router.TypeName(req.Cmd.First.Type))
	}
	var err error
	if spec.To, err = req.stringArg("to"); err != nil {
		return err
	}
	if err := req.dropTarget(&spec); err != nil {
		return err
	}
	if err := renameNames(&spec); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	unconfirmed, err := req.h.router.RenameCollection(ctx, &spec)
	if err != nil {
		return err
	}
	if unconfirmed != nil {
		req.Reply.Elems = bsoncore.AppendDocumentElement(req.Reply.Elems, "writeConcernError", unconfirmed)
	}
	req.Reply.OK()
	return nil
}

// dropTarget reads the option of that name: whether the target makes room, or its UUID.
func (req *request) dropTarget(spec *router.RenameSpec) error {
	e, given := req.Cmd.Body.Lookup("dropTarget")
	if !given {
		return nil
	}
	switch {
	case e.Type == bson.TypeBoolean:
		spec.DropTarget, _ = e.Bool()
	case e.Type == bson.TypeBinary && (len(e.Value) != 21 || e.Value[4] != bson.TypeBinaryUUID):
		return mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
	case e.Type == bson.TypeBinary:
		spec.DropTarget, spec.TargetUUID = true, new(router.UUID)
		copy(spec.TargetUUID[:], e.Value[5:])
	default:
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'renameCollection.dropTarget' is the wrong type '%s', expected types '[bool, binData]'", router.TypeName(e.Type))
	}
	return nil
}

// renameNames refuses names that no collection may have, or not for users to give.
func renameNames(spec *router.RenameSpec) error {
	if bad := badNS(spec.From); bad {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", spec.From)
	}
	if bad := badNS(spec.To); bad {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid target namespace: %s", spec.To)
	}
	if spec.From == spec.To {
		return mongoerr.New(mongoerr.IllegalOperation, "Can't rename a collection to itself")
	}
	for i, ns := range []string{spec.From, spec.To} {
		what := []string{"source", "target"}[i]
		switch db, coll := catalog.SplitNS(ns); {
		case db == "admin" || db == configDB || db == "local":
			return mongoerr.Newf(mongoerr.IllegalOperation, "Can't rename collections of the %s database", db)
		case strings.HasPrefix(coll, "system.buckets."):
			return mongoerr.New(mongoerr.IllegalOperation, "Renaming system.buckets collections is not allowed")
		case strings.HasPrefix(coll, "system.") && coll != "system.js":
			return mongoerr.Newf(mongoerr.IllegalOperation, "error with %s namespace: Invalid system namespace: %s", what, ns)
		case coll[0] == '.' || strings.Contains(coll, "$"):
			return mongoerr.Newf(mongoerr.IllegalOperation, "error with %s namespace: Invalid collection name: %s", what, coll)
		}
	}
	return nil
}

// badNS reports whether a string is no "db.coll" that could be told to anybody.
func badNS(ns string) bool {
	db, coll := catalog.SplitNS(ns)
	return coll == "" || len(ns) > 255 || strings.ContainsRune(ns, 0) || !utf8.ValidString(ns) || router.CheckDB([]byte(db)) != nil
}
