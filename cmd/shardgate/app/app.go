package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog/pg"
	"github.com/shardgate/shardgate/commands"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/server"
)

// App is a router process: catalog, router, listener.
type App struct {
	config    *Config
	log       zerolog.Logger
	backend   backend.Config
	clientTLS *tls.Config
	clients   *net.TCPListener
	turn      *turn
	store     *pg.Store
	router    *router.Router
	server    *server.Server
	http      *httpServer // nil: none
}

// Version is the program's version, from the build.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

// Logger makes the logger that the configuration asks for.
func Logger(c LogConfig, out *os.File) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	var w io.Writer = out
	if c.Format == "console" || c.Format == "auto" && isTerminal(out) {
		w = zerolog.ConsoleWriter{Out: out}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// New binds the address, connects to the catalog and registers the router, in this
// order: a second start of a running router must not shut that one out.
func New(ctx context.Context, c *Config, log zerolog.Logger) (*App, error) {
	if c.Catalog.DSN == "" {
		return nil, errors.New("catalog.dsn: is not set")
	}
	cred, err := c.Shards.credential()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.Shards.tls()
	if err != nil {
		return nil, err
	}
	clientTLS, err := serverTLS(&c.TLS, log)
	if err != nil {
		return nil, err
	}
	a := &App{config: c, log: log, clientTLS: clientTLS, backend: backend.Config{
		Admin: cred, TLS: tlsConfig, MaxConns: c.Shards.MaxConns, MaxConnecting: c.Shards.MaxConnecting,
		IdleTimeout: c.Shards.IdleTimeout, SelectTimeout: c.Shards.SelectTimeout, Log: log,
	}}
	probes, err := a.listen(ctx)
	if err != nil {
		return nil, err
	}
	a.store, err = pg.New(ctx, pg.Options{DSN: c.Catalog.DSN, DirectDSN: c.Catalog.DirectDSN, MaxConns: c.Catalog.MaxConns})
	if err != nil {
		a.unlisten(probes)
		return nil, err
	}
	if err := a.join(ctx, probes, ""); err != nil {
		a.unlisten(probes)
		a.store.Close()
		return nil, err
	}
	return a, nil
}

// listen binds the address for clients, and that for metrics and health if there is one
// (nil: none).
func (a *App) listen(ctx context.Context) (probes net.Listener, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	a.clients = l.(*net.TCPListener) //nolint:forcetypeassert // of tcp
	if probes, err = a.listenProbes(ctx, a.config.HTTP.Listen); err != nil {
		l.Close()
	}
	return probes, err
}

func (a *App) listenProbes(ctx context.Context, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w", err)
	}
	return l, nil
}

func (a *App) unlisten(probes net.Listener) {
	a.clients.Close()
	if probes != nil {
		probes.Close()
	}
}

// turn is one router's turn at the address for clients. When it is over, those who come
// wait for the next one: nobody is turned away.
type turn struct {
	*net.TCPListener

	mu   sync.Mutex
	over bool // guarded by mu
}

// nextTurn ends the turn that there is and begins another.
func (a *App) nextTurn() (*turn, error) {
	if a.turn != nil {
		if err := a.turn.Close(); err != nil {
			return nil, err
		}
	}
	a.turn = &turn{TCPListener: a.clients}
	return a.turn, a.clients.SetDeadline(time.Time{})
}

// Close ends the turn; the address stays bound.
func (t *turn) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	t.over = true
	return t.SetDeadline(time.Unix(1, 0))
}

