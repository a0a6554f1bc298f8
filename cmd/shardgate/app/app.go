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
	config *Config
	log    zerolog.Logger
	store  *pg.Store
	router *router.Router
	server *server.Server
	http   *httpServer // nil: none
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
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	a := &App{config: c, log: log}
	var probes net.Listener
	if c.HTTP.Listen != "" {
		if probes, err = lc.Listen(ctx, "tcp", c.HTTP.Listen); err != nil {
			listener.Close()
			return nil, fmt.Errorf("http.listen: %w", err)
		}
	}
	if err := a.join(ctx, cred, tlsConfig); err != nil {
		listener.Close()
		if probes != nil {
			probes.Close()
		}
		return nil, err
	}
	handler := commands.New(commands.Options{
		Router: a.router, Log: log, Version: Version(), Argv: []string{"shardgate", "serve"},
		Slow: c.Log.Slow, Name: c.Advertise,
	})
	a.server = server.New(server.Options{
		Listener: listener, TLS: clientTLS, Handler: handler, Log: log, MaxConns: c.MaxConnections, DrainTimeout: c.DrainTimeout,
	})
	if probes != nil {
		a.http = newHTTPServer(a, probes, handler.Collectors())
	}
	return a, nil
}

// join connects to the catalog and registers the router there.
func (a *App) join(ctx context.Context, cred backend.Credential, tlsConfig *tls.Config) (err error) {
	c := a.config
	a.store, err = pg.New(ctx, pg.Options{DSN: c.Catalog.DSN, DirectDSN: c.Catalog.DirectDSN, MaxConns: c.Catalog.MaxConns})
	if err != nil {
		return err
	}
	a.router, err = router.New(ctx, router.Options{
		Store: a.store, Name: c.Advertise, Version: Version(), Log: a.log,
		Backend: backend.Config{
			Admin: cred, TLS: tlsConfig, MaxConns: c.Shards.MaxConns, MaxConnecting: c.Shards.MaxConnecting,
			IdleTimeout: c.Shards.IdleTimeout, SelectTimeout: c.Shards.SelectTimeout, Log: a.log,
		},
		HoldLimit: c.DDL.HoldLimit, BarrierTimeout: c.DDL.BarrierTimeout, LockTimeout: c.DDL.LockTimeout,
		CursorTimeout: c.Cursors.Timeout, OrphanDelay: c.Moves.OrphanCleanupDelay, AllowUntestedVersions: c.Shards.AllowUntestedVersions,
		Failpoints: os.Getenv("SHARDGATE_TEST_FAILPOINTS"),
	})
	if err != nil {
		a.store.Close()
	}
	return err
}

// Addr returns the bound address.
func (a *App) Addr() net.Addr { return a.server.Addr() }

// Run serves until ctx ends: first the listener drains, then the router deregisters. A
// router that may not go on ends it, too.
func (a *App) Run(ctx context.Context) error {
	defer a.store.Close()
	if a.config.InsecureNoAuth {
		a.log.Warn().Str("listen", a.config.Listen).Msg("clients need no login: anybody who reaches this address can do anything")
	}
	a.log.Info().Str("listen", a.Addr().String()).Int("router", a.router.Self().Number).Msg("serving")
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
		defer stopServing()
		return a.router.Run(routing)
	})
	g.Go(func() error {
		defer stopRouting()
		a.server.Run(serving)
		return nil
	})
	err := g.Wait()
	a.log.Info().Msg("stopped")
	return err
}
