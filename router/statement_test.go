package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestStatementsThatNoMongodReads are refused with a mongod's words (run on 6.0.5).
func TestStatementsThatNoMongodReads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command, statement string
		code               mongoerr.Code
		text               string
	}{
		{"update", `{"q": {}, "u": {}, "multi": false, "upsert": true, "collation": {}, "arrayFilters": [], "hint": "a", "c": {}}`, 0, ""},
		{"update", `{"q": {}, "u": [], "multi": null, "hint": {"a": 1}, "collation": null}`, 0, ""},
		{"update", `{"q": {}, "u": 5}`, 9, "Update argument must be either an object or an array"},
		{"update", `{"q": {}, "u": null}`, 9, "Update argument must be either an object or an array"},
		{"update", `{"q": {}, "u": {}, "multi": "x"}`, 14, "BSON field 'update.updates.multi' is the wrong type 'string', expected type 'bool'"},
		{"update", `{"q": {}, "u": {}, "upsert": 1}`, 14, "BSON field 'update.updates.upsert' is the wrong type 'int', expected type 'bool'"},
		{"update", `{"q": {}, "u": {}, "collation": "x"}`, 14, "BSON field 'update.updates.collation' is the wrong type 'string', expected type 'object'"},
		{"update", `{"q": {}, "u": {}, "arrayFilters": {}}`, 14, "BSON field 'update.updates.arrayFilters' is the wrong type 'object', expected type 'array'"},
		{"update", `{"q": {}, "u": {}, "hint": 5}`, 9, "Hint must be a string or an object"},
		{"update", `{"q": {}, "u": {}, "c": 5}`, 14, "BSON field 'update.updates.c' is the wrong type 'int', expected type 'object'"},
		{"update", `{"q": {}, "u": {}, "limit": 1}`, 40415, "BSON field 'update.updates.limit' is an unknown field."},
		{"update", `{"q": null, "u": {}}`, 40414, "BSON field 'update.updates.q' is missing but a required field"},
		{"update", `{"q": {}}`, 40414, "BSON field 'update.updates.u' is missing but a required field"},
		{"update", `{}`, 40414, "BSON field 'update.updates.q' is missing but a required field"},
		{"delete", `{"q": {}, "limit": 1, "collation": {}, "hint": {}}`, 0, ""},
		{"delete", `{"q": {}, "limit": null}`, 0, ""},
		{"delete", `{"q": {}, "limit": {"$numberLong": "0"}}`, 0, ""},
		{"delete", `{"q": {}, "limit": 2}`, 9, "The limit field in delete objects must be 0 or 1. Got 2"},
		{"delete", `{"q": {}, "limit": 0.9}`, 9, "The limit field in delete objects must be 0 or 1. Got 0.9"},
		{"delete", `{"q": 5, "limit": 1}`, 14, "BSON field 'delete.deletes.q' is the wrong type 'int', expected type 'object'"},
		{"delete", `{"q": {}, "limit": 1, "u": {}}`, 40415, "BSON field 'delete.deletes.u' is an unknown field."},
		{"delete", `{"q": {}}`, 40414, "BSON field 'delete.deletes.limit' is missing but a required field"},
		{"insert", `{"q": 5}`, 0, ""},
	} {
		var d bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(c.statement), false, &d))
		err := kindOf([]byte(c.command)).check(wire.Doc(d))
		if c.code == 0 {
			require.NoError(t, err, c.statement)
			continue
		}
		requireCode(t, c.code, err)
		require.Equal(t, c.text, mongoerr.As(err).Message)
	}
}
