package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/shardgate/shardgate/backend"
)

// Config is everything that can be set: by flag, by environment variable
// (SHARDGATE_CATALOG_DSN for catalog.dsn) or in a YAML file, in this order.
type Config struct {
	Listen         string `mapstructure:"listen"`           // host:port
	Advertise      string `mapstructure:"advertise"`        // stable name of this router, host:port; default: listen
	InsecureNoAuth bool   `mapstructure:"insecure-no-auth"` // listen beyond the loopback without login
	MaxConnections int    `mapstructure:"maxConnections"`   // clients; 0: no limit
	// MaxUnreadReplies bounds the replies that wait for clients who do not read, in bytes; 0: no limit.
	MaxUnreadReplies int64         `mapstructure:"maxUnreadReplies"`
	DrainTimeout     time.Duration `mapstructure:"drainTimeout"` // for running operations at the end

	TLS     TLSConfig     `mapstructure:"tls"`
	HTTP    HTTPConfig    `mapstructure:"http"`
	Log     LogConfig     `mapstructure:"log"`
	Catalog CatalogConfig `mapstructure:"catalog"`
	Shards  ShardsConfig  `mapstructure:"shards"`
	DDL     DDLConfig     `mapstructure:"ddl"`
	Routers RoutersConfig `mapstructure:"routers"`
	Cursors CursorsConfig `mapstructure:"cursors"`
	Moves   MovesConfig   `mapstructure:"moves"`
}

// HTTPConfig is about the address for metrics and health.
type HTTPConfig struct {
	Listen string `mapstructure:"listen"` // host:port; empty: none
	Pprof  bool   `mapstructure:"pprof"`  // profiles there, too
}

// LogConfig says what is logged and how.
type LogConfig struct {
	Level  string        `mapstructure:"level"`  // trace, debug, info, warn, error
	Format string        `mapstructure:"format"` // json, console, or auto: console on a terminal
	Slow   time.Duration `mapstructure:"slow"`   // operations that take longer are logged at info; 0: none
}

// CatalogConfig reaches PostgreSQL.
type CatalogConfig struct {
	DSN       string `mapstructure:"dsn"`
	DirectDSN string `mapstructure:"directDSN"` // past a transaction-mode pooler; default: dsn
	MaxConns  int32  `mapstructure:"maxConns"`
}

// ShardsConfig reaches the shards.
type ShardsConfig struct {
	KeyFile               string        `mapstructure:"keyFile"`      // the sets' keyfile: logs in as __system
	User                  string        `mapstructure:"user"`         // or a user who may administer users
	PasswordFile          string        `mapstructure:"passwordFile"` // and a file with the password
	AuthSource            string        `mapstructure:"authSource"`
	TLSCAFile             string        `mapstructure:"tlsCAFile"`
	TLSCertFile           string        `mapstructure:"tlsCertFile"`
	TLSKeyFile            string        `mapstructure:"tlsKeyFile"`
	MaxConns              int           `mapstructure:"maxConns"` // per member
	MaxConnecting         int           `mapstructure:"maxConnecting"`
	IdleTimeout           time.Duration `mapstructure:"idleTimeout"`
	SelectTimeout         time.Duration `mapstructure:"selectTimeout"`
	AllowUntestedVersions bool          `mapstructure:"allowUntestedVersions"`
}

// DDLConfig bounds the waits of metadata operations.
type DDLConfig struct {
	BarrierTimeout time.Duration `mapstructure:"barrierTimeout"`
	LockTimeout    time.Duration `mapstructure:"lockTimeout"`
	HoldLimit      time.Duration `mapstructure:"holdLimit"`
}

// RoutersConfig is about the other routers.
type RoutersConfig struct {
	// EvictAfter is how long a router may say nothing before this one shuts it out of the
	// shards, so that metadata operations and movements go on without it.
	EvictAfter time.Duration `mapstructure:"evictAfter"`
}

// CursorsConfig is about cursors.
type CursorsConfig struct {
	Timeout time.Duration `mapstructure:"timeout"`
}

// MovesConfig is about data that moves between shards.
type MovesConfig struct {
	// OrphanCleanupDelay is how long a shard keeps what has moved away from it for cursors
	// that still read it; without any it goes at once.
	OrphanCleanupDelay time.Duration `mapstructure:"orphanCleanupDelay"`
	// CopyRate bounds what the movements of this router copy, in MiB a second; 0: no limit.
	CopyRate int64 `mapstructure:"copyRate"`
}

