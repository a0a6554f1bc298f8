package commands

import (
	"crypto/sha256"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/tag"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// envelope reads the generic arguments into the operation (MONGOS.md §0, §4.1).
func (req *request) envelope(cl *client) error {
	req.Write = req.row.Write
	if req.Cmd.Has(wire.ArgMaxTimeMS) && !req.row.KeepsMaxTime {
		if err := req.maxTime(); err != nil {
			return err
		}
	}
	if e, ok := req.Cmd.Arg(wire.ArgClusterTime); ok {
		if t, ok := wire.ReadClusterTime(e); ok {
			req.h.router.Clock.Learn(t)
		}
	}
	if err := req.session(cl); err != nil {
		return err
	}
	if err := req.transaction(); err != nil {
		return err
	}
	if err := req.concerns(); err != nil {
		return err
	}
	if e, ok := req.Cmd.Arg(wire.ArgCollectionUUID); ok {
		if err := req.uuidArgument(e); err != nil {
			return err
		}
	}
	if req.Cmd.Has(wire.ArgAPI) {
		if err := req.api(); err != nil {
			return err
		}
	}
	if e, ok := req.Cmd.Arg(wire.ArgReadPreference); ok {
		return req.readPreference(e)
	}
	return nil
}

// uuidArgument refuses a collectionUUID that is none, or with which the command can do nothing.
func (req *request) uuidArgument(e wire.Elem) error {
	switch name := req.Cmd.First.Name; string(name) {
	case "count", "distinct", "findAndModify", "findandmodify", "listIndexes":
		return mongoerr.Newf(40415, "BSON field '%s.collectionUUID' is an unknown field.", name)
	case "find", "aggregate", "insert", "update", "delete", "drop", "createIndexes", "dropIndexes", "deleteIndexes", "collMod", "renameCollection":
		return isUUID(string(name)+".collectionUUID", e)
	}
	return nil
}

// isUUID refuses a field's value that is no UUID.
func isUUID(field string, e wire.Elem) error {
	switch {
	case e.Type != bson.TypeBinary:
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type 'binData'", field, router.TypeName(e.Type))
	case e.Value[4] != bson.TypeBinaryUUID:
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong binData type, expected type 'UUID'", field)
	case len(e.Value) != 21:
		return mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
	}
	return nil
}

func (req *request) maxTime() error {
	e, _ := req.Cmd.Arg(wire.ArgMaxTimeMS)
	if e.IsNull() {
		return nil
	}
	n, ok := e.Int64()
	switch {
	case !ok:
		return mongoerr.New(mongoerr.BadValue, "maxTimeMS must be a number")
	case n < 0 || n > 1<<31-1:
		return mongoerr.Newf(mongoerr.BadValue, "%d value for maxTimeMS is out of range [0, 2147483647]", n)
	case n > 0:
		req.Deadline = time.Now().Add(time.Duration(n) * time.Millisecond)
	}
	return nil
}

// anonymousUID is the uid of clients that have not logged in: what a mongod without
// auth uses, the digest of nothing.
func anonymousUID() [32]byte { return sha256.Sum256(nil) }

func (req *request) session(cl *client) error {
	if !req.Relayed {
		req.Session.UID = req.h.anonymous
	}
	e, ok := req.Cmd.Arg(wire.ArgLSID)
	if !ok {
		req.Session.ID, req.Session.Implicit = cl.session, true
		return nil
	}
	d, isDoc := e.Doc()
	if !isDoc {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'OperationSessionInfo.lsid' is the wrong type '%s', expected type 'object'", router.TypeName(e.Type))
	}
	id, ok := d.Lookup("id")
	if !ok {
		return mongoerr.New(40414, "BSON field 'OperationSessionInfo.lsid.id' is missing but a required field")
	}
	if id.Type != bson.TypeBinary || len(id.Value) != 21 || id.Value[4] != 4 {
		return mongoerr.New(mongoerr.InvalidUUID, "lsid.id must be a UUID of 16 bytes")
	}
	if _, internal := d.Lookup("txnUUID"); internal {
		return mongoerr.New(mongoerr.InvalidOptions, "Internal sessions are only allowed for internal clients")
	}
	copy(req.Session.ID[:], id.Value[5:])
	if req.row.Anonymous {
		return nil // a mongod does not look at their sessions
	}
	return req.touch(req.Session.ID)
}

func (req *request) transaction() error {
	t := &req.Txn
	number, has := req.Cmd.Arg(wire.ArgTxnNumber)
	auto, hasAuto := req.Cmd.Arg(wire.ArgAutocommit)
	start, hasStart := req.Cmd.Arg(wire.ArgStartTransaction)
	switch {
	case !has && (hasAuto || hasStart):
		return mongoerr.New(mongoerr.InvalidOptions, "'autocommit' and 'startTransaction' require 'txnNumber' to also be specified")
	case !has:
		return nil
	case req.Session.Implicit:
		return mongoerr.New(mongoerr.InvalidOptions, "Transaction number requires a session ID to also be specified")
	}
	var ok bool
	if t.Number, ok = number.Int64(); !ok || number.Type != bson.TypeInt64 {
		return mongoerr.New(mongoerr.TypeMismatch, "txnNumber must be of type long")
	}
	if t.Number < 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "Transaction number cannot be negative")
	}
	t.Present = true
	return req.autocommit(auto, hasAuto, start, hasStart)
}

