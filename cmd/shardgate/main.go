// Command shardgate is a shard router that speaks MongoDB's wire protocol; see
// README.md and docs/architecture.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shardgate/shardgate/cmd/shardgate/app"
	"github.com/shardgate/shardgate/cmd/shardgate/dev"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "shardgate",
		Short:         "a shard router that speaks MongoDB's wire protocol",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(app.Commands()...)
	root.AddCommand(dev.Command())
	if err := root.ExecuteContext(ctx); err != nil {
		if !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "shardgate:", err)
		}
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}
