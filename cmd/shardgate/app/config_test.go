package app

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
)

// load reads a configuration from a file's text and arguments.
func load(t *testing.T, file string, args ...string) (*Config, error) {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	configFlags(f)
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--config", path)
	}
	require.NoError(t, f.Parse(args))
	return Load(f)
}

func TestLoadDefaults(t *testing.T) {
	c, err := load(t, "")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:27017", c.Listen)
	require.Equal(t, c.Listen, c.Advertise)
	require.Equal(t, 10*time.Second, c.DrainTimeout)
	require.Equal(t, 200, c.Shards.MaxConns)
	require.Equal(t, 100*time.Millisecond, c.Log.Slow)
	require.False(t, c.InsecureNoAuth)
}

func TestLoadHTTP(t *testing.T) {
	c, err := load(t, "http: {pprof: true}", "--http.listen", "127.0.0.1:1")
	require.NoError(t, err)
	require.Equal(t, HTTPConfig{Listen: "127.0.0.1:1", Pprof: true}, c.HTTP)
	_, err = load(t, "http: {pprof: true}")
	require.ErrorContains(t, err, "http.pprof")
	_, err = load(t, "", "--http.listen", "nowhere")
	require.ErrorContains(t, err, "http.listen")
}

func TestLoadOrder(t *testing.T) {
	file := "listen: 127.0.0.1:1\nlog: {level: debug, slow: 5s}\nddl: {lockTimeout: 3s}\ncatalog: {maxConns: 3}\n"
	c, err := load(t, file)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", c.Listen)
	require.Equal(t, "debug", c.Log.Level)
	require.Equal(t, 5*time.Second, c.Log.Slow)
	require.Equal(t, 3*time.Second, c.DDL.LockTimeout)
	require.Equal(t, int32(3), c.Catalog.MaxConns)

	t.Setenv("SHARDGATE_LISTEN", "127.0.0.1:2")
	t.Setenv("SHARDGATE_LOG_LEVEL", "warn")
	t.Setenv("SHARDGATE_DDL_LOCKTIMEOUT", "4s")
	t.Setenv("SHARDGATE_INSECURE_NO_AUTH", "true")
	t.Setenv("SHARDGATE_CATALOG_MAXCONNS", "5")
	c, err = load(t, file)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:2", c.Listen, "the environment comes before the file")
	require.Equal(t, "warn", c.Log.Level)
	require.Equal(t, 4*time.Second, c.DDL.LockTimeout)
	require.Equal(t, int32(5), c.Catalog.MaxConns)
	require.True(t, c.InsecureNoAuth)

	c, err = load(t, file, "--listen", "127.0.0.1:3", "--log.level", "error")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:3", c.Listen, "flags come first")
	require.Equal(t, "error", c.Log.Level)
}

func TestLoadRefusesUnknownKeys(t *testing.T) {
	for file, key := range map[string]string{
		"listne: 127.0.0.1:1\n":          "listne",
		"catalog: {dns: x}\n":            "catalog.dns",
		"shards: {tls: {caFile: x}}\n":   "shards.tls.cafile",
		"listen: {host: 127.0.0.1}\n":    "listen",
		"catalog: 5\n":                   "catalog",
		"config: other.yaml\n":           "config",
		"maxConnections: many\n":         "maxConnections",
		"drainTimeout: soon\n":           "drainTimeout",
		"shards: {maxConns: {a: 1}}\n":   "shards.maxconns",
		"insecure-no-auth: [yes, maybe]": "insecure-no-auth",
	} {
		_, err := load(t, file)
		require.Error(t, err, file)
		require.Contains(t, strings.ToLower(err.Error()), strings.ToLower(key), file)
	}
}

func TestLoadRefusesUnknownVariables(t *testing.T) {
	t.Setenv("SHARDGATE_CATALOG_DNS", "postgres://u:secret@h/db")
	_, err := load(t, "")
	require.ErrorContains(t, err, "SHARDGATE_CATALOG_DNS")
	require.NotContains(t, err.Error(), "secret")
}

