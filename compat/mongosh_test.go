package compat

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

const clientLimit = 120 * time.Second

// mongosh runs the shell and returns what it printed.
func mongosh(t *testing.T, args ...string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	t.Cleanup(cancel)

	cmd := exec.CommandContext(ctx, clustertest.Mongosh(t), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_COLOR=1")

	return output(t, cmd)
}

// output runs a client program, which must succeed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()

	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second

	err := cmd.Run()
	require.NoError(t, err, "%s:\n%s", cmd, out.String())

	return out.String()
}

func TestAzureWalkthrough(t *testing.T) {
	out := mongosh(t, "--quiet", "--norc", shared.cluster.RouterURI(0),
		"--eval", "const other = '"+shared.cluster.RouterURI(1)+"'", "--file", "azure/walkthrough.js")
	require.Contains(t, out, "walkthrough done")

	_, status, _ := strings.Cut(out, "== sh.status\n")
	status, distribution, _ := strings.Cut(status, "== getShardDistribution\n")

	for _, want := range []string{
		`shards`, `shard_0`, `shard_1`, `shard_2`, `active mongoses`, `balancer`, `databases`, `cosmicworks.employee`, `cosmicworks.products`,
	} {
		require.Contains(t, status, want)
	}

	require.NotContains(t, status, "cosmicworks.notes", "what is not sharded is not in sh.status()")

	for _, want := range []string{`Shard shard_0 at shard_0/127\.0\.0\.1:\d+`, `Shard shard_2 at`, `Totals`, `"?docs"?:\s*499`} {
		require.Regexp(t, regexp.MustCompile(want), distribution)
	}
}

// What a person sees who starts the shell and types the first things.
func TestInteractiveMongosh(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".people", bson.D{{"name", "hashed"}})

	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	t.Cleanup(cancel)

	cmd := exec.CommandContext(ctx, clustertest.Mongosh(t), "--norc", shared.cluster.RouterURI(1))
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_COLOR=1", "TERM=dumb")
	cmd.Stdin = strings.NewReader("show dbs\nuse " + db + "\ndb.people.insertOne({name: 'Ann'})\ndb.people.find({name: 'Ann'})\n" +
		"db.plain.insertOne({a: 1})\nshow collections\nsh.status()\ndb.people.find({name: {$exists: true}}).count()\nshow dbs\nexit\n")

	out := output(t, cmd)
	require.Contains(t, out, "switched to db "+db)
	require.Contains(t, out, "[direct: mongos]")
	require.Contains(t, out, "acknowledged: true")
	require.Contains(t, out, "name: 'Ann'")
	require.Regexp(t, `(?m)(^|> )people\s*\nplain\s*$`, out)
	require.Regexp(t, `(?m)(^|> )`+db+`\s+[\d.]+ [KM]iB`, out)
	require.Contains(t, out, "collections")

	// The machine's own warnings (Node's age) come before the first prompt.
	_, out, _ = strings.Cut(out, "[direct: mongos]")
	for _, bad := range []string{"Error", "WARNING", "on-Genuine", "on-genuine"} {
		require.NotContains(t, out, bad)
	}
}