// defaults are all keys with their defaults: what is not here is no key.
func defaults(v *viper.Viper) {
	for key, value := range map[string]any{ // map[string]any: viper takes values of any type
		"listen": "127.0.0.1:27017", "advertise": "", "insecure-no-auth": false, "maxConnections": 0, "maxUnreadReplies": int64(256 << 20),
		"drainTimeout": 10 * time.Second, "http.listen": "", "http.pprof": false,
		"tls.certFile": "", "tls.keyFile": "", "tls.caFile": "", "tls.minVersion": "1.2",
		"log.level": "info", "log.format": "auto", "log.slow": 100 * time.Millisecond,
		"catalog.dsn": "", "catalog.directDSN": "", "catalog.maxConns": 8,
		"shards.keyFile": "", "shards.user": "", "shards.passwordFile": "", "shards.authSource": "admin",
		"shards.tlsCAFile": "", "shards.tlsCertFile": "", "shards.tlsKeyFile": "",
		"shards.maxConns": 200, "shards.maxConnecting": 4, "shards.idleTimeout": 5 * time.Minute,
		"shards.selectTimeout": 20 * time.Second, "shards.allowUntestedVersions": false,
		"ddl.barrierTimeout": 5 * time.Second, "ddl.lockTimeout": 20 * time.Second, "ddl.holdLimit": 30 * time.Second,
		"routers.evictAfter": 10 * time.Second, "cursors.timeout": 10 * time.Minute, "moves.orphanCleanupDelay": 15 * time.Minute,
		"moves.copyRate": 0,
	} {
		v.SetDefault(key, value)
	}
}

// configFlags are the flags that set configuration keys.
func configFlags(f *pflag.FlagSet) {
	f.String("config", "", "YAML file with settings")
	f.String("listen", "127.0.0.1:27017", "address to listen on")
	f.String("advertise", "", "this router's stable name, host:port (default: the listen address, if it is one host and port)")
	f.Bool("insecure-no-auth", false, "listen beyond the loopback address although clients cannot log in yet")
	f.String("catalog.dsn", "", "PostgreSQL connection string of the catalog")
	f.String("shards.keyFile", "", "keyfile of the shards' replica sets")
	f.String("http.listen", "", "address for /metrics, /livez and /readyz, host:port (default: none)")
	f.String("log.level", "info", "trace, debug, info, warn or error")
	f.String("log.format", "auto", "json, console or auto")
}

// Load reads the configuration from flags, environment and file. Unknown keys and
// impossible values are errors that name the key.
func Load(flags *pflag.FlagSet) (*Config, error) {
	v := viper.NewWithOptions(viper.KeyDelimiter("."))
	defaults(v)
	v.SetEnvPrefix("SHARDGATE")
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_", "-", "_"))
	v.AutomaticEnv()
	if err := unknownEnv(v); err != nil {
		return nil, err
	}
	if flags != nil {
		if err := v.BindPFlags(flags); err != nil {
			return nil, err
		}
		if file, _ := flags.GetString("config"); file != "" {
			v.SetConfigFile(file)
			v.SetConfigType("yaml")
			if err := v.ReadInConfig(); err != nil {
				return nil, fmt.Errorf("config %s: %w", file, err)
			}
		}
	}
	if err := unknownKeys(v, flags); err != nil {
		return nil, err
	}
	var c Config
	if err := v.Unmarshal(&c, viper.DecodeHook(mapstructure.StringToTimeDurationHookFunc())); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if c.Advertise == "" {
		c.Advertise = c.Listen
	}
	return &c, c.check()
}

// unknownKeys refuses keys of the file that are none.
func unknownKeys(v *viper.Viper, flags *pflag.FlagSet) error {
	known := viper.New()
	defaults(known)
	for _, key := range v.AllKeys() {
		if flags != nil && flags.Lookup(key) != nil && !v.InConfig(key) {
			continue
		}
		if !known.IsSet(key) {
			return fmt.Errorf("config: unknown key %q", key)
		}
	}
	return nil
}

// unknownEnv refuses SHARDGATE_ variables that set nothing: a misspelt one must not be
// ignored.
func unknownEnv(v *viper.Viper) error {
	known := map[string]bool{"SHARDGATE_CONFIG": true, "SHARDGATE_PG_BIN": true, "SHARDGATE_BINARY": true}
	for _, key := range v.AllKeys() {
		known["SHARDGATE_"+strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))] = true
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "SHARDGATE_") && !known[name] && !strings.HasPrefix(name, "SHARDGATE_TEST_") {
			return fmt.Errorf("environment: unknown variable %s", name)
		}
	}
	return nil
}