func TestLoadRefusesImpossibleValues(t *testing.T) {
	for _, c := range []struct{ file, key string }{
		{"listen: somewhere\n", "listen"},
		{"log: {level: loud}\n", "log.level"},
		{"log: {format: xml}\n", "log.format"},
		{"log: {slow: -1s}\n", "log.slow"},
		{"maxConnections: -1\n", "maxConnections"},
		{"maxUnreadReplies: -1\n", "maxUnreadReplies"},
		{"drainTimeout: -1s\n", "drainTimeout"},
		{"catalog: {maxConns: 0}\n", "catalog.maxConns"},
		{"shards: {maxConns: 0}\n", "shards.maxConns"},
		{"shards: {maxConnecting: 0}\n", "shards.maxConnecting"},
		{"shards: {idleTimeout: 0s}\n", "shards.idleTimeout"},
		{"shards: {selectTimeout: 0s}\n", "shards.selectTimeout"},
		{"ddl: {barrierTimeout: 0s}\n", "ddl.barrierTimeout"},
		{"ddl: {lockTimeout: 0s}\n", "ddl.lockTimeout"},
		{"ddl: {holdLimit: 0s}\n", "ddl.holdLimit"},
		{"cursors: {timeout: 0s}\n", "cursors.timeout"},
		{"shards: {user: u}\n", "shards.user"},
		{"shards: {passwordFile: p}\n", "shards.passwordFile"},
		{"shards: {user: u, passwordFile: p, keyFile: k}\n", "shards.keyFile"},
		{"shards: {tlsCertFile: c}\n", "shards.tlsCertFile"},
		{"shards: {tlsKeyFile: k}\n", "shards.tlsKeyFile"},
	} {
		_, err := load(t, c.file)
		require.ErrorContains(t, err, c.key, c.file)
	}
}

func TestListenBeyondLoopbackNeedsAFlag(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:1": true, "127.8.9.10:0": true, "localhost:1": true, "[::1]:1": true,
		":27017": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false,
	} {
		_, err := load(t, "", "--listen", listen, "--advertise", "example.org:1")
		if ok {
			require.NoError(t, err, listen)
			continue
		}
		require.ErrorContains(t, err, "--insecure-no-auth", listen)
		_, err = load(t, "", "--listen", listen, "--insecure-no-auth", "--advertise", "example.org:1")
		require.NoError(t, err, listen)
	}
}

// TestAdvertiseIsOneRouters: a name that two routers could have by accident is refused.
func TestAdvertiseIsOneRouters(t *testing.T) {
	for _, listen := range []string{":27017", "0.0.0.0:27017", "[::]:27017", "127.0.0.1:0", "127.0.0.1:"} {
		_, err := load(t, "", "--listen", listen, "--insecure-no-auth")
		require.ErrorContains(t, err, "advertise: ", listen)
		_, err = load(t, "", "--listen", listen, "--insecure-no-auth", "--advertise", listen)
		require.ErrorContains(t, err, "advertise: ", listen)
		c, err := load(t, "", "--listen", listen, "--insecure-no-auth", "--advertise", "router-1:27017")
		require.NoError(t, err, listen)
		require.Equal(t, "router-1:27017", c.Advertise)
	}
	_, err := load(t, "", "--advertise", "router-1")
	require.ErrorContains(t, err, "advertise: ")
}

