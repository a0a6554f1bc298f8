package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/pg"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// clusterStatus is what `shardgate status` prints.
type clusterStatus struct {
	Version int64          `json:"catalogVersion"`
	Routers []routerStatus `json:"routers"`
	Shards  []shardStatus  `json:"shards"`
}

type routerStatus struct {
	Name    string `json:"name"`
	Number  int    `json:"number"`
	Version string `json:"version"`
	Uptime  string `json:"uptime"`
	Lag     int64  `json:"lag"` // catalog versions not yet acknowledged
	Silent  bool   `json:"silent"`
	Evicted bool   `json:"evicted"` // being shut out of the shards
	Stopped bool   `json:"stopped"` // but not everything that it began is known to have ended

	left []string // shards of which one that is evicted is not shut out yet
}

type shardStatus struct {
	ID           string   `json:"id"`
	Host         string   `json:"host"`
	Version      string   `json:"version"`
	Capabilities []string `json:"capabilities"`
	Draining     bool     `json:"draining"`
	Chunks       int      `json:"chunks"`
	Unsharded    int      `json:"unshardedCollections"`
	Reachable    bool     `json:"reachable"`
}

// openCatalog reads the configuration and opens the catalog.
func openCatalog(ctx context.Context, cmd *cobra.Command) (*Config, *pg.Store, *catalog.Delta, error) {
	c, err := Load(cmd.Flags())
	if err != nil {
		return nil, nil, nil, err
	}
	if c.Catalog.DSN == "" {
		return nil, nil, nil, fmt.Errorf("catalog.dsn: is not set (--config, --catalog.dsn or SHARDGATE_CATALOG_DSN)")
	}
	store, err := pg.New(ctx, pg.Options{DSN: c.Catalog.DSN, DirectDSN: c.Catalog.DirectDSN, MaxConns: 2})
	if err != nil {
		return nil, nil, nil, err
	}
	d, err := store.Load(ctx, 0)
	if err != nil {
		store.Close()
		return nil, nil, nil, err
	}
	return c, store, d, nil
}

func status() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status", Short: "list routers and shards", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
			defer cancel()
			c, store, d, err := openCatalog(ctx, cmd)
			if err != nil {
				return err
			}
			defer store.Close()
			routers, err := store.Routers(ctx)
			if err != nil {
				return err
			}
			s := makeStatus(ctx, c, d, routers)
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			return s.table(cmd)
		},
	}
	configFlags(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func makeStatus(ctx context.Context, c *Config, d *catalog.Delta, routers []catalog.Router) *clusterStatus {
	s := &clusterStatus{Version: int64(d.Version), Routers: routerRows(d.Version, routers)}
	for i := range d.Shards {
		sh := &d.Shards[i]
		row := shardStatus{ID: sh.ID, Host: sh.Host, Version: sh.Version, Capabilities: sh.Capabilities, Draining: sh.Draining}
		for j := range d.Collections {
			for k := range d.Collections[j].Chunks {
				if d.Collections[j].Chunks[k].Shard != sh.ID {
					continue
				}
				if d.Collections[j].Kind == catalog.KindSharded {
					row.Chunks++
				} else {
					row.Unsharded++
				}
			}
		}
		row.Reachable = reachable(ctx, c, sh)
		s.Shards = append(s.Shards, row)
	}
	return s
}

func reachable(ctx context.Context, c *Config, sh *catalog.Shard) bool {
	cred, err := c.Shards.credential()
	if err != nil {
		return false
	}
	tlsConfig, err := c.Shards.tls()
	if err != nil {
		return false
	}
	cfg := backend.Config{Admin: cred, TLS: tlsConfig, Name: "status", SelectTimeout: 3 * time.Second}.WithDefaults()
	b, err := backend.Open(sh.ID, sh.Host, &cfg)
	if err != nil {
		return false
	}
	defer b.Close(ctx)
	return b.Admin().Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err() == nil
}

func (s *clusterStatus) table(cmd *cobra.Command) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "catalog version %d\n\n", s.Version)
	printRouters(w, s.Routers)
	fmt.Fprintf(w, "\nSHARD\tHOST\tMONGODB\tCAPABILITIES\tCHUNKS\tUNSHARDED\tSTATE\n")
	for _, r := range s.Shards {
		state := "unreachable"
		if r.Reachable {
			state = "ok"
		}
		if r.Draining {
			state += ", draining"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", r.ID, r.Host, r.Version, strings.Join(r.Capabilities, ","), r.Chunks, r.Unsharded, state)
	}
	return w.Flush()
}

func where() *cobra.Command {
	cmd := &cobra.Command{
		Use: "where NS KEY", Short: "say which chunk and shard a shard key value belongs to, and why", Args: cobra.ExactArgs(2),
		Example: `  shardgate where app.users '{"_id": 5}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
			defer cancel()
			_, store, d, err := openCatalog(ctx, cmd)
			if err != nil {
				return err
			}
			defer store.Close()
			for i := range d.Collections {
				if d.Collections[i].NS == args[0] {
					return explainKey(cmd, d.Collections[i].CollectionChunks, args[1])
				}
			}
			return fmt.Errorf("the catalog has no collection %s", args[0])
		},
	}
	configFlags(cmd.Flags())
	return cmd
}

func explainKey(cmd *cobra.Command, c catalog.CollectionChunks, text string) error {
	out := cmd.OutOrStdout()
	if c.Kind != catalog.KindSharded {
		if len(c.Chunks) == 0 {
			return fmt.Errorf("%s is a view", c.NS)
		}
		fmt.Fprintf(out, "shard:  %s\nwhy:    %s is not sharded: all of it is there\n", c.Chunks[0].Shard, c.NS)
		return nil
	}
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &doc); err != nil {
		return fmt.Errorf("KEY is no JSON document: %w", err)
	}
	t, err := shardkey.NewTable(c)
	if err != nil {
		return err
	}
	key, err := t.Pattern().AppendKey(nil, doc)
	if err != nil {
		return err
	}
	bound, err := t.Pattern().KeyDocument(doc, true)
	if err != nil {
		return err
	}
	chunk := t.Chunk(t.Find(key))
	fmt.Fprintf(out, "shard:  %s\nchunk:  [%s, %s)\nkey:    %s as %s\nwhy:    the key lies in this chunk, which %s owns\n",
		chunk.Shard, shardkey.Format(chunk.Min), shardkey.Format(chunk.Max), t.Pattern(), shardkey.Format(bound), chunk.Shard)
	return nil
}
