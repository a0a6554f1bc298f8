package commands

import (
	"context"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func explain(ctx context.Context, req *request) error {
	inner, ok := req.Cmd.First.Doc()
	if !ok {
		return mongoerr.New(mongoerr.TypeMismatch, "explain command requires a nested object")
	}
	if v, ok := req.Lookup("verbosity"); ok {
		s, isText := v.Str()
		if !isText && !v.IsNull() {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'explain.verbosity' is the wrong type '%s', expected type 'string'", router.TypeName(v.Type))
		}
		switch s {
		case "queryPlanner", "executionStats", "allPlansExecution":
		default:
			if isText {
				return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'explain.verbosity' is not a valid value.", s)
			}
		}
	}
	if db, ok := inner.Lookup("$db"); ok {
		if s, _ := db.Str(); s != string(req.Cmd.DB) {
			return mongoerr.Newf(mongoerr.InvalidNamespace, "Mismatched $db in explain command. Expected %s but got %s", req.Cmd.DB, s)
		}
	}
	if _, ok := inner.First(); !ok {
		return mongoerr.New(mongoerr.CommandNotFound, "Explain failed due to unknown command: ")
	}
	var cmd wire.Command
	if err := cmd.Parse(withDB(inner, string(req.Cmd.DB))); err != nil {
		return err
	}
	switch name := string(cmd.First.Name); name {
	case "find", "count", "distinct", "aggregate", "update", "delete", "findAndModify", "findandmodify":
	case "explain":
		return mongoerr.New(mongoerr.IllegalOperation, "Explaining an explain command is not allowed")
	default:
		if req.h.table[name] == nil {
			return mongoerr.Newf(mongoerr.CommandNotFound, "Explain failed due to unknown command: %s", name)
		}
		return mongoerr.Newf(mongoerr.IllegalOperation, "Cannot explain cmd: %s", name)
	}
	if string(req.Cmd.DB) == configDB {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not explain queries on the config database: they run over documents made from the catalog")
	}
	return req.h.router.Explain(ctx, req.Op, &cmd)
}
