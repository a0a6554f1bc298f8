package router

import (
	"context"

	"golang.org/x/time/rate"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// newCopyRate is a limit of bytes a second; 0: none. At least one batch passes at once.
func newCopyRate(perSecond int64) *rate.Limiter {
	limit := rate.Inf
	if perSecond > 0 {
		limit = rate.Limit(perSecond)
	}
	return rate.NewLimiter(limit, wire.MaxDocumentLen+1<<20)
}

// throttle waits until movements may copy so many bytes more.
func (r *Router) throttle(ctx context.Context, n int) error {
	for n > 0 {
		part := min(n, r.copyRate.Burst())
		if err := r.copyRate.WaitN(ctx, part); err != nil {
			if ctx.Err() == nil { // there will not be time enough
				err = mongoerr.Wrap(mongoerr.MaxTimeMSExpired, err, "moves.copyRate bounds the copy")
			}
			return err
		}
		n -= part
	}
	return nil
}
