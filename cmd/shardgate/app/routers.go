package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardgate/shardgate/catalog"
)

// routers lists routers; its subcommand removes one that is dead.
func routers() *cobra.Command {
	cmd := &cobra.Command{
		Use: "routers", Short: "list routers, or remove one that is dead", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
			defer cancel()
			_, store, d, err := openCatalog(ctx, cmd)
			if err != nil {
				return err
			}
			defer store.Close()
			list, err := store.Routers(ctx)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			printRouters(w, routerRows(d.Version, list))
			return w.Flush()
		},
	}
	configFlags(cmd.Flags())
	cmd.AddCommand(removeRouter())
	return cmd
}

func removeRouter() *cobra.Command {
	var dead bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "go on without a router that does not answer and never will", Args: cobra.ExactArgs(1),
		Long: `Routers whose shards have users are shut out of the shards by the others, by themselves, and are safe to remove.
Where shards run without authentication nobody can be shut out: if a router is removed that is not dead but stopped,
or cut off from the catalog alone, it may later write to shards by what it knew, and data may be lost.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
			defer cancel()
			c, store, _, err := openCatalog(ctx, cmd)
			if err != nil {
				return err
			}
			defer store.Close()
			cred, err := c.Shards.credential()
			if err != nil {
				return err
			}
			said, err := takeAway(ctx, store, args[0], !cred.None(), dead)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), said)
			}
			return err
		},
	}
	configFlags(cmd.Flags())
	cmd.Flags().BoolVar(&dead, "yes-it-is-dead", false, "its process has ended, on whatever machine it ran")
	return cmd
}

// takeAway removes a silent router. Where shards have users, living routers evict it, as they
// would by themselves; where they have none, a person must have said that it is dead.
func takeAway(ctx context.Context, store catalog.Registry, name string, users, dead bool) (said string, err error) {
	list, err := store.Routers(ctx)
	if err != nil {
		return "", err
	}
	for i := range list {
		r := &list[i]
		switch {
		case r.Name != name:
			continue
		case !r.Silent:
			return "", fmt.Errorf("%s lives: it was heard %s", name, r.Ping.Format(time.RFC3339))
		case users:
			return name + " is being shut out of the shards by the other routers", store.Evict(ctx, r.Incarnation, r.Ping)
		case !dead:
			return "", errors.New("--yes-it-is-dead: is not given; if it is not dead, data may be lost")
		default:
			return name + " is removed", store.Deregister(ctx, r.Incarnation)
		}
	}
	return "", fmt.Errorf("there is no router %s", name)
}

// routerRows is what is shown of routers.
func routerRows(now catalog.Version, list []catalog.Router) []routerStatus {
	var rows []routerStatus
	for i := range list {
		r := &list[i]
		rows = append(rows, routerStatus{
			Name: r.Name, Number: r.Number, Version: r.Version, Uptime: time.Since(r.Started).Round(time.Second).String(),
			Lag: int64(max(now-r.Ack.Version, 0)), Stopped: r.Ack.Version == catalog.Stopped, Silent: r.Silent, Evicted: r.Evicted,
		})
		for _, u := range r.Users {
			if row := &rows[len(rows)-1]; r.Evicted {
				row.left = append(row.left, u.Shard)
			}
		}
	}
	return rows
}

func printRouters(w io.Writer, rows []routerStatus) {
	fmt.Fprintf(w, "ROUTER\tNUMBER\tVERSION\tUP\tLAG\tSTATE\n")
	for _, r := range rows {
		state := "alive"
		switch {
		case r.Evicted:
			state = "silent, to be shut out of " + strings.Join(r.left, ", ")
		case r.Stopped:
			state = "stopped, not everything it began has ended"
		case r.Silent:
			state = "silent"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\n", r.Name, r.Number, r.Version, r.Uptime, r.Lag, state)
	}
}
