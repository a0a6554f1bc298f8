package compat

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// composeProject loads docker-compose.yml as docker would.
func composeProject(t *testing.T) *types.Project {
	t.Helper()

	opts, err := cli.NewProjectOptions([]string{"../docker-compose.yml"}, cli.WithDefaultConfigPath)
	require.NoError(t, err)
	p, err := opts.LoadProject(t.Context())
	require.NoError(t, err)

	return p
}

// TestComposeFile: what it starts is reached from this machine alone, has a health check, and finds its scripts.
func TestComposeFile(t *testing.T) {
	p := composeProject(t)
	require.ElementsMatch(t, []string{"keys", "catalog", "shard_0", "shard_1", "shard_2", "sets", "router_0", "router_1", "shards"}, p.ServiceNames())

	for name, s := range p.Services {
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, name)
		}

		for needed := range s.DependsOn {
			require.Contains(t, p.Services, needed)
		}

		switch {
		case len(s.Entrypoint) > 0:
			require.FileExists(t, filepath.Join("..", s.Entrypoint[1]))
		case s.Build == nil:
			require.NotEmpty(t, s.HealthCheck.Test, name)
		}
	}

	for _, name := range []string{"router_0", "router_1"} {
		s := p.Services[name]
		require.Equal(t, name+":27017", *s.Environment["SHARDGATE_ADVERTISE"])

		cmd := exec.CommandContext(t.Context(), clustertest.Binary(t), "config")
		for key, value := range s.Environment {
			cmd.Env = append(cmd.Environ(), key+"="+*value)
		}

		require.Contains(t, output(t, cmd), "listen: 0.0.0.0:27017", "its settings are settings")
	}
}

// TestDockerfile builds the program as the Dockerfile does: it needs nothing of the image it is in.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	require.NoError(t, err)

	build := regexp.MustCompile(`RUN (CGO_ENABLED=0) go (build .*) -o /shardgate (\./cmd/shardgate)\n`).FindStringSubmatch(string(text))
	require.NotNil(t, build)

	program := filepath.Join(t.TempDir(), "shardgate")
	cmd := exec.CommandContext(t.Context(), "go", append(strings.Fields(build[2]), "-o", program, build[3])...)
	cmd.Dir = ".."
	cmd.Env = append(cmd.Environ(), build[1])
	output(t, cmd)

	f, err := elf.Open(program)
	require.NoError(t, err)

	defer f.Close()

	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it is not static")
	}

	require.Contains(t, output(t, exec.CommandContext(t.Context(), program, "version")), "shardgate")

	check := regexp.MustCompile(`HEALTHCHECK .* CMD (\[.*\])`).FindStringSubmatch(string(text))
	require.NotNil(t, check)

	var words []string

	require.NoError(t, json.Unmarshal([]byte(check[1]), &words))
	require.Equal(t, "/shardgate", words[0])
	require.Equal(t, "ok\n", output(t, exec.CommandContext(t.Context(), program, append(words[1:], "--uri", shared.cluster.RouterURI(0))...)))
	require.Error(t, exec.CommandContext(t.Context(), program, append(words[1:], "--uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100")...).Run())
}

// port is the port of an address.
func portOf(t *testing.T, addr string) string {
	t.Helper()

	_, port, ok := strings.Cut(addr, ":")
	require.True(t, ok)

	return port
}

// TestComposeHealthChecks runs the checks as they are written, with the addresses of real servers.
func TestComposeHealthChecks(t *testing.T) {
	p := composeProject(t)
	shell := clustertest.Mongosh(t)
	t.Setenv("PATH", filepath.Dir(shell)+":"+os.Getenv("PATH"))

	run := func(service string, more ...string) error {
		test := p.Services[service].HealthCheck.Test
		require.Equal(t, "CMD", test[0])

		cmd := exec.CommandContext(opContext(t, opLimit), test[1], append(test[2:], more...)...)
		cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir())

		return cmd.Run()
	}

	require.NoError(t, run("shard_0", "--port", portOf(t, shared.cluster.Shard(0).Member(0).Addr())))
	require.Error(t, run("shard_0", "--port", "1"))

	ready, err := exec.LookPath("pg_isready")
	if err != nil { // the fetched PostgreSQL is without it
		t.Skip("pg_isready is not here")
	}

	require.NotEmpty(t, ready)
	require.NoError(t, run("catalog", "-h", "127.0.0.1", "-p", strconv.Itoa(shared.cluster.Postgres().Port())))
	require.Error(t, run("catalog", "-h", "127.0.0.1", "-p", "1"))
}

// TestComposeScripts runs the steps that set up the shards, twice: what is done already stays.
func TestComposeScripts(t *testing.T) {
	keys, me := t.TempDir(), strconv.Itoa(os.Getuid())
	t.Setenv("PATH", filepath.Dir(clustertest.Mongosh(t))+":"+os.Getenv("PATH"))
	t.Setenv("HOME", t.TempDir())

	script := func(name, set string, args ...string) string {
		t.Helper()

		cmd := exec.CommandContext(opContext(t, opLimit), "bash", append([]string{"../deploy/" + name}, args...)...)
		cmd.Env = append(cmd.Environ(), "KEYS="+keys, "MONGOD_USER="+me, "ROUTER_USER="+me, "SET="+set)

		return output(t, cmd)
	}

	script("keys.sh", "")

	key, err := os.ReadFile(filepath.Join(keys, "mongod"))
	require.NoError(t, err)
	script("keys.sh", "")

	again, err := os.ReadFile(filepath.Join(keys, "router"))
	require.NoError(t, err)
	require.Equal(t, key, again)

	addr := startMongod(t, "--replSet", "made", "--keyFile", filepath.Join(keys, "mongod"))
	eventually(t, time.Minute, "the set is made", func() error {
		return exec.CommandContext(t.Context(), "bash", "-c", "</dev/tcp/127.0.0.1/"+portOf(t, addr)).Run()
	})

	for range 2 {
		require.Contains(t, script("sets.sh", "made", addr), addr+" is a primary")
		require.Contains(t, script("shards.sh", "shard_0", shared.cluster.RouterURI(0), shared.cluster.Shard(0).Member(0).Addr()), `"shardAdded":"shard_0"`)
	}
}
