package mongoerr

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestCodeNames(t *testing.T) {
	t.Parallel()
	for code, name := range map[Code]string{
		1: "InternalError", 2: "BadValue", 6: "HostUnreachable", 9: "FailedToParse", 11: "UserNotFound", 13: "Unauthorized",
		14: "TypeMismatch", 26: "NamespaceNotFound", 43: "CursorNotFound", 46: "LockBusy", 48: "NamespaceExists",
		50: "MaxTimeMSExpired", 59: "CommandNotFound", 61: "ShardKeyNotFound", 64: "WriteConcernFailed", 70: "ShardNotFound",
		72: "InvalidOptions", 73: "InvalidNamespace", 89: "NetworkTimeout", 91: "ShutdownInProgress", 112: "WriteConflict",
		133: "FailedToSatisfyReadPreference", 143: "CursorInUse", 189: "PrimarySteppedDown", 225: "TransactionTooOld",
		238: "NotImplemented", 251: "NoSuchTransaction", 263: "OperationNotSupportedInTransaction", 322: "APIVersionError",
		323: "APIStrictError", 352: "UnsupportedOpQueryCommand", 361: "CollectionUUIDMismatch", 10107: "NotWritablePrimary",
		11000: "DuplicateKey", 11600: "InterruptedAtShutdown", 11602: "InterruptedDueToReplStateChange",
		13388: "StaleConfig", 13435: "NotPrimaryNoSecondaryOk", 50768: "NotARetryableWriteCommand",
		40415: "Location40415", 40571: "Location40571", 5739101: "Location5739101",
	} {
		require.Equal(t, name, code.String())
	}
}

// TestNamesAreUnique: no two codes share a name, and a name is a word.
func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[string]Code{}
	word := regexp.MustCompile(`^[A-Z][A-Za-z_]+$`)
	n := 0
	for c := range Code(60_000) {
		name := c.name()
		if name == "" {
			continue
		}
		require.NotContains(t, seen, name, "%d", c)
		require.Regexp(t, word, name)
		seen[name] = c
		n++
	}
	require.Greater(t, n, 100)
}

// elements is an ok:0 reply's document.
func elements(t *testing.T, e *Error) bson.D {
	t.Helper()
	b := append([]byte{0, 0, 0, 0}, e.AppendElements(nil)...)
	b = append(b, 0)
	b[0], b[1] = byte(len(b)), byte(len(b)>>8)
	var d bson.D
	require.NoError(t, bson.Unmarshal(b, &d))
	return d
}

func TestAppendElements(t *testing.T) {
	t.Parallel()
	require.Equal(t, bson.D{
		{Key: "ok", Value: 0.0},
		{Key: "errmsg", Value: "no 5"},
		{Key: "code", Value: int32(2)},
		{Key: "codeName", Value: "BadValue"},
	}, elements(t, Newf(BadValue, "no %d", 5)))

	e := New(40415, "x").WithLabel(LabelTransientTransaction).WithLabel(LabelRetryableWrite)
	extra, err := bson.Marshal(bson.D{{Key: "info", Value: "mongos"}})
	require.NoError(t, err)
	e.Extra = extra[4 : len(extra)-1]
	require.Equal(t, bson.D{
		{Key: "ok", Value: 0.0},
		{Key: "errmsg", Value: "x"},
		{Key: "code", Value: int32(40415)},
		{Key: "codeName", Value: "Location40415"},
		{Key: "info", Value: "mongos"},
		{Key: "errorLabels", Value: bson.A{"TransientTransactionError", "RetryableWriteError"}},
	}, elements(t, e))
	require.True(t, e.HasLabel(LabelRetryableWrite))
	require.False(t, e.HasLabel(LabelResumableStream))

	require.Equal(t, bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "old"}}, elements(t, New(0, "old")), "code 0: none")
}

func TestErrorsCarryTheirCause(t *testing.T) {
	t.Parallel()
	e := Wrap(MaxTimeMSExpired, context.DeadlineExceeded, "too slow")
	require.ErrorIs(t, e, context.DeadlineExceeded)
	require.Equal(t, "too slow :: caused by :: context deadline exceeded", e.Error())
	outer := fmt.Errorf("outer: %w", e)
	require.Same(t, e, As(outer))
	require.Equal(t, MaxTimeMSExpired, CodeOf(outer))
	plain := errors.New("plain")
	require.Equal(t, InternalError, As(plain).Code)
	require.ErrorIs(t, As(plain), plain)
	require.Zero(t, CodeOf(plain))
	require.Zero(t, CodeOf(nil))
}

func TestKinds(t *testing.T) {
	t.Parallel()
	for code, want := range map[Code]struct{ notPrimary, shutdown, retriable, transient bool }{
		BadValue: {}, DuplicateKey: {}, MaxTimeMSExpired: {}, NotImplemented: {},
		NotWritablePrimary:              {true, false, true, true},
		NotPrimaryNoSecondaryOk:         {true, false, true, true},
		NotPrimaryOrSecondary:           {true, false, true, true},
		PrimarySteppedDown:              {true, false, true, true},
		InterruptedDueToReplStateChange: {true, false, true, true},
		ShutdownInProgress:              {true, true, true, true},
		InterruptedAtShutdown:           {true, true, true, true},
		HostUnreachable:                 {false, false, true, true},
		NetworkTimeout:                  {false, false, true, true},
		ExceededTimeLimit:               {false, false, true, true},
		SocketException:                 {false, false, true, true},
		WriteConflict:                   {false, false, false, true},
		NoSuchTransaction:               {false, false, false, true},
		SnapshotUnavailable:             {false, false, false, true},
		StaleConfig:                     {false, false, false, true},
	} {
		require.Equal(t, want.notPrimary, code.NotPrimary(), "%s", code)
		require.Equal(t, want.shutdown, code.Shutdown(), "%s", code)
		require.Equal(t, want.retriable, code.Retriable(), "%s", code)
		require.Equal(t, want.transient, code.TransientInTransaction(), "%s", code)
	}
}
