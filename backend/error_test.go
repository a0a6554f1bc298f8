package backend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// An attempt that the operation's own limit ended is 50 whoever noticed it, the context
// or the socket; any other failure is 6.
func TestErrorOfATimeLimit(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	require.NoError(t, a.SetDeadline(time.Unix(1, 0)))
	_, socket := a.Read(make([]byte, 1))
	for _, tt := range []struct {
		err  error
		code mongoerr.Code
	}{
		{socket, mongoerr.MaxTimeMSExpired},
		{fmt.Errorf("dial: %w", context.DeadlineExceeded), mongoerr.MaxTimeMSExpired},
		{errors.New("connection reset"), mongoerr.HostUnreachable},
	} {
		e := (&Shard{ID: "s"}).failed("h:1", true, tt.err)
		require.Equal(t, tt.code, e.Client().Code, "%v", tt.err)
		require.Equal(t, tt.code == mongoerr.MaxTimeMSExpired, e.Timeout())
	}
}
