package commands

import (
	"context"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// split refuses most of what is wrong without a code, as a mongos does (MONGOS.md §1.8).
func split(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known("find", "bounds", "middle"); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.CheckSharded(ctx, ns); err != nil {
		return err
	}
	a, err := req.chunkArgs(true)
	if err != nil {
		return err
	}
	if why := a.splitProblem(); why != "" {
		return mongoerr.New(0, why)
	}
	if err := req.h.router.Split(ctx, router.ChunkSpec{NS: ns, Find: a.find, Middle: a.middle, Bounds: a.bounds}); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

// splitProblem says what is wrong with the arguments of split.
func (a *chunkArgs) splitProblem() string {
	switch {
	case len(a.bounds) == 1:
		return "upper bound not specified"
	case len(a.bounds) > 2:
		return "only a lower and an upper bound may be specified"
	case a.find != nil && a.bounds != nil:
		return "cannot specify bounds and find at the same time"
	case a.find == nil && a.bounds == nil && a.middle == nil:
		return "need to specify find/bounds or middle"
	case a.find != nil && a.middle != nil:
		return "cannot specify find and middle together"
	case a.bounds != nil && a.middle != nil:
		return "cannot specify bounds and middle together"
	}
	return ""
}
