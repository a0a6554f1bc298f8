package commands

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// maxVoters is how many members a write concern may ask for.
const maxVoters = 50

// concerns checks readConcern and writeConcern against the command and the transaction,
// with a mongod's words (run on 6.0.5): many commands ask no shard.
func (req *request) concerns() error {
	if e, ok := req.Cmd.Arg(wire.ArgWriteConcern); ok && !e.IsNull() {
		if err := req.writeConcern(e); err != nil {
			return err
		}
	}
	if e, ok := req.Cmd.Arg(wire.ArgReadConcern); ok {
		return req.readConcern(e)
	}
	return nil
}

// writeConcern also drops w:0, which goes to shards as the default: their answer is
// wanted (MONGOS.md §2.8).
func (req *request) writeConcern(e wire.Elem) error {
	d, isDoc := e.Doc()
	switch {
	case !req.row.Write && !req.row.WriteConcern:
		return mongoerr.New(mongoerr.InvalidOptions, "Command does not support writeConcern")
	case !isDoc:
		return mongoerr.Newf(mongoerr.TypeMismatch, "\"writeConcern\" had the wrong type. Expected object, found %s", router.TypeName(e.Type))
	case req.Txn.InTxn && !req.Txn.Committal:
		return mongoerr.New(mongoerr.InvalidOptions, "writeConcern is not allowed within a multi-statement transaction")
	}
	var fsync, journal bool
	it := d.Iter()
	var f wire.Elem
	for it.Next(&f) {
		if err := checkWriteOption(&f); err != nil {
			return err
		}
		switch v, _ := f.Bool(); string(f.Name) {
		case "fsync":
			fsync = v
		case "j":
			journal = v
		case "w":
			if n, isNum := f.Int64(); isNum && n == 0 {
				req.Drop |= wire.ArgWriteConcern
			}
		}
	}
	if fsync && journal {
		return mongoerr.New(mongoerr.FailedToParse, "fsync and j options cannot be used together")
	}
	return it.Err()
}

func checkWriteOption(f *wire.Elem) error {
	number, isNum := f.RawValue().AsFloat64OK()
	isNum = isNum || f.Type == bson.TypeDecimal128
	switch string(f.Name) {
	case "w":
		switch {
		case isNum && (number < 0 || number > maxVoters):
			return mongoerr.Newf(mongoerr.FailedToParse, "w has to be a non-negative number and not greater than %d; found: %v", maxVoters, number)
		case isNum, f.IsNull(), f.Type == bson.TypeString:
		case f.Type == bson.TypeEmbeddedDocument:
			return checkTags(f)
		default:
			return mongoerr.Newf(mongoerr.FailedToParse, "w has to be a number, string, or object; found: %s", router.TypeName(f.Type))
		}
	case "j", "fsync":
		if !isNum && !f.IsNull() && f.Type != bson.TypeBoolean {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'WriteConcernOptions.%s' is the wrong type '%s', expected types '[bool, long, int, decimal, double']",
				f.Name, router.TypeName(f.Type))
		}
	case "wtimeout":
		if number < math.MinInt32 || number > math.MaxInt32 {
			return mongoerr.New(mongoerr.FailedToParse, "wtimeout must be a 32-bit integer")
		}
	case "provenance":
		return checkProvenance(f, "WriteConcernOptions")
	case "wElectionId", "wOpTime", "getLastError":
	default:
		return mongoerr.Newf(40415, "BSON field 'WriteConcernOptions.%s' is an unknown field.", f.Name)
	}
	return nil
}

// checkTags checks a w that asks for members by tags.
func checkTags(w *wire.Elem) error {
	d, _ := w.Doc()
	it := d.Iter()
	var tag wire.Elem
	any := false
	for it.Next(&tag) {
		if any = true; !tag.RawValue().IsNumber() {
			return mongoerr.Newf(mongoerr.FailedToParse, "tags must be a single level document with only number values; found: %s: %s", tag.Name, tag.RawValue())
		}
	}
	if !any {
		return mongoerr.New(mongoerr.FailedToParse, "tagged write concern requires tags")
	}
	return it.Err()
}

func checkProvenance(f *wire.Elem, where string) error {
	s, isText := f.Str()
	if !isText {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.provenance' is the wrong type '%s', expected type 'string'", where, router.TypeName(f.Type))
	}
	switch s {
	case "clientSupplied", "implicitDefault", "customDefault", "getLastErrorDefaults", "internalWriteDefault":
		return nil
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s.provenance' is not a valid value.", s, where)
}

func (req *request) readConcern(e wire.Elem) error {
	d, isDoc := e.Doc()
	if !isDoc {
		return mongoerr.New(mongoerr.FailedToParse, "readConcern field should be an object")
	}
	level := ""
	it := d.Iter()
	var f wire.Elem
	for it.Next(&f) {
		switch string(f.Name) {
		case "level":
			s, isText := f.Str()
			if !isText {
				return wrongType("level", "string", &f)
			}
			level = s
		case "afterClusterTime", "atClusterTime":
			at, isTime := f.Timestamp()
			switch {
			case !isTime:
				return wrongType(string(f.Name), "timestamp", &f)
			case at == 0:
				return mongoerr.Newf(mongoerr.InvalidOptions, "%s cannot be a null timestamp", f.Name)
			}
			req.ReadTime = at
		case "provenance":
			if err := checkProvenance(&f, "ReadConcernArgs::parse"); err != nil {
				return err
			}
		case "afterOpTime":
		default:
			return mongoerr.Newf(mongoerr.InvalidOptions, "Unrecognized option in readConcern: %s", f.Name)
		}
	}
	if it.Err() != nil {
		return it.Err()
	}
	return req.level(level)
}

func wrongType(name, want string, f *wire.Elem) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "\"%s\" had the wrong type. Expected %s, found %s", name, want, router.TypeName(f.Type))
}

// level checks the level of a read concern.
func (req *request) level(level string) error {
	switch level {
	case "", "local", "majority", "linearizable", "available", "snapshot":
	default:
		return mongoerr.New(mongoerr.FailedToParse, "readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or 'snapshot'")
	}
	switch {
	case !req.Txn.InTxn:
		if level != "" && level != "local" && !req.row.AnyLevel {
			return mongoerr.Newf(mongoerr.InvalidOptions, "Command %s does not support { readConcern: { level: \"%s\", provenance: \"clientSupplied\" } } :: caused by :: read concern not supported",
				req.row.Name, level)
		}
	case !req.Txn.Start:
		return mongoerr.New(mongoerr.InvalidOptions, "Only the first command in a transaction may specify a readConcern")
	case level == "linearizable", level == "available":
		return mongoerr.New(mongoerr.InvalidOptions, "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction")
	}
	return nil
}
