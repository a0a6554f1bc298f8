package app

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

func TestVersionCommand(t *testing.T) {
	t.Parallel()
	cmd := version()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(nil)
	require.NoError(t, cmd.Execute())
	require.Regexp(t, `^shardgate \S+ \(go\S+ \w+/\w+\)\n$`, out.String())
}

func TestWhereHashed(t *testing.T) {
	t.Parallel()
	key, err := bson.Marshal(bson.D{{Key: "city", Value: "hashed"}})
	require.NoError(t, err)
	p, err := shardkey.ParsePattern(key)
	require.NoError(t, err)
	c := catalog.CollectionChunks{
		Collection: catalog.Collection{NS: "app.users", Kind: catalog.KindSharded, Key: key},
		Chunks:     shardkey.InitialChunks(p, 6, []string{"shard_0", "shard_1", "shard_2"}, "shard_0", 1),
	}
	cmd := where()
	var out bytes.Buffer
	cmd.SetOut(&out)
	require.NoError(t, explainKey(cmd, c, `{"city": "Oslo"}`))
	require.Equal(t, `shard:  shard_2
chunk:  [{ city: 6148914691236517204 }, { city: MaxKey })
key:    { city: "hashed" } as { city: 7030531904285888099 }
why:    the key lies in this chunk, which shard_2 owns
`, out.String())
	require.ErrorContains(t, explainKey(cmd, c, "Oslo"), "KEY")
	require.Error(t, explainKey(cmd, c, `{"city": ["Oslo"]}`))
}

func TestWhereUnsharded(t *testing.T) {
	t.Parallel()
	c := catalog.CollectionChunks{
		Collection: catalog.Collection{NS: "app.log", Kind: catalog.KindUnsharded},
		Chunks:     shardkey.SingleChunk("shard_1", 1),
	}
	cmd := where()
	var out bytes.Buffer
	cmd.SetOut(&out)
	require.NoError(t, explainKey(cmd, c, `{}`))
	require.Equal(t, "shard:  shard_1\nwhy:    app.log is not sharded: all of it is there\n", out.String())
	require.ErrorContains(t, explainKey(cmd, catalog.CollectionChunks{Collection: catalog.Collection{NS: "app.v", Kind: catalog.KindView}}, `{}`), "view")
}

func TestStatusTable(t *testing.T) {
	t.Parallel()
	cmd := status()
	var out bytes.Buffer
	cmd.SetOut(&out)
	s := &clusterStatus{
		Version: 9,
		Routers: []routerStatus{
			{Name: "a:1", Number: 1, Version: "dev", Uptime: "5s"},
			{Name: "b:1", Number: 2, Version: "dev", Uptime: "6s", Lag: 3, Silent: true},
		},
		Shards: []shardStatus{{ID: "shard_0", Host: "s/h:1", Version: "6.0.5", Capabilities: []string{"prepareTransaction"}, Chunks: 2, Draining: true, Reachable: true}},
	}
	require.NoError(t, s.table(cmd))
	require.Equal(t, `catalog version 9

ROUTER  NUMBER  VERSION  UP  LAG  STATE
a:1     1       dev      5s  0    alive
b:1     2       dev      6s  3    silent

SHARD    HOST   MONGODB  CAPABILITIES        CHUNKS  UNSHARDED  STATE
shard_0  s/h:1  6.0.5    prepareTransaction  2       0          ok, draining
`, out.String())
}

func TestCommandsWithoutACatalog(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"status"}, {"where", "app.users", "{}"}} {
		for _, cmd := range Commands() {
			if cmd.Name() != args[0] {
				continue
			}
			cmd.SetArgs(args[1:])
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			require.ErrorContains(t, cmd.Execute(), "catalog.dsn")
		}
	}
	_, err := New(t.Context(), &Config{}, Logger(LogConfig{Level: "info"}, os.Stderr))
	require.ErrorContains(t, err, "catalog.dsn")
}

// TestNewBindsFirst: where the port is taken, by this very router perhaps, the catalog is
// not touched.
func TestNewBindsFirst(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c := Config{Listen: l.Addr().String(), Catalog: CatalogConfig{DSN: "no DSN at all"}}
	_, err = New(t.Context(), &c, Logger(LogConfig{Level: "info"}, os.Stderr))
	require.ErrorContains(t, err, "listen: ")
	require.ErrorContains(t, err, l.Addr().String())
}

// TestNewThatFailsGivesThePortBack when the catalog cannot be had.
func TestNewThatFailsGivesThePortBack(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := Config{Listen: l.Addr().String(), Catalog: CatalogConfig{DSN: "no DSN at all", MaxConns: 1}}
	l.Close()
	_, err = New(t.Context(), &c, Logger(LogConfig{Level: "info"}, os.Stderr))
	require.Error(t, err)
	l, err = net.Listen("tcp", c.Listen)
	require.NoError(t, err)
	l.Close()
}

func TestCredential(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("ab cd\n ef\r\n"), 0o600))
	c, err := (&ShardsConfig{KeyFile: file}).credential()
	require.NoError(t, err)
	require.Equal(t, backend.Credential{User: "__system", Password: "abcdef", Source: "local"}, c, "white space does not count")
	c, err = (&ShardsConfig{User: "u", PasswordFile: file, AuthSource: "admin"}).credential()
	require.NoError(t, err)
	require.Equal(t, backend.Credential{User: "u", Password: "ab cd\n ef", Source: "admin"}, c, "only the last line's end does not count")
	c, err = (&ShardsConfig{}).credential()
	require.NoError(t, err)
	require.True(t, c.None())
	for _, s := range []ShardsConfig{{KeyFile: file + "x"}, {User: "u", PasswordFile: file + "x"}} {
		_, err = s.credential()
		require.ErrorContains(t, err, "File")
	}
}

func TestTLSFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pem")
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	for key, s := range map[string]ShardsConfig{
		"shards.tlsCAFile":   {TLSCAFile: file},
		"shards.tlsCertFile": {TLSCertFile: file, TLSKeyFile: file},
	} {
		_, err := s.tls()
		require.ErrorContains(t, err, key)
	}
	_, err := (&ShardsConfig{TLSCAFile: file + "x"}).tls()
	require.ErrorContains(t, err, "shards.tlsCAFile")
	none, err := (&ShardsConfig{}).tls()
	require.NoError(t, err)
	require.Nil(t, none)
}
