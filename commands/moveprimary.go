package commands

import (
	"context"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// movePrimary checks the command's form (MONGOS.md §1.8).
func movePrimary(ctx context.Context, req *request) error {
	db, ok := req.Cmd.First.Str()
	if !ok {
		return mongoerr.New(mongoerr.InvalidNamespace, "the database of movePrimary must be a string")
	}
	if err := req.known("to"); err != nil {
		return err
	}
	if err := router.CheckDB([]byte(db)); err != nil {
		return err
	}
	to, err := req.stringArg("to")
	switch {
	case err != nil:
		return err
	case db == configDB, db == "admin", db == "local":
		return mongoerr.Newf(mongoerr.InvalidOptions, "Can't move primary for %s database", db)
	case to == "":
		return mongoerr.New(mongoerr.InvalidOptions, "you have to specify where you want to move it")
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.MovePrimary(ctx, db, to); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}
