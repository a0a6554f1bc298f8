package pg

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errDSN says no more than this: the text of a connection string, and with it
// the parser's message, may hold a password.
var errDSN = errors.New("catalog/pg: the connection string is not valid")

// Options says how to reach PostgreSQL. Only DSN is required.
type Options struct {
	// DSN is a connection URL or string as libpq has them. Several hosts may be
	// named; only one that accepts writes is used.
	DSN string
	// DirectDSN, where DSN leads to a connection pooler in transaction mode,
	// reaches PostgreSQL itself: LISTEN and migrations need a session of their
	// own. The default is DSN.
	DirectDSN string
	// MaxConns bounds the pool; a watch takes one connection more. Default 8.
	MaxConns int32
	// Timeout bounds each call whose context does not end sooner. Default 10 s.
	Timeout time.Duration
	// MigrationWait bounds the wait for another router's migrations and the
	// migrations themselves. Default 60 s.
	MigrationWait time.Duration
	// SilenceLimit is how long a router may send no heartbeat before it counts as
	// silent. Default 10 s.
	SilenceLimit time.Duration
}

const (
	connectTimeout = 5 * time.Second
	// idleLimit ends a transaction whose router has stopped in the middle of it,
	// because it holds the version row that all changes need.
	idleLimit = 5 * time.Second
)

func (o Options) withDefaults() Options {
	if o.DirectDSN == "" {
		o.DirectDSN = o.DSN
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 8
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MigrationWait <= 0 {
		o.MigrationWait = 60 * time.Second
	}
	if o.SilenceLimit <= 0 {
		o.SilenceLimit = 10 * time.Second
	}
	return o
}

// pool returns the configuration of the connections for ordinary calls.
func (o Options) pool() (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, errDSN
	}
	c.MaxConns = o.MaxConns
	c.MinConns = 0
	prepare(c.ConnConfig)
	return c, nil
}

// direct returns the configuration of a connection that is a session of its own.
func (o Options) direct() (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(o.DirectDSN)
	if err != nil {
		return nil, errDSN
	}
	prepare(c)
	return c, nil
}

func prepare(c *pgx.ConnConfig) {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "shardgate"
	}
}
