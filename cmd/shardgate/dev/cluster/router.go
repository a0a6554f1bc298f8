package cluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// newRouter returns a router that is not started.
func (c *Cluster) newRouter(index int) *Node {
	name := "router-" + strconv.Itoa(index)
	n := c.newNode(name, c.folder.in(name+".log"))
	n.probe = func(ctx context.Context) error { return c.probeRouter(ctx, n) }
	n.command = func(port int) (proc.Spec, error) {
		config := c.folder.in(name + ".yaml")

		return proc.Spec{
			Name: name, Path: c.opts.Binary, Args: []string{"serve", "--config", config}, Env: c.opts.RouterEnv, Log: n.log,
		}, writeFile(config, c.routerConfig(port))
	}

	return n
}

// routerConfig is a router's configuration file. Strings in Go's quotes are strings in YAML too.
func (c *Cluster) routerConfig(port int) []byte {
	var b strings.Builder

	b.WriteString("# Written by shardgate dev at each start.\n")
	fmt.Fprintf(&b, "listen: %q\n", proc.Loopback(port))
	fmt.Fprintf(&b, "catalog:\n  dsn: %q\n", c.CatalogDSN())
	fmt.Fprintf(&b, "shards:\n  keyFile: %q\n", c.folder.in("keyfile"))

	return []byte(b.String())
}

// routerURI is where clients connect.
func routerURI(n *Node) string {
	return "mongodb://" + n.Addr() + "/"
}

// RouterURI returns where clients connect to a router.
func (c *Cluster) RouterURI(i int) string {
	return routerURI(c.routers[i])
}

// probeRouter looks whether a router answers.
func (c *Cluster) probeRouter(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()

	if err := dial(ctx, n.Addr()); err != nil {
		return err
	}

	return c.admin(ctx, n, bson.D{{Key: "ping", Value: 1}})
}

// admin runs a command on a router.
func (c *Cluster) admin(ctx context.Context, n *Node, command bson.D) error {
	client, err := mongo.Connect(options.Client().ApplyURI(routerURI(n)).SetServerSelectionTimeout(probeLimit))
	if err != nil {
		return err
	}
	defer client.Disconnect(ctx) //nolint:errcheck // nothing depends on it

	return client.Database("admin").RunCommand(ctx, command).Err()
}

// addShards makes the catalog know the shards; those that it knows are no error.
func (c *Cluster) addShards(ctx context.Context) error {
	for _, s := range c.shards {
		c.opts.Progress("adding " + s.Connection())

		if err := c.admin(ctx, c.routers[0], bson.D{{Key: "addShard", Value: s.Connection()}}); err != nil {
			return fmt.Errorf("add %s: %w", s.Name(), err)
		}
	}

	return nil
}
