package app

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/commands"
)

// TestDashboard: it is well formed, and all that it shows is there to be shown.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../deploy/grafana.json")
	require.NoError(t, err)
	var board struct {
		UID, Title    string
		SchemaVersion int
		Panels        []struct {
			ID          int
			Type, Title string
			GridPos     struct{ H, W, X, Y int }
			Targets     []struct{ RefID, Expr string }
		}
		Templating struct{ List []struct{ Name string } }
	}
	require.NoError(t, json.Unmarshal(text, &board))
	require.NotEmpty(t, board.UID)
	require.NotEmpty(t, board.Title)
	require.NotZero(t, board.SchemaVersion)

	known := map[string]bool{}
	descs := make(chan *prometheus.Desc, 1000)
	(&routerCollector{}).Describe(descs)
	for _, c := range commands.New(commands.Options{}).Collectors() {
		c.Describe(descs)
	}
	close(descs)
	for d := range descs {
		known[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range board.Templating.List {
		variables[v.Name] = true
	}
	ids, shown, taken := map[int]bool{}, map[string]bool{}, map[[2]int]bool{}
	for _, p := range board.Panels {
		require.NotEmpty(t, p.Title)
		require.False(t, ids[p.ID], "the id %d twice", p.ID)
		ids[p.ID] = true
		require.False(t, taken[[2]int{p.GridPos.X, p.GridPos.Y}], "%s lies on another panel", p.Title)
		taken[[2]int{p.GridPos.X, p.GridPos.Y}] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24)
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, strings.Count(target.Expr, "("), strings.Count(target.Expr, ")"), target.Expr)
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				require.True(t, variables[v[1]], "%s in %s", v[1], target.Expr)
			}
			names := regexp.MustCompile(`shardgate_\w+`).FindAllString(target.Expr, -1)
			require.NotEmpty(t, names, target.Expr)
			for _, name := range names {
				name = strings.TrimSuffix(name, "_bucket")
				require.True(t, known[name], "there is no %s", name)
				shown[name] = true
			}
		}
	}
	for name := range known {
		if name != "shardgate_info" && name != "shardgate_unread_closed_total" {
			require.True(t, shown[name], "%s is not shown", name)
		}
	}
}
