package commands

import (
	"context"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// configDB is the database whose collections are views of the catalog.
const configDB = "config"

func find(ctx context.Context, req *request) error {
	if string(req.Cmd.DB) == configDB {
		return configRead(ctx, req)
	}
	return req.h.router.Find(ctx, req.Op)
}

func aggregate(ctx context.Context, req *request) error {
	if _, isName := req.Cmd.First.StrBytes(); !isName {
		return aggregateDatabase(ctx, req)
	}
	if err := req.firstStageFits(); err != nil {
		return err
	}
	if string(req.Cmd.DB) == configDB {
		return configRead(ctx, req)
	}
	return req.h.router.Aggregate(ctx, req.Op)
}

func count(ctx context.Context, req *request) error {
	if string(req.Cmd.DB) == configDB {
		return configRead(ctx, req)
	}
	return req.h.router.Count(ctx, req.Op)
}

func distinct(ctx context.Context, req *request) error {
	if string(req.Cmd.DB) == configDB {
		return configRead(ctx, req)
	}
	return req.h.router.Distinct(ctx, req.Op)
}

func write(ctx context.Context, req *request) error {
	if coll, ok := req.Cmd.First.Str(); ok && string(req.Cmd.DB) == configDB && req.row.Name == "update" {
		ctx, cancel := req.Context(ctx)
		defer cancel()
		return req.h.router.UpdateConfig(ctx, req.Op, coll)
	}
	if err := req.writable(); err != nil {
		return err
	}
	return req.h.router.Write(ctx, req.Op)
}

func findAndModify(ctx context.Context, req *request) error {
	if err := req.writable(); err != nil {
		return err
	}
	return req.h.router.FindAndModify(ctx, req.Op)
}

// writable refuses what would write into databases that are the cluster's own.
func (req *request) writable() error {
	switch string(req.Cmd.DB) {
	case configDB:
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not take inserts and deletes in the config database yet")
	case "admin":
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not take writes to the admin database yet")
	}
	return nil
}

func getMore(ctx context.Context, req *request) error { return req.h.router.GetMore(ctx, req.Op) }

func killCursors(ctx context.Context, req *request) error {
	return req.h.router.KillCursors(ctx, req.Op)
}
