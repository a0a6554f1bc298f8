package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// check refuses an update or delete statement that no mongod would read: then nothing of
// the command is run (run on mongod 6.0.5).
func (k writeKind) check(doc wire.Doc) error {
	if k.insert {
		return nil
	}
	needs := []string{"q", "u"}
	if !k.update {
		needs[1] = "limit"
	}
	it := doc.Iter()
	var e wire.Elem
	for it.Next(&e) {
		for i, name := range needs {
			if name == string(e.Name) && (!e.IsNull() || name == "limit") {
				needs[i] = ""
			}
		}
		if err := k.checkField(&e); err != nil {
			return err
		}
	}
	if it.Err() != nil {
		return it.Err()
	}
	for _, name := range needs {
		if name != "" {
			return mongoerr.Newf(40414, "BSON field '%s.%s.%s' is missing but a required field", k.name, k.field, name)
		}
	}
	return nil
}

func (k writeKind) checkField(e *wire.Elem) error {
	name := string(e.Name)
	switch {
	case k.update && name == "u":
		if e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray {
			return mongoerr.New(mongoerr.FailedToParse, "Update argument must be either an object or an array")
		}
		return nil
	case !k.update && name == "limit":
		x, isNum := e.RawValue().AsFloat64OK()
		if isNum && x != 0 && x != 1 {
			return mongoerr.Newf(mongoerr.FailedToParse, "The limit field in delete objects must be 0 or 1. Got %v", x)
		}
		return nil
	case e.IsNull():
		return nil
	}
	want := bson.TypeEmbeddedDocument
	switch {
	case name == "q", name == "collation", k.update && name == "c":
	case name == "hint":
		if e.Type != bson.TypeString && e.Type != bson.TypeEmbeddedDocument {
			return mongoerr.New(mongoerr.FailedToParse, "Hint must be a string or an object")
		}
		return nil
	case k.update && (name == "multi" || name == "upsert"):
		want = bson.TypeBoolean
	case k.update && name == "arrayFilters":
		want = bson.TypeArray
	case name == "sampleId":
		want = bson.TypeBinary
	default:
		return mongoerr.Newf(40415, "BSON field '%s.%s.%s' is an unknown field.", k.name, k.field, name)
	}
	if e.Type != want {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s.%s' is the wrong type '%s', expected type '%s'", k.name, k.field, name, TypeName(e.Type), TypeName(want))
	}
	return nil
}
