package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// closeLimit is how long an ordered end may take before what is left is killed.
const closeLimit = 30 * time.Second

// Cluster is PostgreSQL, shards and routers that run. It must be closed.
type Cluster struct {
	opts   Options
	folder *folder
	group  *proc.Group
	ports  proc.Ports
	mongod string // the program

	postgres *Node
	shards   []*Shard
	routers  []*Node

	stateMu sync.Mutex
	state   *state // its ports are guarded by stateMu

	manifestMu sync.Mutex
	up         bool // guarded by manifestMu; all of it was started
}

// Start starts a cluster and returns when everything serves and the shards are added. When it fails nothing is left running.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.check(); err != nil {
		return nil, err
	}

	if o.Routers > 0 && o.Port != 0 && !proc.PortFree(o.Port) {
		return nil, fmt.Errorf("port %d is in use, perhaps by a mongod or another shardgate dev: choose one with --port", o.Port)
	}

	f, err := openFolder(o.Data)
	if err != nil {
		return nil, err
	}

	c := &Cluster{opts: o, folder: f, group: proc.NewGroup()}

	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}

	return c, nil
}

// start brings everything up.
func (c *Cluster) start(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}

	all, ctx2 := errgroup.WithContext(ctx)

	all.Go(func() error { return c.startPostgresAndRouters(ctx2) })

	for _, s := range c.shards {
		all.Go(func() error {
			if err := s.start(ctx2); err != nil {
				return err
			}

			c.opts.Progress(s.Name() + " is up: " + s.hosts())

			return nil
		})
	}

	if err := all.Wait(); err != nil {
		return err
	}

	if len(c.routers) > 0 {
		if err := c.addShards(ctx); err != nil {
			return err
		}
	}

	c.manifestMu.Lock()
	c.up = true
	c.manifestMu.Unlock()

	return c.writeManifest()
}

// prepare reads the folder and lays out the nodes.
func (c *Cluster) prepare(ctx context.Context) error {
	if err := c.folder.awaitLeftovers(ctx); err != nil {
		return err
	}

	s, err := readState(c.folder.path)
	if err != nil {
		return err
	}

	if err := s.grow(c.opts); err != nil {
		return err
	}

	c.state = s

	if err := errors.Join(s.write(c.folder.path), writeFile(c.folder.in("keyfile"), []byte(s.Key+"\n"))); err != nil {
		return err
	}

	c.mongod, err = c.opts.Parts.Mongod(ctx)
	if err != nil {
		return err
	}

	c.ports.Reserve(c.opts.Port)

	for _, shard := range s.Shards {
		for _, port := range shard {
			c.ports.Reserve(port)
		}
	}

	for _, port := range s.Routers {
		c.ports.Reserve(port)
	}

	c.postgres = c.newNode("postgres", c.folder.in("postgres.log"))
	c.postgres.probe = c.probePostgres

	for i := range s.Shards {
		c.shards = append(c.shards, c.newShard(i))
	}

	for i := range c.opts.Routers {
		n := c.newRouter(i)
		if i < len(s.Routers) {
			n.port = s.Routers[i]
		}

		c.routers = append(c.routers, n)
	}

	return nil
}

// newNode returns a node of this cluster without its command and probe.
func (c *Cluster) newNode(name, log string) *Node {
	return &Node{name: name, log: log, group: c.group, changed: c.writeManifest, notice: c.opts.Progress}
}

// startPostgresAndRouters starts what needs no shard.
func (c *Cluster) startPostgresAndRouters(ctx context.Context) error {
	if err := c.newPostgres(ctx); err != nil {
		return err
	}

	if err := c.postgres.first(ctx, &c.ports); err != nil {
		return err
	}

	c.opts.Progress("the catalog is up: " + c.postgres.Addr())

	routers, ctx := errgroup.WithContext(ctx)

	for i, n := range c.routers {
		routers.Go(func() error {
			if i == 0 && c.opts.Port != 0 {
				n.setPort(c.opts.Port)
				return n.Start(ctx)
			}

			return n.first(ctx, &c.ports)
		})
	}

	if err := routers.Wait(); err != nil {
		return err
	}

	return c.recordRouterPorts()
}

// recordRouterPorts keeps the routers' ports, which are their names in the catalog.
func (c *Cluster) recordRouterPorts() error {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()

	for i, n := range c.routers {
		if i == len(c.state.Routers) {
			c.state.Routers = append(c.state.Routers, 0)
		}

		c.state.Routers[i] = n.Port()
	}

	return c.state.write(c.folder.path)
}

// recordPorts keeps a shard's ports, which its replica set is about to remember too.
func (c *Cluster) recordPorts(s *Shard) error {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()

	for i, n := range s.members {
		c.state.Shards[s.index][i] = n.Port()
	}

	return c.state.write(c.folder.path)
}

// Dir returns the cluster's folder.
func (c *Cluster) Dir() string {
	return c.folder.path
}

// KeyFile returns the path of the keyfile, whose text is the password of __system.
func (c *Cluster) KeyFile() string {
	return c.folder.in("keyfile")
}

// Postgres returns the node of the catalog.
func (c *Cluster) Postgres() *Node {
	return c.postgres
}

// Shards returns the shards.
func (c *Cluster) Shards() []*Shard {
	return c.shards
}

// Shard returns one shard.
func (c *Cluster) Shard(i int) *Shard {
	return c.shards[i]
}

// Routers returns the routers.
func (c *Cluster) Routers() []*Node {
	return c.routers
}

// Router returns one router.
func (c *Cluster) Router(i int) *Node {
	return c.routers[i]
}

// Nodes returns every program of the cluster.
func (c *Cluster) Nodes() []*Node {
	var nodes []*Node
	if c.postgres != nil {
		nodes = append(nodes, c.postgres)
	}

	for _, s := range c.shards {
		nodes = append(nodes, s.members...)
	}

	return append(nodes, c.routers...)
}

// StartStopped starts again whatever has ended, routers last: they need the catalog. One that does not start keeps none of
// the others down.
func (c *Cluster) StartStopped(ctx context.Context) error {
	nodes := c.Nodes()
	servers := nodes[:len(nodes)-len(c.routers)]

	return errors.Join(startAll(ctx, servers), startAll(ctx, c.routers))
}

// startAll starts nodes at once.
func startAll(ctx context.Context, nodes []*Node) error {
	var all sync.WaitGroup

	errs := make([]error, len(nodes))
	for i, n := range nodes {
		all.Go(func() { errs[i] = n.Start(ctx) })
	}

	all.Wait()

	return errors.Join(errs...)
}

// Close ends everything, routers first, and removes a temporary folder. It may be called twice.
func (c *Cluster) Close() error {
	if c.folder == nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()

	err := c.removeManifest()

	stopAll(ctx, c.routers)

	// Data that is thrown away needs no ordered end.
	if !c.folder.temp {
		stopAll(ctx, c.Nodes())
	}

	for _, n := range c.Nodes() {
		n.forget()
	}

	c.group.Close()

	err = errors.Join(err, c.folder.close())
	c.folder = nil

	return err
}

// stopAll stops nodes at once.
func stopAll(ctx context.Context, nodes []*Node) {
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() { _ = n.Stop(ctx) })
	}

	all.Wait()
}
