package backend

import (
	"crypto/tls"
	"time"

	"github.com/rs/zerolog"
)

// Credential logs in to shards. The zero value means shards without auth.
type Credential struct {
	User     string
	Password string
	Source   string // authentication database
}

// None reports whether there is nothing to log in with.
func (c Credential) None() bool { return c.User == "" }

// Config holds what all shards have in common.
type Config struct {
	// Admin is used for user administration and probes only, never for data
	// (PROTOCOL.md, "More rules" 4).
	Admin Credential
	// Name is this router's name, for the shards' logs.
	Name string
	TLS  *tls.Config

	MaxConns      int           // connections per member
	MaxConnecting int           // handshakes under way per member
	IdleTimeout   time.Duration // idle connections are closed after this
	DialTimeout   time.Duration
	SelectTimeout time.Duration // how long to wait for a suitable member
	Log           zerolog.Logger
}

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.MaxConns == 0 {
		c.MaxConns = 200
	}
	if c.MaxConnecting == 0 {
		c.MaxConnecting = 4
	}
	def(&c.IdleTimeout, 5*time.Minute)
	def(&c.DialTimeout, 10*time.Second)
	def(&c.SelectTimeout, 20*time.Second)
	return c
}
