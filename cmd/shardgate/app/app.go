package app

import (
	"context"
	"errors"
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

// New connects to the catalog, registers the router, and binds the address.
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
	a := &App{config: c, log: log}
	a.store, err = pg.New(ctx, pg.Options{DSN: c.Catalog.DSN, DirectDSN: c.Catalog.DirectDSN, MaxConns: c.Catalog.MaxConns})
	if err != nil {
		return nil, err
	}
	a.router, err = router.New(ctx, router.Options{
		Store: a.store, Name: c.Advertise, Version: Version(), Log: log,
		Backend: backend.Config{
			Admin: cred, TLS: tlsConfig, MaxConns: c.Shards.MaxConns, MaxConnecting: c.Shards.MaxConnecting,
			IdleTimeout: c.Shards.IdleTimeout, SelectTimeout: c.Shards.SelectTimeout, Log: log,
		},
		HoldLimit: c.DDL.HoldLimit, BarrierTimeout: c.DDL.BarrierTimeout, LockTimeout: c.DDL.LockTimeout,
		CursorTimeout: c.Cursors.Timeout, AllowUntestedVersions: c.Shards.AllowUntestedVersions,
	})
	if err != nil {
		a.store.Close()
		return nil, err
	}
	handler := commands.New(commands.Options{
		Router: a.router, Log: log, Version: Version(), Argv: []string{"shardgate", "serve"},
		Slow: c.Log.Slow, Name: c.Advertise,
	})
	a.server, err = server.New(ctx, server.Options{
		Listen: c.Listen, Handler: handler, Log: log, MaxConns: c.MaxConnections, DrainTimeout: c.DrainTimeout,
	})
	if err != nil {
		a.router.Close(ctx) // a registered router that is not there would hold DDL up
		a.store.Close()
		return nil, err
	}
	return a, nil
}

// Addr returns the bound address.
func (a *App) Addr() net.Addr { return a.server.Addr() }

// Run serves until ctx ends: first the listener drains, then the router deregisters.
func (a *App) Run(ctx context.Context) error {
	defer a.store.Close()
	if a.config.InsecureNoAuth {
		a.log.Warn().Str("listen", a.config.Listen).Msg("clients need no login: anybody who reaches this address can do anything")
	}
	a.log.Info().Str("listen", a.Addr().String()).Int("router", a.router.Self().Number).Msg("serving")
	routing, stopRouting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouting()
	var g errgroup.Group
	g.Go(func() error { return a.router.Run(routing) })
	g.Go(func() error {
		defer stopRouting()
		return a.server.Run(ctx)
	})
	err := g.Wait()
	a.log.Info().Msg("stopped")
	return err
}
