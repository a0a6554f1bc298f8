package commands

import (
	"context"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func explain(ctx context.Context, req *request) error {
	inner, ok := req.Cmd.First.Doc()
	if !ok {
		return mongoerr.New(mongoerr.TypeMismatch, "explain command requires a nested object")
	}
	if v, ok := req.Lookup("verbosity"); ok {
		switch s, _ := v.Str(); s {
		case "queryPlanner", "executionStats", "allPlansExecution":
		default:
			return mongoerr.New(mongoerr.FailedToParse, "verbosity string must be one of {'queryPlanner', 'executionStats', 'allPlansExecution'}")
		}
	}
	if db, ok := inner.Lookup("$db"); ok {
		if s, _ := db.Str(); s != string(req.Cmd.DB) {
			return mongoerr.Newf(mongoerr.InvalidNamespace, "Mismatched $db in explain command. Expected %s but got %s", req.Cmd.DB, s)
		}
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
