package router

import (
	"bytes"
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
