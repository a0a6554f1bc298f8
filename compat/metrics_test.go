package compat

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// aside runs a router beside the cluster's, with further settings as environment variables, until the test's end; it returns its clients' address
// and that of its metrics, and a function that asks it to stop and returns when it has.
func aside(t *testing.T, name string, env ...string) (clients, probes string, stop func()) {
	t.Helper()

	config := filepath.Join(shared.cluster.Dir(), "router-0.yaml")
	cmd := exec.CommandContext(t.Context(), clustertest.Binary(t), "serve", "--config", config,
		"--listen", "127.0.0.1:0", "--advertise", name, "--http.listen", "127.0.0.1:0", "--log.format", "json")
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }

	lines, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	ended := make(chan struct{})
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
	}
	addrs := make(chan [2]string, 1)

	var said strings.Builder

	go func() {
		defer close(ended)

		var found [2]string

		for scan := bufio.NewScanner(lines); scan.Scan(); {
			var line struct{ Message, Listen string }
			said.Write(append(scan.Bytes(), '\n'))

			if json.Unmarshal(scan.Bytes(), &line) != nil {
				continue
			}

			switch line.Message {
			case "serving":
				found[0] = line.Listen
			case "serving metrics and health":
				found[1] = line.Listen
				addrs <- found
			}
		}

		_ = cmd.Wait()
	}()
	t.Cleanup(stop)

	select {
	case found := <-addrs:
		return found[0], found[1], stop
	case <-ended:
		t.Fatal("the router ended: " + said.String())
	case <-time.After(recoverLimit):
		t.Fatal("the router did not start")
	}

	return "", "", nil
}

// page asks for a page.
func page(t *testing.T, url string) (int, string) {
	t.Helper()

	req, err := http.NewRequestWithContext(opContext(t, opLimit), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)

	defer resp.Body.Close()

	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)

	return resp.StatusCode, string(body)
}

// TestMetricsAndHealth: what operators read is true of what clients did.
func TestMetricsAndHealth(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	addr, probes, stop := aside(t, "metrics:1", "SHARDGATE_HTTP_PPROF=true")
	require.Contains(t, probes, "127.0.0.1:")
	coll := connect(t, "mongodb://"+addr+"/?directConnection=true").Database(db).Collection("c")

	for i := range 7 {
		_, err := coll.InsertOne(opContext(t, opLimit), bson.D{{"_id", i}})
		require.NoError(t, err)
	}

	_, err := coll.InsertOne(opContext(t, opLimit), bson.D{{"_id", 1}})
	require.Error(t, err)

	cur, err := coll.Find(opContext(t, opLimit), bson.D{})
	require.Len(t, all(t, cur, err), 7)
	require.Equal(t, 26, code(coll.Database().RunCommand(opContext(t, opLimit), bson.D{{"collMod", "none"}}).Err()))

	status, text := page(t, "http://"+probes+"/metrics")
	require.Equal(t, http.StatusOK, status)

	for _, want := range []string{
		`shardgate_operations_total{command="insert",outcome="ok"} 8`,
		`shardgate_operations_total{command="collMod",outcome="error"} 1`,
		`shardgate_errors_total{code="NamespaceNotFound"} 1`,
		`shardgate_operation_seconds_count{command="find"} 1`,
		`shardgate_scatter_width_bucket{le="2"} 8`,
		`shardgate_catalog_away 0`,
		`shardgate_movements{state="copying"} 0`,
		`shardgate_gate_waiting 0`,
		`shardgate_info{name="metrics:1"`,
		`go_goroutines `,
	} {
		require.Contains(t, text, want)
	}

	for _, s := range shardNames() {
		require.Contains(t, text, fmt.Sprintf("shardgate_shard_has_primary{shard=%q} 1", s))
		require.Contains(t, text, fmt.Sprintf("shardgate_shard_seconds_count{shard=%q}", s))
		require.Contains(t, text, fmt.Sprintf("shardgate_shard_connections{member=%q,shard=%q,state=\"idle\"}",
			shared.cluster.Shard(shardIndex(t, s)).Member(0).Addr(), s))
	}

	status, text = page(t, "http://"+probes+"/livez")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok\n", text)

	status, text = page(t, "http://"+probes+"/readyz")
	require.Equal(t, http.StatusOK, status)

	var ready struct {
		Ready  bool
		Shards map[string]bool
	}

	require.NoError(t, json.Unmarshal([]byte(text), &ready))
	require.True(t, ready.Ready)
	require.Equal(t, len(shardNames()), len(ready.Shards))

	status, text = page(t, "http://"+probes+"/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, status)
	require.True(t, strings.HasPrefix(text, "goroutine profile"))
	stop()
}
