package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// codeNotYetInitialized is what replSetGetStatus answers before replSetInitiate.
const codeNotYetInitialized = 94

// Shard is one replica set.
type Shard struct {
	index   int
	members []*Node
	c       *Cluster
}

// hello is what a poll wants to know of a member.
type hello struct {
	IsWritablePrimary bool `bson:"isWritablePrimary"`
	Secondary         bool `bson:"secondary"`
	IsReplicaSet      bool `bson:"isreplicaset"` // has no configuration yet
}

// Name returns the shard's name, which is its replica set's: "shard_0" and so on.
func (s *Shard) Name() string {
	return "shard_" + strconv.Itoa(s.index)
}

// Members returns the mongods.
func (s *Shard) Members() []*Node {
	return s.members
}

// Member returns one mongod.
func (s *Shard) Member(i int) *Node {
	return s.members[i]
}

// Connection returns "shard_0/host:port,…", the form that addShard takes.
func (s *Shard) Connection() string {
	return s.Name() + "/" + s.hosts()
}

// URI returns the address that logs a client in as __system, which may do anything.
func (s *Shard) URI() string {
	return fmt.Sprintf("mongodb://__system:%s@%s/?authSource=local&authMechanism=SCRAM-SHA-256&replicaSet=%s", s.c.state.Key, s.hosts(), s.Name())
}

// hosts lists the members' addresses.
func (s *Shard) hosts() string {
	addrs := make([]string, len(s.members))
	for i, n := range s.members {
		addrs[i] = n.Addr()
	}

	return strings.Join(addrs, ",")
}

// dir is a member's folder.
func (s *Shard) dir(member int) string {
	return s.c.folder.in(s.Name(), strconv.Itoa(member))
}

// dbPath is where a member keeps its data.
func (s *Shard) dbPath(n *Node) string {
	return filepath.Join(filepath.Dir(n.log), "data")
}

// newShard returns a shard whose mongods are not started.
func (c *Cluster) newShard(index int) *Shard {
	s := &Shard{index: index, c: c}

	for i, port := range c.state.Shards[index] {
		n := c.newNode(fmt.Sprintf("%s/%d", s.Name(), i), filepath.Join(s.dir(i), "log"))
		n.port = port
		n.command = func(port int) (proc.Spec, error) { return s.mongodSpec(n, port) }
		n.probe = func(ctx context.Context) error { return s.probe(ctx, n) }
		s.members = append(s.members, n)
	}

	return s
}

// mongodSpec is how a member is started.
func (s *Shard) mongodSpec(n *Node, port int) (proc.Spec, error) {
	data := s.dbPath(n)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return proc.Spec{}, err
	}

	args := []string{
		"--replSet", s.Name(), "--port", strconv.Itoa(port), "--dbpath", data, "--bind_ip", "127.0.0.1",
		"--keyFile", s.c.folder.in("keyfile"), "--wiredTigerCacheSizeGB", "1", "--nounixsocket",
	}
	for _, parameter := range []string{
		"enableTestCommands=1", // two-phase commit of transactions
		"diagnosticDataCollectionEnabled=false",
		"shutdownTimeoutMillisForSignaledShutdown=100",
	} {
		args = append(args, "--setParameter", parameter)
	}

	return proc.Spec{Name: n.name, Path: s.c.mongod, Args: append(args, s.c.opts.MongodArgs...), Log: n.log, Grace: 20 * time.Second}, nil
}

// probe looks whether a member is a primary or a secondary, or waits for its configuration.
func (s *Shard) probe(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()

	if err := dial(ctx, n.Addr()); err != nil {
		return err
	}

	return s.with(ctx, n, func(db *mongo.Database) error {
		h, err := sayHello(ctx, db)
		if err == nil && !h.IsWritablePrimary && !h.Secondary && !h.IsReplicaSet {
			err = errors.New("neither primary nor secondary yet")
		}

		return err
	})
}