func (req *request) autocommit(auto wire.Elem, hasAuto bool, start wire.Elem, hasStart bool) error {
	t := &req.Txn
	if !hasAuto {
		switch {
		case hasStart:
			return mongoerr.New(mongoerr.InvalidOptions, "'startTransaction' requires 'autocommit' to also be specified")
		case !req.row.Retryable:
			return mongoerr.Newf(mongoerr.NotARetryableWriteCommand, "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and %s is not a retryable write command.", req.row.Name)
		}
		return nil
	}
	if v, ok := auto.Bool(); !ok || v {
		return mongoerr.New(mongoerr.InvalidOptions, "Specifying autocommit=true is not allowed.")
	}
	if hasStart {
		if v, _ := start.Bool(); !v {
			return mongoerr.New(mongoerr.InvalidOptions, "Specifying startTransaction=false is not allowed.")
		}
		t.Start = true
	}
	t.InTxn = true
	t.Committal = req.row.Committal
	if !req.row.Txn {
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run '%s' in a multi-document transaction.", req.row.Name)
	}
	switch name := req.row.Name; {
	case t.Start && (t.Committal || name == "killCursors"):
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run '%s' as the first operation in a transaction.", name)
	case string(req.Cmd.DB) == configDB:
		return mongoerr.Newf(mongoerr.OperationNotSupportedInTransaction, "Cannot run command against the '%s' database in a transaction.", configDB)
	}
	return nil
}

func (req *request) api() error {
	v, ok := req.Cmd.Arg(wire.ArgAPIVersion)
	if !ok {
		return mongoerr.New(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
	}
	if s, _ := v.Str(); s != "1" {
		return mongoerr.Newf(mongoerr.APIVersionError, "API version must be \"1\"")
	}
	if req.strict() && !req.row.APIv1 {
		return mongoerr.Newf(mongoerr.APIStrictError, "Provided apiStrict:true, but the command %s is not in API Version 1", req.row.Name)
	}
	return nil
}

// strict reports whether the client wants nothing but what the versioned API promises.
func (req *request) strict() bool {
	e, ok := req.Cmd.Arg(wire.ArgAPIStrict)
	on, _ := e.Bool()
	return ok && on
}

func (req *request) readPreference(e wire.Elem) error {
	if req.row.Write {
		return nil // writes go to primaries
	}
	d, ok := e.Doc()
	if !ok {
		return mongoerr.New(mongoerr.TypeMismatch, "$readPreference must be an object")
	}
	it := d.Iter()
	var f wire.Elem
	for it.Next(&f) {
		switch string(f.Name) {
		case "mode":
			mode, ok := parseMode(f)
			if !ok {
				s, _ := f.Str()
				return mongoerr.Newf(mongoerr.FailedToParse, "Could not parse $readPreference mode '%s'", s)
			}
			req.Pref.Mode = mode
		case "tags":
			var err error
			if req.Pref.Tags, err = parseTags(f); err != nil {
				return err
			}
		case "maxStalenessSeconds":
			n, ok := f.Int64()
			if !ok || n > 0 && n < 90 {
				return mongoerr.New(160, "maxStalenessSeconds must be at least 90")
			}
			req.Pref.MaxStale = time.Duration(max(n, 0)) * time.Second
		}
	}
	if req.Pref.Mode != backend.Primary {
		if req.Txn.InTxn {
			return mongoerr.New(mongoerr.InvalidOptions, "Read preference in a transaction must be primary")
		}
		req.PrefRaw = e
	}
	return it.Err()
}

// parseTags reads an array of tag sets, each a document of strings.
func parseTags(f wire.Elem) ([]tag.Set, error) {
	bad := mongoerr.New(mongoerr.TypeMismatch, "$readPreference tags must be an array of documents of strings")
	if f.Type != bson.TypeArray {
		return nil, bad
	}
	var sets []tag.Set
	it := wire.Doc(f.Value).Iter()
	var e, v wire.Elem
	for it.Next(&e) {
		d, ok := e.Doc()
		if !ok {
			return nil, bad
		}
		set := tag.Set{}
		for in := d.Iter(); in.Next(&v); {
			s, ok := v.Str()
			if !ok {
				return nil, bad
			}
			set = append(set, tag.Tag{Name: string(v.Name), Value: s})
		}
		sets = append(sets, set)
	}
	return sets, it.Err()
}

func parseMode(f wire.Elem) (backend.Mode, bool) {
	s, _ := f.Str()
	switch s {
	case "primary":
		return backend.Primary, true
	case "primaryPreferred":
		return backend.PrimaryPreferred, true
	case "secondary":
		return backend.Secondary, true
	case "secondaryPreferred":
		return backend.SecondaryPreferred, true
	case "nearest":
		return backend.Nearest, true
	}
	return backend.Primary, false
}
