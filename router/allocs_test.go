//go:build !race

package router

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// pointFindAllocs is what a point find allocates in router and backend (BenchmarkPointFind). It may become less.
const pointFindAllocs = 2

// TestPointFindAllocates keeps that so. The race detector allocates, and empties pools: `make gate` runs this without it.
func TestPointFindAllocates(t *testing.T) {
	f := finder{r: benchRouter(t, 100)}
	msg := findMessage(t)
	allocs := testing.AllocsPerRun(2000, func() {
		require.NoError(t, f.find(t.Context(), msg))
	})
	require.LessOrEqual(t, allocs, float64(pointFindAllocs))
}
