package server

import (
	"fmt"

	"github.com/shardgate/shardgate/wire"
)

func protocolErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{wire.ErrProtocol}, args...)...)
}