// join registers a router, in the place of a former incarnation if there was one, and puts
// its servers before it.
func (a *App) join(ctx context.Context, probes net.Listener, former string) error {
	c := a.config
	r, err := router.New(ctx, router.Options{
		Store: a.store, Name: c.Advertise, Version: Version(), Log: a.log, Backend: a.backend, Former: former,
		HoldLimit: c.DDL.HoldLimit, BarrierTimeout: c.DDL.BarrierTimeout, LockTimeout: c.DDL.LockTimeout,
		CursorTimeout: c.Cursors.Timeout, EvictAfter: c.Routers.EvictAfter, OrphanDelay: c.Moves.OrphanCleanupDelay,
		CopyRate:              c.Moves.CopyRate << 20,
		AllowUntestedVersions: c.Shards.AllowUntestedVersions, Failpoints: os.Getenv("SHARDGATE_TEST_FAILPOINTS"),
		PeerTLS: peerTLS(a.clientTLS),
	})
	if err != nil {
		return err
	}
	clients, err := a.nextTurn()
	if err != nil {
		r.Close(ctx)
		return fmt.Errorf("listen: %w", err)
	}
	handler := commands.New(commands.Options{
		Router: r, Log: a.log, Version: Version(), Argv: []string{"shardgate", "serve"}, Slow: c.Log.Slow, Name: c.Advertise,
	})
	a.router = r
	a.server = server.New(server.Options{
		Listener: clients, TLS: a.clientTLS, Handler: handler, Log: a.log, MaxConns: c.MaxConnections, MaxUnread: c.MaxUnreadReplies,
		DrainTimeout: c.DrainTimeout,
	})
	if probes != nil {
		now := *a // what is still being answered when a router starts over is about the former one
		a.http = newHTTPServer(&now, probes, handler.Collectors())
	}
	return nil
}

// Addr returns the bound address.
func (a *App) Addr() net.Addr { return a.clients.Addr() }

// Run serves until ctx ends: first the listener drains, then the router deregisters. A
// router that may not go on ends it, too; but one that others have shut out is followed by
// a new one. Clients lose their connections then: what the former one had under way ends
// with it.
func (a *App) Run(ctx context.Context) error {
	defer a.store.Close()
	defer a.clients.Close()
	defer context.AfterFunc(ctx, func() { a.clients.Close() })()
	if a.config.InsecureNoAuth {
		a.log.Warn().Str("listen", a.config.Listen).Msg("clients need no login: anybody who reaches this address can do anything")
	}
	for {
		a.log.Info().Str("listen", a.Addr().String()).Int("router", a.router.Self().Number).Msg("serving")
		err := a.serve(ctx)
		if !errors.Is(err, router.ErrEvicted) || ctx.Err() != nil {
			a.log.Info().Msg("stopped")
			return err
		}
		a.log.Warn().Err(err).Msg("starting over")
		if !a.startOver(ctx) {
			return nil
		}
	}
}

// serve runs router and server until ctx ends or the router may not go on.
func (a *App) serve(ctx context.Context) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	defer context.AfterFunc(serving, a.router.EndMovements)()
	routing, stopRouting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouting()
	if a.http != nil {
		// It answers to the end: that the router drains is to be seen.
		a.log.Info().Str("listen", a.http.listener.Addr().String()).Msg("serving metrics and health")
		go a.http.serve()
		defer a.http.close()
		defer context.AfterFunc(serving, a.http.drain)()
	}
	var g errgroup.Group
	g.Go(func() error {
		// Before the router has let go of everything: who comes now would be turned away, and
		// a driver tries only once more.
		select {
		case <-a.router.Stopped():
			stopServing()
		case <-serving.Done():
		}
		return nil
	})
	g.Go(func() error {
		defer stopServing()
		return a.router.Run(routing)
	})
	g.Go(func() error {
		defer stopRouting()
		a.server.Run(serving)
		return nil
	})
	return g.Wait()
}

// startOver makes a new router in the place of one that was shut out, trying until the
// catalog takes it. It reports false if ctx ends first. Clients who come meanwhile wait.
func (a *App) startOver(ctx context.Context) bool {
	former := a.router.Self().Incarnation
	addr := ""
	if a.http != nil {
		addr = a.http.listener.Addr().String()
	}
	var probes net.Listener
	for {
		var err error
		if probes == nil {
			probes, err = a.listenProbes(ctx, addr)
		}
		if err == nil {
			err = a.join(ctx, probes, former)
		}
		if err == nil {
			return true
		}
		a.log.Error().Err(err).Msg("start over")
		t := time.NewTimer(time.Second)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			a.unlisten(probes)
			return false
		}
	}
}
