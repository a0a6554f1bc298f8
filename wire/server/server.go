package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/shardgate/shardgate/wire"
)

// Handler answers messages. Its methods are called by one goroutine per
// connection and must not keep slices of the messages they are given.
type Handler interface {
	// Command answers an OP_MSG by filling reply, with an error of its own where
	// need be. Returning an error closes the connection without a reply. Stream
	// true asks for another call with the same message: the exhaust form of hello.
	Command(ctx context.Context, c *Conn, m *wire.Msg, reply *wire.Reply) (stream bool, err error)
	// Query answers an OP_QUERY on a "$cmd" collection, likewise; flags are those
	// of the OP_REPLY.
	Query(ctx context.Context, c *Conn, q *wire.Query, reply *wire.Reply) (flags uint32, err error)
	// Left is called, by a goroutine of the server's own, when the client of a running
	// operation that ends with it has gone: its context has ended. It is called again while
	// the operation still runs.
	Left()
	// Closed is called once when a connection has ended.
	Closed(ctx context.Context, c *Conn)
	// Time returns the cluster time to send with a reply, or nil for none.
	Time() *wire.ClusterTime
}

// Options are the settings of a Server.
type Options struct {
	Listener net.Listener // the server's own from New on
	Handler  Handler
	Log      zerolog.Logger
	TLS      *tls.Config // nil: plain
	MaxConns int         // 0: no limit
	// MaxUnread bounds the bytes of replies that wait for clients who do not read them: beyond it the
	// connections close whose clients have taken nothing for longest. 0: no limit.
	MaxUnread int64
	// DrainTimeout bounds how long running operations may finish after Run's
	// context has ended.
	DrainTimeout time.Duration
}

// Server listens for clients.
type Server struct {
	opts     Options
	listener net.Listener
	buffers  wire.Buffers
	ids      wire.RequestIDs
	lastConn atomic.Int64
	unread   unread
	wg       sync.WaitGroup

	writeLimit, cutLimit, watchEvery, greetingLimit time.Duration

	mu       sync.Mutex
	conns    map[*Conn]struct{} // guarded by mu
	stopping chan struct{}
}

// New returns a server that Run has accept clients.
func New(opts Options) *Server {
	l := opts.Listener
	if opts.TLS != nil {
		l = tls.NewListener(l, opts.TLS)
	}
	return &Server{
		opts: opts, listener: l, writeLimit: writeLimit, cutLimit: cutLimit, watchEvery: watchEvery, greetingLimit: greetingLimit,
		conns: map[*Conn]struct{}{}, stopping: make(chan struct{}),
		unread: unread{limit: opts.MaxUnread, now: time.Now, waiting: map[*Conn]waiting{}},
	}
}

// Addr returns the bound address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Connections returns how many clients are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Stopping is closed when the server begins to stop: waiting hello calls answer
// at once then.
func (s *Server) Stopping() <-chan struct{} { return s.stopping }

// Run accepts clients until ctx ends, then lets running operations finish within the
// drain timeout, and returns when every connection is closed. What does not end even
// when it is told to is left behind.
func (s *Server) Run(ctx context.Context) {
	stopped := context.AfterFunc(ctx, func() { s.listener.Close() })
	defer stopped()
	opCtx, cancelOps := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelOps()
	go s.watch(opCtx)
	for {
		nc, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			if err == nil {
				s.start(opCtx, nc)
			}
			break
		}
		if err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				continue
			}
			s.opts.Log.Error().Err(err).Msg("accept failed")
			if !pause(ctx, 50*time.Millisecond) {
				break
			}
			continue
		}
		s.start(opCtx, nc)
	}
	s.drain(cancelOps)
}

func (s *Server) start(ctx context.Context, nc net.Conn) {
	c := newConn(s, nc)
	connCtx, cancel := context.WithCancel(ctx)
	c.cancel = cancel
	s.mu.Lock()
	full := s.opts.MaxConns > 0 && len(s.conns) >= s.opts.MaxConns
	if !full {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		s.opts.Log.Warn().Int("limit", s.opts.MaxConns).Msg("connection refused: too many clients")
		nc.Close()
		cancel()
		return
	}
	s.wg.Go(func() {
		defer func() {
			cancel()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			c.close()
			s.opts.Handler.Closed(ctx, c)
		}()
		c.serve(connCtx)
	})
}

// drain closes idle connections at once and busy ones when their operation is
// done or the time is up.
func (s *Server) drain(cancelOps context.CancelFunc) {
	close(s.stopping)
	s.mu.Lock()
	for c := range s.conns {
		c.stopWhenIdle()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	timer := time.NewTimer(s.opts.DrainTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	}
	cancelOps()
	s.mu.Lock()
	for c := range s.conns {
		c.close()
	}
	left := len(s.conns)
	s.mu.Unlock()
	timer.Reset(s.cutLimit)
	select {
	case <-done:
	case <-timer.C:
		s.opts.Log.Error().Int("cut", left).Msg("operations that were cut short have not ended; nobody waits for them")
	}
}

// cutLimit bounds the wait for operations whose context has ended.
const cutLimit = 5 * time.Second

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
