package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.yaml.in/yaml/v3"
)

// Commands returns serve, config, version, ping, status, routers and where.
func Commands() []*cobra.Command {
	return []*cobra.Command{serve(), showConfig(), version(), ping(), status(), routers(), where()}
}

func serve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", Short: "run a router", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := Load(cmd.Flags())
			if err != nil {
				return err
			}
			a, err := New(cmd.Context(), c, Logger(c.Log, os.Stderr))
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	configFlags(cmd.Flags())
	return cmd
}

func showConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "print the effective configuration, secrets hidden", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := Load(cmd.Flags())
			if err != nil {
				return err
			}
			return c.print(cmd.OutOrStdout())
		},
	}
	configFlags(cmd.Flags())
	return cmd
}

// print writes the configuration as YAML that serve would read, without secrets.
func (c *Config) print(w io.Writer) error {
	type section = yaml.Node
	var doc section
	if err := doc.Encode(settings(c)); err != nil {
		return err
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	return e.Encode(&doc)
}

func version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "shardgate %s (%s %s/%s)\n", Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// connect opens a driver's client to a router.
func connect(uri string) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(5 * time.Second).SetAppName("shardgate cli"))
}

func ping() *cobra.Command {
	var uri string
	cmd := &cobra.Command{
		Use: "ping", Short: "ask a router whether it serves", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			client, err := connect(uri)
			if err != nil {
				return err
			}
			defer func() { _ = client.Disconnect(ctx) }()
			if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	cmd.Flags().StringVar(&uri, "uri", "mongodb://127.0.0.1:27017/", "the router")
	return cmd
}
