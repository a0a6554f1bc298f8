package router

import (
	"context"
	"runtime/debug"
	"sync"
	"time"
)

// keepPause is how long what is kept going rests after a panic.
const keepPause = time.Second

// goers are goroutines that the router waits for when it stops. A panic in one ends it
// alone.
type goers struct {
	sync.WaitGroup

	panicked func(what any, stack []byte)
}

// Go runs do in a goroutine.
func (g *goers) Go(do func()) {
	g.WaitGroup.Go(func() { g.endured(do) })
}

// Keep runs do in a goroutine until it returns or ctx ends: after a panic it is run anew.
func (g *goers) Keep(ctx context.Context, do func()) {
	g.WaitGroup.Go(func() {
		for g.endured(do) && sleep(ctx, keepPause) {
		}
	})
}

// endured runs do and reports whether it panicked.
func (g *goers) endured(do func()) (panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			g.panicked(p, debug.Stack())
			panicked = true
		}
	}()
	do()
	return false
}

// panicked notes a panic.
func (r *Router) panicked(what any, stack []byte) {
	r.log.Error().Interface("panic", what).Bytes("stack", stack).Msg("an operation on a shard")
}
