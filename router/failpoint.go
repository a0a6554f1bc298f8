package router

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// failpoint stops at a step while a file of its name, in which this router's name is, is in
// the folder of failpoints, for tests: it says so by another file. Without the folder it
// does nothing.
func (r *Router) failpoint(ctx context.Context, step string) {
	if r.opts.Failpoints == "" {
		return
	}
	file := filepath.Join(r.opts.Failpoints, step)
	if who, err := os.ReadFile(file); err != nil || string(who) != r.opts.Name {
		return
	}
	if err := os.WriteFile(file+".reached", []byte(r.opts.Name), 0o600); err != nil {
		r.log.Error().Err(err).Msg("failpoint")
	}
	for {
		if _, err := os.Stat(file); err != nil || r.isStopped() || !sleep(ctx, 5*time.Millisecond) {
			return
		}
	}
}

func (r *Router) isStopped() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}
