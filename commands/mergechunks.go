package commands

import (
	"context"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

func mergeChunks(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known("bounds"); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.CheckSharded(ctx, ns); err != nil {
		return err
	}
	a, err := req.chunkArgs(false)
	if err != nil {
		return err
	}
	if why := a.mergeProblem(); why != "" {
		return mongoerr.New(0, why)
	}
	if err := req.h.router.MergeChunks(ctx, ns, a.bounds[0], a.bounds[1]); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

// mergeProblem says what is wrong with the bounds of mergeChunks.
func (a *chunkArgs) mergeProblem() string {
	const empty = 5 // bytes of a document without fields
	switch {
	case len(a.bounds) == 0:
		return "no bounds were specified"
	case len(a.bounds) != 2:
		return "only a min and max bound may be specified"
	case len(a.bounds[0]) <= empty:
		return "no min key specified"
	case len(a.bounds[1]) <= empty:
		return "no max key specified"
	}
	return ""
}
