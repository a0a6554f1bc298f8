package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// startLimit bounds each wait for a program to serve.
const startLimit = time.Minute

// Names of sides.
const (
	direct    = "direct"
	relayed   = "relay"
	haproxy   = "haproxy"
	shardgate = "shardgate"
)

// side is one way to the data.
type side struct {
	name     string
	addr     string
	password string // of __system, where the server at the end wants a login
	pid      int    // of what stands between, 0 for nothing
	probes   string // address of shardgate's metrics and profiles
	conns    []*conn
}

// backend is a kind of shards with the ways to it. The first side is what the others are compared with.
type backend struct {
	name   string
	server string // address of the shard
	sides  []*side
}

func (b *backend) side(name string) *side {
	for _, s := range b.sides {
		if s.name == name {
			return s
		}
	}

	return nil
}

// bench is everything that runs.
type bench struct {
	settings *settings
	cluster  *cluster.Cluster
	group    *proc.Group
	ports    proc.Ports
	dir      string
	mongod   backend
	null     backend
	report   report
}

// open starts a cluster of two real shards, two null shards with a router of their own, and what they are compared with.
func open(ctx context.Context, s *settings) (*bench, error) {
	b := &bench{settings: s, group: proc.NewGroup()}

	probes, err := b.port()
	if err != nil {
		return nil, err
	}

	b.cluster, err = cluster.Start(ctx, cluster.Options{
		Shards: 2, Members: 1, Routers: 1, Binary: s.binary,
		RouterEnv: []string{"SHARDGATE_HTTP_LISTEN=" + probes, "SHARDGATE_HTTP_PPROF=true"},
	})
	if err != nil {
		b.group.Close()
		return nil, err
	}

	b.dir = b.cluster.Dir()

	for _, start := range []func(context.Context) error{b.openNull, func(ctx context.Context) error { return b.openMongod(ctx, probes) }, b.openHAProxy} {
		if err := start(ctx); err != nil {
			b.close()
			return nil, err
		}
	}

	return b, nil
}

func (b *bench) close() {
	for _, k := range []*backend{&b.mongod, &b.null} {
		for _, s := range k.sides {
			for _, c := range s.conns {
				c.nc.Close()
			}
		}
	}

	b.group.Close()
	_ = b.cluster.Close()
}

// port returns a free address.
func (b *bench) port() (string, error) {
	port, err := b.ports.Pick()
	return proc.Loopback(port), err
}

// start starts a program and waits until it takes connections at addr.
func (b *bench) start(ctx context.Context, name, addr, path string, args ...string) (pid int, err error) {
	log := filepath.Join(b.dir, name+".log")

	p, err := b.group.Start(ctx, proc.Spec{Name: name, Path: path, Args: args, Log: log})
	if err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for {
		c, err := dialConn(ctx, addr, "")
		if err == nil {
			return p.PID(), c.nc.Close()
		}

		select {
		case <-tick.C:
		case <-p.Done():
			return 0, fmt.Errorf("%s ended: %w: %s", name, p.Err(), proc.Tail(log, 2000))
		case <-ctx.Done():
			return 0, fmt.Errorf("%s does not serve: %w", name, err)
		}
	}
}

// startSelf starts this program in another role.
func (b *bench) startSelf(ctx context.Context, name, addr string, args ...string) (pid int, err error) {
	path, err := os.Executable()
	if err != nil {
		return 0, err
	}

	return b.start(ctx, name, addr, path, args...)
}

// startRelay adds a relay.
func (b *bench) startRelay(ctx context.Context, k *backend, password string) error {
	addr, err := b.port()
	if err != nil {
		return err
	}

	pid, err := b.startSelf(ctx, "relay-"+k.name, addr, "relay", addr, k.server)
	k.sides = append(k.sides, &side{name: relayed, addr: addr, password: password, pid: pid})

	return err
}

// openMongod fills the real shards. Everything but the scattered collection is on one of them, so that all sides do the same.
func (b *bench) openMongod(ctx context.Context, probes string) error {
	router := b.cluster.Router(0)
	gate := &side{name: shardgate, addr: router.Addr(), pid: router.PID(), probes: probes}

	c, err := dialConn(ctx, gate.addr, "")
	if err != nil {
		return err
	}
	defer c.nc.Close()

	for _, coll := range []struct {
		name string
		key  any
		size int
	}{{points, int32(1), 100}, {scanned, int32(1), 960}, {spread, "hashed", 960}} {
		_, err := c.run("admin", bson.D{{Key: "shardCollection", Value: database + "." + coll.name}, {Key: "key", Value: bson.D{{Key: "_id", Value: coll.key}}}})
		if err == nil {
			_, err = c.run(database, bson.D{{Key: "createIndexes", Value: coll.name}, {Key: "indexes", Value: bson.A{
				bson.D{{Key: "key", Value: bson.D{{Key: "n", Value: int32(1)}}}, {Key: "name", Value: "n"}},
			}}})
		}

		if err == nil && coll.name == points {
			_, err = c.run(database, bson.D{{Key: "dropIndexes", Value: points}, {Key: "index", Value: "n"}}) // writes shall write little
		}

		if err == nil {
			err = fill(c, coll.name, coll.size)
		}

		if err != nil {
			return err
		}
	}

	for _, s := range b.cluster.Shards() {
		u, err := url.Parse(s.URI())
		if err != nil {
			return err
		}

		password, _ := u.User.Password()
		d := &side{name: direct, addr: s.Member(0).Addr(), password: password}

		c, err := dialConn(ctx, d.addr, password)
		if err != nil {
			return err
		}

		holds := update(c, 0) == nil
		c.nc.Close()

		if holds {
			b.mongod = backend{name: "mongod", server: d.addr, sides: []*side{d}}
			if err := b.startRelay(ctx, &b.mongod, password); err != nil {
				return err
			}

			b.mongod.sides = append(b.mongod.sides, gate)

			return nil
		}
	}

	return errors.New("no shard holds the documents")
}

// openHAProxy adds HAProxy before both backends.
func (b *bench) openHAProxy(ctx context.Context) error {
	finder, err := parts.New(parts.Options{Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		return err
	}

	path, err := finder.HAProxy(ctx)

	var missing *parts.MissingError
	if errors.As(err, &missing) && !parts.Required() {
		fmt.Fprintf(os.Stderr, "\n*** SKIPPED the comparison with HAProxy: %v ***\n\n", err)
		return nil
	}

	if err != nil {
		return err
	}

	for _, k := range []*backend{&b.mongod, &b.null} {
		addr, err := b.port()
		if err != nil {
			return err
		}

		config := filepath.Join(b.dir, "haproxy-"+k.name+".cfg")

		if err := os.WriteFile(config, []byte(haproxyConfig(addr, k.server)), 0o600); err != nil {
			return err
		}

		pid, err := b.start(ctx, "haproxy-"+k.name, addr, path, "-db", "-f", config)
		if err != nil {
			return err
		}

		last := len(k.sides) - 1
		k.sides = append(k.sides[:last:last], &side{name: haproxy, addr: addr, password: k.sides[0].password, pid: pid}, k.sides[last])
	}

	return nil
}

// haproxyConfig is HAProxy as a TCP proxy with its defaults.
func haproxyConfig(addr, server string) string {
	return fmt.Sprintf(`global
    maxconn 9000
defaults
    mode tcp
    timeout connect 10s
    timeout client 1h
    timeout server 1h
frontend clients
    bind %s
    default_backend shard
backend shard
    server shard %s
`, addr, server)
}
