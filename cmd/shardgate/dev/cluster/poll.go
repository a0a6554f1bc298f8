package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollEvery is how often a condition is looked at.
const pollEvery = 40 * time.Millisecond

// poll calls check until it returns nil, or an error marked by giveUp, or ctx ends; then its last error is returned.
func poll(ctx context.Context, check func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()

	for {
		err := check(ctx)

		var final *finalError
		if err == nil || errors.As(err, &final) {
			return err
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// finalError tells poll that waiting will not help.
type finalError struct{ error }

// Unwrap returns the reason.
func (e *finalError) Unwrap() error {
	return e.error
}

// giveUp marks an error that waiting will not cure.
func giveUp(err error) error {
	return &finalError{err}
}