func (c *Config) check() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
		return fmt.Errorf("advertise: %w", err)
	}
	// Another router that listens alike would have the same name, and the two would
	// shut each other out.
	if ip := net.ParseIP(host); c.Advertise == c.Listen && (host == "" || ip.IsUnspecified() || port == "" || port == "0") {
		return fmt.Errorf("advertise: must be set to a name of this router alone (host:port): the listen address %s is none", c.Listen)
	}
	if ip := net.ParseIP(host); !c.InsecureNoAuth && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("listen: %s is not a loopback address and clients cannot log in yet: --insecure-no-auth allows it", c.Listen)
	}
	if _, _, err := net.SplitHostPort(c.HTTP.Listen); err != nil && c.HTTP.Listen != "" {
		return fmt.Errorf("http.listen: %w", err)
	}
	if c.HTTP.Pprof && c.HTTP.Listen == "" {
		return errors.New("http.pprof: needs http.listen")
	}
	if _, err := zerolog.ParseLevel(c.Log.Level); err != nil {
		return fmt.Errorf("log.level: %w", err)
	}
	switch c.Log.Format {
	case "auto", "json", "console":
	default:
		return fmt.Errorf("log.format: %q is none of auto, json, console", c.Log.Format)
	}
	if (c.Shards.User == "") != (c.Shards.PasswordFile == "") {
		return errors.New("shards.user: needs shards.passwordFile, and the other way round")
	}
	if c.Shards.User != "" && c.Shards.KeyFile != "" {
		return errors.New("shards.keyFile: cannot be combined with shards.user")
	}
	if (c.Shards.TLSCertFile == "") != (c.Shards.TLSKeyFile == "") {
		return errors.New("shards.tlsCertFile: needs shards.tlsKeyFile, and the other way round")
	}
	if err := c.TLS.check(); err != nil {
		return err
	}
	return c.checkNumbers()
}

func (c *Config) checkNumbers() error {
	for _, n := range []struct {
		key string
		bad bool
	}{
		{"maxConnections", c.MaxConnections < 0},
		{"maxUnreadReplies", c.MaxUnreadReplies < 0},
		{"catalog.maxConns", c.Catalog.MaxConns < 1},
		{"shards.maxConns", c.Shards.MaxConns < 1},
		{"shards.maxConnecting", c.Shards.MaxConnecting < 1},
		{"drainTimeout", c.DrainTimeout < 0},
		{"log.slow", c.Log.Slow < 0},
		{"shards.idleTimeout", c.Shards.IdleTimeout <= 0},
		{"shards.selectTimeout", c.Shards.SelectTimeout <= 0},
		{"ddl.barrierTimeout", c.DDL.BarrierTimeout <= 0},
		{"ddl.lockTimeout", c.DDL.LockTimeout <= 0},
		{"ddl.holdLimit", c.DDL.HoldLimit <= 0},
		{"routers.evictAfter", c.Routers.EvictAfter < minEvictAfter},
		{"cursors.timeout", c.Cursors.Timeout <= 0},
		{"moves.orphanCleanupDelay", c.Moves.OrphanCleanupDelay <= 0},
		{"moves.copyRate", c.Moves.CopyRate < 0 || c.Moves.CopyRate > maxCopyRate},
	} {
		if n.bad {
			return fmt.Errorf("%s: impossible value", n.key)
		}
	}
	return nil
}

// maxCopyRate is more than any disk can do.
const maxCopyRate = 1 << 20

// minEvictAfter leaves a router that is well the time to be heard.
const minEvictAfter = 5 * time.Second

// credential reads the shards' administrator login.
func (c *ShardsConfig) credential() (backend.Credential, error) {
	switch {
	case c.KeyFile != "":
		b, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return backend.Credential{}, fmt.Errorf("shards.keyFile: %w", err)
		}
		// A mongod ignores white space in its keyfile.
		return backend.Credential{User: "__system", Password: strings.Join(strings.Fields(string(b)), ""), Source: "local"}, nil
	case c.User != "":
		b, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return backend.Credential{}, fmt.Errorf("shards.passwordFile: %w", err)
		}
		return backend.Credential{User: c.User, Password: strings.TrimRight(string(b), "\r\n"), Source: c.AuthSource}, nil
	}
	return backend.Credential{}, nil
}

func (c *ShardsConfig) tls() (*tls.Config, error) {
	if c.TLSCAFile == "" && c.TLSCertFile == "" {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSCAFile != "" {
		pool, err := certPool(c.TLSCAFile)
		if err != nil {
			return nil, fmt.Errorf("shards.tlsCAFile: %w", err)
		}
		t.RootCAs = pool
	}
	if c.TLSCertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile)
		if err != nil {
			return nil, fmt.Errorf("shards.tlsCertFile: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// hidden stands where a password was. It needs no escaping in a URL.
const hidden = "xxxxx"

// hidePassword is a DSN without its passwords. A URL that cannot be told apart from
// its password is not shown at all.
func hidePassword(dsn string) string {
	scheme, rest, isURL := strings.Cut(dsn, "://")
	if !isURL {
		// The value is in quotes or not, with escapes.
		setting := regexp.MustCompile(`(password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|\S)+)`)
		return setting.ReplaceAllString(dsn, "${1}"+hidden)
	}
	u, err := url.Parse(dsn)
	if err != nil || u.User == nil && strings.Contains(rest, "@") {
		return scheme + "://" + hidden
	}
	q := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if q.Has(name) {
			q.Set(name, hidden)
			u.RawQuery = q.Encode()
		}
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), hidden)
	}
	return u.String()
}
