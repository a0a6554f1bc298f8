package dev

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
)

// Command returns `shardgate dev` with its subcommands.
func Command() *cobra.Command {
	var o cluster.Options

	cmd := &cobra.Command{
		Use:   "dev",
		Short: "run a whole cluster on this machine: catalog, shards, routers",
		Long: `Runs PostgreSQL, replica sets and routers on the loopback address, adds the shards, and prints "ready".
Programs that the machine lacks are fetched into the cache folder once. Everything ends with this command, also when it is
killed. DIR/cluster.json says what runs where, without a "pid" for what has ended (it holds passwords; only you can read it).

Ctrl-C ends the cluster. SIGUSR1 starts again whatever has ended, on the same ports.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"shards", "members", "routers"} {
				if n, err := cmd.Flags().GetInt(name); err == nil && n < 1 {
					return fmt.Errorf("--%s must be at least 1, not %d", name, n)
				}
			}

			// A folder that is started again has its own numbers.
			if !cmd.Flags().Changed("shards") && o.Data != "" {
				o.Shards = 0
			}

			if !cmd.Flags().Changed("members") && o.Data != "" {
				o.Members = 0
			}

			return run(cmd.Context(), cmd.OutOrStdout(), o)
		},
		SilenceUsage: true,
	}

	flags := cmd.Flags()
	flags.IntVar(&o.Shards, "shards", cluster.DefaultShards, "number of shards, each a replica set")
	flags.IntVar(&o.Members, "members", cluster.DefaultMembers, "number of mongods in each shard")
	flags.IntVar(&o.Routers, "routers", 1, "number of routers")
	flags.IntVar(&o.Port, "port", 27017, "port of the first router, 0 for any; the others take free ones")
	flags.StringVar(&o.Data, "data", "", "folder that is kept and can be started again (default: a temporary one)")

	cmd.AddCommand(fetchCommand())

	return cmd
}

// run starts the cluster and ends it with ctx or a signal.
func run(ctx context.Context, out io.Writer, o cluster.Options) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGUSR1)

	defer signal.Stop(again)

	binary, err := os.Executable()
	if err != nil {
		return err
	}

	o.Binary = binary
	o.Progress = printer(out)

	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}

	o.Progress(welcome(c))
	o.Progress("ready")

	for {
		select {
		case <-again:
			if err := c.StartStopped(ctx); err != nil {
				o.Progress("start again: " + err.Error())
				continue
			}

			o.Progress("ready")
		case <-ctx.Done():
			// From here a second Ctrl-C ends us at once, whoever else listens for it, and the kernel ends the rest.
			signal.Reset(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			o.Progress("stopping")

			return c.Close()
		}
	}
}

// printer returns a function that prints lines from any goroutine.
func printer(out io.Writer) func(string) {
	var mu sync.Mutex

	return func(line string) {
		mu.Lock()
		defer mu.Unlock()

		_, _ = fmt.Fprintln(out, line)
	}
}

// welcome says how to connect.
func welcome(c *cluster.Cluster) string {
	var b strings.Builder

	b.WriteString("\n")

	for i := range c.Routers() {
		fmt.Fprintf(&b, "connect:  mongosh %s\n", c.RouterURI(i))
	}

	fmt.Fprintf(&b, "data:     %s\n", c.Dir())
	fmt.Fprintf(&b, "details:  %s/cluster.json\n", c.Dir())
	b.WriteString("Ctrl-C ends it.\n")

	return b.String()
}

// fetchCommand returns `shardgate dev fetch`.
func fetchCommand() *cobra.Command {
	var (
		lenient bool
		timeout time.Duration
	)

	names := parts.Names()

	cmd := &cobra.Command{
		Use:       "fetch [PART]...",
		Short:     "find or fetch the programs that dev, tests and lint need, and print where they are",
		Long:      "Finds or fetches programs and prints a line \"PART PATH\" for each. Parts: " + strings.Join(names, ", ") + ".",
		ValidArgs: names,
		Args:      cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()

			if len(args) == 0 {
				args = names
			}

			return fetchParts(ctx, cmd, args, lenient)
		},
		SilenceUsage: true,
	}

	cmd.Flags().BoolVar(&lenient, "lenient", false, "a part that is missing is a loud warning, unless CI=true")
	cmd.Flags().DurationVar(&timeout, "timeout", 20*time.Minute, "give up after this time")

	return cmd
}

// fetchParts prints where the parts are.
func fetchParts(ctx context.Context, cmd *cobra.Command, names []string, lenient bool) error {
	finder, err := parts.New(parts.Options{Progress: printer(cmd.ErrOrStderr())})
	if err != nil {
		return err
	}

	found, missing := finder.All(ctx, names)
	for _, name := range names {
		if path, ok := found[name]; ok {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", name, path)
		}
	}

	if missing != nil && lenient && !parts.Required() {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "\n*** WARNING: parts are missing, tests that need them are SKIPPED ***\n%v\n\n", missing)
		return nil
	}

	return missing
}
