package commands

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// counted returns a command's counter by outcome.
func counted(t *testing.T, h *Handler, command, outcome string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(h.Collectors()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "shardgate_operations_total" && l[0].GetValue() == command && l[1].GetValue() == outcome {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// TestErrorsWithoutCodeAreCounted as errors, and help as none.
func TestErrorsWithoutCodeAreCounted(t *testing.T) {
	t.Parallel()
	c := connect(t)
	require.Zero(t, c.run("admin", e("fsync", int32(1)), e("lock", true)).Lookup("ok").Double())
	require.Positive(t, c.run("admin", e("fsync", int32(1)), e("help", true)).Lookup("ok").Double())
	c.stop()
	require.InDelta(t, 1, counted(t, c.handler, "fsync", "error"), 0)
	require.InDelta(t, 1, counted(t, c.handler, "fsync", "ok"), 0)
	row := c.handler.table["fsync"]
	require.EqualValues(t, 2, row.calls.Load())
	require.EqualValues(t, 1, row.failed.Load())
}
