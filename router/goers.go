package router

import (
	"runtime/debug"
	"sync"
)

// goers are goroutines that the router waits for when it stops. A panic in one ends it
// alone.
type goers struct {
	sync.WaitGroup

	panicked func(what any, stack []byte)
}

// Go runs do in a goroutine.
func (g *goers) Go(do func()) {
	g.WaitGroup.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				g.panicked(p, debug.Stack())
			}
		}()
		do()
	})
}

// panicked notes a panic.
func (r *Router) panicked(what any, stack []byte) {
	r.log.Error().Interface("panic", what).Bytes("stack", stack).Msg("an operation on a shard")
}
