package server

import (
	"context"
	"net"
	"runtime/debug"
	"syscall"
	"time"
)

// watchEvery is how often the server looks whether clients of long operations are there.
const watchEvery = 500 * time.Millisecond

// watch closes connections whose replies nobody reads and whose memory is needed, and ends operations whose clients have gone, where they say that they end with them. An
// operation that was begun since the last look is left alone, so that short ones cost
// nothing.
func (s *Server) watch(ctx context.Context) {
	for pause(ctx, s.watchEvery) {
		s.cutOff(s.unread.shed())
		if s.endLeft() {
			s.opts.Handler.Left()
		}
	}
}

// endLeft ends the contexts of operations whose clients have gone and reports whether there
// are any.
func (s *Server) endLeft() (any bool) {
	defer func() {
		if p := recover(); p != nil {
			s.opts.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("watch clients")
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		n := c.count.Load()
		old := n == c.seen
		c.seen = n
		if old && c.busy.Load() && c.leaves.Load() && hasLeft(c.nc) {
			c.cancel()
			any = true
		}
	}
	return any
}

// hasLeft reports whether the peer of a connection has closed it.
func hasLeft(nc net.Conn) bool {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn() // of a TLS connection
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	left := false
	if err := raw.Control(func(fd uintptr) { left = hungUp(int(fd)) }); err != nil {
		return true // it is closed here
	}
	return left
}
