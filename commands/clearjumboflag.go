package commands

import (
	"context"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func clearJumboFlag(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known("find", "bounds"); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.CheckSharded(ctx, ns); err != nil {
		return err
	}
	_, find := req.Lookup("find")
	_, bounds := req.Lookup("bounds")
	if find == bounds {
		return mongoerr.New(mongoerr.InvalidOptions, "Must specify either 'find' or 'bounds', but not both")
	}
	a, err := req.chunkArgs(false)
	if err != nil {
		return mongoerr.New(mongoerr.TypeMismatch, err.Error())
	}
	if bounds && len(a.bounds) != 2 {
		return mongoerr.New(mongoerr.InvalidOptions, "Must specify exactly two bounds")
	}
	if find && a.find == nil {
		return mongoerr.New(51260, "no shard key found in chunk query {}")
	}
	if err := req.h.router.ClearJumbo(ctx, router.ChunkSpec{NS: ns, Find: a.find, Bounds: a.bounds}); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}
