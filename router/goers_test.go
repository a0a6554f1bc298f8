package router

import (
	"bytes"
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// TestPanicInTheBackground ends neither the router nor the wait for it.
func TestPanicInTheBackground(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := &Router{log: zerolog.New(&log)}
	r.wg.panicked = r.panicked
	r.wg.Go(func() { panic("by test") })
	r.wg.Wait()
	require.Contains(t, log.String(), "by test")
}

// TestKeptAfterAPanic: what the router cannot do without is run anew, until it returns or
// the router stops.
func TestKeptAfterAPanic(t *testing.T) {
	t.Parallel()
	r := &Router{log: zerolog.Nop()}
	r.wg.panicked = r.panicked
	ctx, cancel := context.WithCancel(t.Context())
	n, ends := 0, 0
	r.wg.Keep(t.Context(), func() {
		if n++; n < 3 {
			panic("by test")
		}
	})
	r.wg.Keep(ctx, func() {
		if ends++; ends == 2 {
			cancel()
		}
		panic("by test")
	})
	r.wg.Wait()
	require.Equal(t, 3, n)
	require.Equal(t, 2, ends)
}