func TestHidePassword(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"":                                "",
		"postgres://h/db":                 "postgres://h/db",
		"postgres://u@h/db?sslmode=off":   "postgres://u@h/db?sslmode=off",
		"postgres://u:secret@h:5432/db":   "postgres://u:xxxxx@h:5432/db",
		"postgres://h/db?password=secret": "postgres://h/db?password=xxxxx",
		"postgres://u:secret@h/db?sslmode=require&sslpassword=secret": "postgres://u:xxxxx@h/db?sslmode=require&sslpassword=xxxxx",
		// What no URL can hold is not shown at all.
		"postgres://u:sec#ret@h/db": "postgres://xxxxx",
		"postgres://u:12?secret@h":  "postgres://xxxxx",
		"postgres://u:%zsecret@h":   "postgres://xxxxx",

		"host=h user=u dbname=d":               "host=h user=u dbname=d",
		"host=h password=secret user=u":        "host=h password=xxxxx user=u",
		"password = 'the secret' host=h":       "password = xxxxx host=h",
		`password='it\'s secret' host=h`:       `password=xxxxx host=h`,
		`host=h password=the\ secret user=u`:   `host=h password=xxxxx user=u`,
		"sslpassword=secret password='secret'": "sslpassword=xxxxx password=xxxxx",
		"password='secret":                     "password=xxxxx",
	} {
		require.Equal(t, want, hidePassword(dsn), dsn)
	}
}

func TestConfigCommandShowsNoSecretAndCanBeRead(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "keyfile")
	require.NoError(t, os.WriteFile(key, []byte("topsecretkey"), 0o600))
	t.Setenv("SHARDGATE_CATALOG_DSN", "postgres://u:topsecret1@h/db")
	t.Setenv("SHARDGATE_CATALOG_DIRECTDSN", "host=h password='topsecret2'")
	t.Setenv("SHARDGATE_SHARDS_KEYFILE", key)
	cmd := showConfig()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--log.level", "debug"})
	require.NoError(t, cmd.Execute())
	require.NotContains(t, out.String(), "topsecret")
	require.Contains(t, out.String(), key)
	require.Contains(t, out.String(), "drainTimeout: 10s")

	for _, name := range []string{"SHARDGATE_CATALOG_DSN", "SHARDGATE_CATALOG_DIRECTDSN", "SHARDGATE_SHARDS_KEYFILE"} {
		require.NoError(t, os.Unsetenv(name)) // t.Setenv puts it back
	}
	c, err := load(t, out.String())
	require.NoError(t, err)
	require.Equal(t, "debug", c.Log.Level)
	require.Equal(t, key, c.Shards.KeyFile)
	require.Equal(t, 5*time.Minute, c.Shards.IdleTimeout)
}

// TestEveryFieldHasADefault keeps Config and defaults together: a field without a
// default could be set by no file.
func TestEveryFieldHasADefault(t *testing.T) {
	t.Parallel()
	v := viper.New()
	defaults(v)
	var fields []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			key := prefix + f.Tag.Get("mapstructure")
			if f.Type.Kind() == reflect.Struct {
				walk(key+".", f.Type)
				continue
			}
			fields = append(fields, strings.ToLower(key))
		}
	}
	walk("", reflect.TypeFor[Config]())
	require.ElementsMatch(t, fields, v.AllKeys())
}

// TestDocumentation checks that docs/configuration.md has a row with the right default
// for every key.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/configuration.md")
	require.NoError(t, err)
	rows := map[string][]string{}
	for line := range strings.Lines(string(doc)) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") {
			rows[strings.ToLower(strings.Trim(cells[0], "| `"))] = cells
		}
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	configFlags(flags)
	v := viper.New()
	defaults(v)
	for _, key := range v.AllKeys() {
		cells := rows[key]
		require.NotEmpty(t, cells, "%s is not documented", key)
		isFlag := false
		flags.VisitAll(func(f *pflag.Flag) { isFlag = isFlag || strings.EqualFold(f.Name, key) })
		row := strings.Join(cells, " | ")
		require.Equal(t, isFlag, strings.Contains(row, " | yes | "), "flag %s", key)
		want := v.GetString(key)
		if d, ok := v.Get(key).(time.Duration); ok {
			want = strings.TrimSuffix(d.String(), "0s") // "5m0s" is written "5m"
			if d < time.Minute {
				want = d.String()
			}
		}
		if want != "" {
			require.Contains(t, row, "| `"+want+"` |", key)
		}
		delete(rows, key)
	}
	require.Empty(t, rows, "keys that do not exist")
}
