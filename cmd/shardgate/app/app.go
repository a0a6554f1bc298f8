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
	addr      net.Addr
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
	bound, err := listen(ctx, c.Listen, c.HTTP.Listen)
	if err != nil {
		return nil, err
	}
	a.addr = bound.clients.Addr()
	a.store, err = pg.New(ctx, pg.Options{DSN: c.Catalog.DSN, DirectDSN: c.Catalog.DirectDSN, MaxConns: c.Catalog.MaxConns})
	if err != nil {
		bound.close()
		return nil, err
	}
	if err := a.join(ctx, bound, ""); err != nil {
		bound.close()
		a.store.Close()
		return nil, err
	}
	return a, nil
}

// listeners are what a router is bound to.
type listeners struct {
	clients net.Listener
	probes  net.Listener // of metrics and health; nil: none
}

func (l *listeners) close() {
	if l.clients != nil {
		l.clients.Close()
	}
	if l.probes != nil {
		l.probes.Close()
	}
}

// listen binds the address for clients, and that for metrics and health if there is one.
func listen(ctx context.Context, clients, probes string) (l listeners, err error) {
	var lc net.ListenConfig
	if l.clients, err = lc.Listen(ctx, "tcp", clients); err != nil {
		return listeners{}, fmt.Errorf("listen: %w", err)
	}
	if probes == "" {
		return l, nil
	}
	if l.probes, err = lc.Listen(ctx, "tcp", probes); err != nil {
		l.clients.Close()
		return listeners{}, fmt.Errorf("http.listen: %w", err)
	}
	return l, nil
}

// join registers a router, in the place of a former incarnation if there was one, and puts
// its servers before it.
func (a *App) join(ctx context.Context, bound listeners, former string) error {
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
	handler := commands.New(commands.Options{
		Router: r, Log: a.log, Version: Version(), Argv: []string{"shardgate", "serve"}, Slow: c.Log.Slow, Name: c.Advertise,
	})
	a.router = r
	a.server = server.New(server.Options{
		Listener: bound.clients, TLS: a.clientTLS, Handler: handler, Log: a.log, MaxConns: c.MaxConnections, MaxUnread: c.MaxUnreadReplies,
		DrainTimeout: c.DrainTimeout,
	})
	if bound.probes != nil {
		now := *a // what is still being answered when a router starts over is about the former one
		a.http = newHTTPServer(&now, bound.probes, handler.Collectors())
	}
	return nil
}

// Addr returns the bound address.
func (a *App) Addr() net.Addr { return a.addr }

// Run serves until ctx ends: first the listener drains, then the router deregisters. A
// router that may not go on ends it, too; but one that others have shut out is followed by
// a new one. Clients lose their connections then: what the former one had under way ends
// with it.
func (a *App) Run(ctx context.Context) error {
	defer a.store.Close()
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
// catalog takes it. It reports false if ctx ends first. The address is bound once: clients
// who have come meanwhile wait, as a driver tries once more and no third time.
func (a *App) startOver(ctx context.Context) bool {
	former := a.router.Self().Incarnation
	probes := ""
	if a.http != nil {
		probes = a.http.listener.Addr().String()
	}
	var bound listeners
	for {
		var err error
		if bound.clients == nil {
			bound, err = listen(ctx, a.addr.String(), probes)
		}
		if err == nil {
			err = a.join(ctx, bound, former)
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
			bound.close()
			return false
		}
	}
}
