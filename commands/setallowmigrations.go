package commands

import (
	"context"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func setAllowMigrations(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known("allowMigrations"); err != nil {
		return err
	}
	e, ok := req.Lookup("allowMigrations")
	if !ok {
		return mongoerr.New(40414, "BSON field 'setAllowMigrations.allowMigrations' is missing but a required field")
	}
	allow, ok := e.Bool()
	if !ok {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'setAllowMigrations.allowMigrations' is the wrong type '%s', expected type 'bool'", router.TypeName(e.Type))
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.SetAllowMigrations(ctx, ns, allow); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}
