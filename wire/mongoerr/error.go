package mongoerr

import (
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// The labels that drivers act on (MONGOS.md §5.2).
const (
	LabelTransientTransaction = "TransientTransactionError"
	LabelRetryableWrite       = "RetryableWriteError"
	LabelResumableStream      = "ResumableChangeStreamError"
)

// String returns the codeName, e.g. "BadValue" or "Location40415".
func (c Code) String() string {
	if n := c.name(); n != "" {
		return n
	}
	return "Location" + strconv.Itoa(int(c))
}

// Error is a command's failure as a client sees it. A Code of 0 makes a reply
// without code and codeName, as some old commands send (MONGOS.md §5.4).
type Error struct {
	Code    Code
	Message string
	Labels  []string
	// Extra holds complete BSON elements that go into the reply as they are.
	Extra []byte
	cause error
}

// New returns an Error with the given code and text.
func New(code Code, msg string) *Error { return &Error{Code: code, Message: msg} }

// Newf is New with a format.
func Newf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an Error that carries err as its cause, for errors.Is, and names
// it in its text.
func Wrap(code Code, err error, msg string) *Error {
	return &Error{Code: code, Message: msg + " :: caused by :: " + err.Error(), cause: err}
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// WithLabel adds a label and returns e.
func (e *Error) WithLabel(label string) *Error {
	e.Labels = append(e.Labels, label)
	return e
}

// HasLabel reports whether the label is on the error.
func (e *Error) HasLabel(label string) bool {
	for _, l := range e.Labels {
		if l == label {
			return true
		}
	}
	return false
}

// As returns err as an *Error: itself where it is one, else code 1 InternalError
// with its text.
func As(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Wrap(InternalError, err, "internal error")
}

// CodeOf returns the code of err, 0 where it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// AppendElements appends the elements of an ok:0 reply, without the document's
// frame: ok, errmsg, code, codeName, extra fields, errorLabels.
func (e *Error) AppendElements(dst []byte) []byte {
	dst = bsoncore.AppendDoubleElement(dst, "ok", 0)
	dst = bsoncore.AppendStringElement(dst, "errmsg", e.Message)
	if e.Code != 0 {
		dst = bsoncore.AppendInt32Element(dst, "code", int32(e.Code))
		dst = bsoncore.AppendStringElement(dst, "codeName", e.Code.String())
	}
	dst = append(dst, e.Extra...)
	if len(e.Labels) > 0 {
		var at int32
		at, dst = bsoncore.AppendArrayElementStart(dst, "errorLabels")
		for i, l := range e.Labels {
			dst = bsoncore.AppendStringElement(dst, strconv.Itoa(i), l)
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
	}
	return dst
}

// NotPrimary reports whether the code says that a node is not, or no longer, a
// primary or is recovering (drivers' "not writable primary" and "node is
// recovering" sets).
func (c Code) NotPrimary() bool {
	switch c {
	case NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary,
		PrimarySteppedDown, InterruptedDueToReplStateChange:
		return true
	default:
		return c.Shutdown()
	}
}

// Shutdown reports whether the code says that a node is going away.
func (c Code) Shutdown() bool { return c == ShutdownInProgress || c == InterruptedAtShutdown }

// Retriable reports whether a read, or a write with a transaction number, may be
// sent again after this code (MONGOS.md §5.2, RetriableError).
func (c Code) Retriable() bool {
	switch c {
	case HostUnreachable, HostNotFound, NetworkTimeout, ReadConcernMajorityNotAvailableYet,
		ExceededTimeLimit, SocketException, ConnectionPoolExpired:
		return true
	default:
		return c.NotPrimary()
	}
}

// TransientInTransaction reports whether the code, met inside a transaction,
// carries the TransientTransactionError label (MONGOS.md §5.2).
func (c Code) TransientInTransaction() bool {
	switch c {
	case WriteConflict, LockTimeout, PreparedTransactionInProgress, NoSuchTransaction,
		SnapshotTooOld, SnapshotUnavailable, StaleChunkHistory, MigrationConflict,
		StaleConfig, StaleEpoch, StaleDbVersion:
		return true
	default:
		return c.Retriable()
	}
}