// with logs in to one member.
func (s *Shard) with(ctx context.Context, n *Node, do func(*mongo.Database) error) error {
	client, err := mongo.Connect(options.Client().
		SetHosts([]string{n.Addr()}).
		SetDirect(true).
		SetServerSelectionTimeout(probeLimit).
		SetAuth(options.Credential{AuthMechanism: "SCRAM-SHA-256", AuthSource: "local", Username: "__system", Password: s.c.state.Key}))
	if err != nil {
		return err
	}
	defer client.Disconnect(ctx) //nolint:errcheck // nothing depends on it

	return do(client.Database("admin"))
}

// sayHello asks a member what it is.
func sayHello(ctx context.Context, db *mongo.Database) (hello, error) {
	var h hello

	return h, db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&h)
}

// start starts all members, makes them a replica set if they are none, and waits for a primary and for all others to follow.
func (s *Shard) start(ctx context.Context) error {
	members, memberCtx := errgroup.WithContext(ctx)

	for _, n := range s.members {
		members.Go(func() error {
			if n.Port() != 0 {
				return n.Start(memberCtx)
			}

			return n.first(memberCtx, &s.c.ports)
		})
	}

	if err := members.Wait(); err != nil {
		return err
	}

	if err := s.c.recordPorts(s); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	err := s.with(ctx, s.members[0], func(db *mongo.Database) error {
		if err := s.initiate(ctx, db); err != nil {
			return err
		}

		return s.awaitPrimary(ctx, db)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name(), err)
	}

	for _, n := range s.members[1:] {
		err := poll(ctx, func(ctx context.Context) error { return s.follows(ctx, n) })
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}

	return nil
}

// initiate configures the replica set once.
func (s *Shard) initiate(ctx context.Context, db *mongo.Database) error {
	err := db.RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}).Err()

	var answer mongo.CommandError
	if !errors.As(err, &answer) || answer.Code != codeNotYetInitialized {
		return err
	}

	members := make(bson.A, len(s.members))
	for i, n := range s.members {
		members[i] = bson.D{{Key: "_id", Value: i}, {Key: "host", Value: n.Addr()}}
	}

	return db.RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: bson.D{
		{Key: "_id", Value: s.Name()},
		{Key: "version", Value: 1},
		{Key: "members", Value: members},
		// A dead primary is replaced within a few seconds, and a busy machine is not taken for a dead one.
		{Key: "settings", Value: bson.D{
			{Key: "electionTimeoutMillis", Value: 5000},
			{Key: "heartbeatIntervalMillis", Value: 500},
		}},
	}}}).Err()
}

// awaitPrimary waits until the replica set takes writes, and has the member of db elected where nobody else is yet.
func (s *Shard) awaitPrimary(ctx context.Context, db *mongo.Database) error {
	return poll(ctx, func(ctx context.Context) error {
		h, err := sayHello(ctx, db)
		if err != nil || h.IsWritablePrimary {
			return err
		}

		for _, n := range s.members[1:] {
			if s.isPrimary(ctx, n) {
				return nil
			}
		}

		if len(s.members) > 1 {
			// The others refuse until they know the configuration; then this saves waiting for an election time-out.
			_ = db.RunCommand(ctx, bson.D{{Key: "replSetStepUp", Value: 1}}).Err()
		}

		return errors.New("no primary yet")
	})
}

// isPrimary reports whether a member takes writes.
func (s *Shard) isPrimary(ctx context.Context, n *Node) bool {
	primary := false
	err := s.with(ctx, n, func(db *mongo.Database) error {
		h, err := sayHello(ctx, db)
		primary = h.IsWritablePrimary

		return err
	})

	return err == nil && primary
}

// follows reports an error until a member is a primary or a secondary.
func (s *Shard) follows(ctx context.Context, n *Node) error {
	return s.with(ctx, n, func(db *mongo.Database) error {
		h, err := sayHello(ctx, db)
		if err == nil && !h.IsWritablePrimary && !h.Secondary {
			err = errors.New("not a secondary yet")
		}

		return err
	})
}

// Primary returns the member that takes writes.
func (s *Shard) Primary(ctx context.Context) (*Node, error) {
	for _, n := range s.members {
		if n.PID() != 0 && s.isPrimary(ctx, n) {
			return n, nil
		}
	}

	return nil, fmt.Errorf("%s has no primary", s.Name())
}
