package backend

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Error is a failure to get a shard's reply at all. What a shard replies, errors
// included, is a reply and no Error.
type Error struct {
	Shard string
	Addr  string // the member, where one was chosen
	// Sent says that bytes of the request may have reached the shard, so that it
	// may run, or have run, without our knowing the outcome.
	Sent bool
	// Conn is the name of the connection on which it was sent: appName in the member's
	// $currentOp, until the member has done with all that came on it.
	Conn string
	code mongoerr.Code
	err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Addr == "" {
		return fmt.Sprintf("shard %s: %v", e.Shard, e.err)
	}
	return fmt.Sprintf("shard %s, %s: %v", e.Shard, e.Addr, e.err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// SafeToRetry reports whether the shard certainly did not get the request.
func (e *Error) SafeToRetry() bool { return !e.Sent }

// Timeout reports whether the operation's own time limit ended the attempt.
func (e *Error) Timeout() bool { return isTimeout(e.err) }

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// Client returns the error that a client is to see: 50 for a deadline, 133 where
// no member could be chosen, else 6 HostUnreachable (MONGOS.md §5.4).
func (e *Error) Client() *mongoerr.Error {
	switch {
	case e.Timeout():
		return mongoerr.Wrap(mongoerr.MaxTimeMSExpired, e, "operation exceeded time limit")
	case e.code == mongoerr.FailedToSatisfyReadPreference:
		return mongoerr.Wrap(e.code, e, "Could not find host matching read preference for set "+e.Shard)
	default:
		return mongoerr.Wrap(mongoerr.HostUnreachable, e, "Write results unavailable")
	}
}

func (s *Shard) failed(addr string, sent bool, err error) *Error {
	return &Error{Shard: s.ID, Addr: addr, Sent: sent, code: mongoerr.HostUnreachable, err: err}
}
