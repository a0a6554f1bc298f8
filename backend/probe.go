package backend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Probe is what a replica set says of itself before it becomes a shard.
type Probe struct {
	SetName      string
	Hosts        []string
	Version      string
	Capabilities []string
	Databases    map[string][]ProbedCollection // without admin, config and local
}

// ProbedCollection is a collection or view that a replica set already holds.
type ProbedCollection struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"` // "collection", "view" or "timeseries"
	Options bson.Raw `bson:"options"`
	Info    struct {
		UUID bson.Binary `bson:"uuid"`
	} `bson:"info"`
}

// CapPrepare says that prepareTransaction works: the set was started with
// enableTestCommands=1 (MONGOD.md "Cluster time, snapshots, transactions").
const CapPrepare = "prepareTransaction"

// hello is what the probe reads of a hello reply.
type hello struct {
	SetName   string   `bson:"setName"`
	Hosts     []string `bson:"hosts"`
	Msg       string   `bson:"msg"`
	ConfigSvr int32    `bson:"configsvr"`
	Primary   string   `bson:"primary"`
}

// ProbeHost looks at the server or set at "host:port" or "set/host:port,…" with the
// administrator's login. Refusals are errors with the codes of addShard
// (MONGOS.md §1.8).
func ProbeHost(ctx context.Context, target string, cfg *Config) (*Probe, error) {
	set, list, named := strings.Cut(target, "/")
	if !named {
		set, list = "", target
	}
	hosts := strings.Split(list, ",")
	h, err := sayHello(ctx, hosts[0], cfg)
	if err != nil {
		return nil, mongoerr.Wrap(mongoerr.OperationFailed, err, "failed to run command { hello: 1 } when attempting to add shard "+target)
	}
	switch {
	case h.Msg == "isdbgrid":
		return nil, mongoerr.New(mongoerr.IllegalOperation, "cannot add a mongos as a shard")
	case h.ConfigSvr != 0:
		return nil, mongoerr.Newf(mongoerr.OperationFailed, "Cannot add %s as a shard since it is a config server", target)
	case h.SetName == "":
		return nil, mongoerr.Newf(mongoerr.OperationFailed, "%s is not a member of a replica set: a shard must be one", target)
	case h.Primary == "":
		return nil, mongoerr.Newf(mongoerr.FailedToSatisfyReadPreference, "%s has no primary now", target)
	case set != "" && set != h.SetName:
		return nil, mongoerr.Newf(mongoerr.OperationFailed, "in seed list %s, host %s belongs to replica set %s", target, hosts[0], h.SetName)
	}
	for _, seed := range hosts {
		if !slices.Contains(h.Hosts, seed) {
			return nil, mongoerr.Newf(mongoerr.OperationFailed, "in seed list %s, host %s does not belong to replica set %s; found %s", target, seed, h.SetName, strings.Join(h.Hosts, ","))
		}
	}
	p := &Probe{SetName: h.SetName, Hosts: h.Hosts, Databases: map[string][]ProbedCollection{}}
	return p, p.read(ctx, cfg)
}

func sayHello(ctx context.Context, host string, cfg *Config) (h hello, err error) {
	c, err := probeClient(options.Client().SetHosts([]string{host}).SetDirect(true), cfg)
	if err != nil {
		return h, err
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(ctx)) }()
	err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: int32(1)}}).Decode(&h)
	return h, err
}

func probeClient(opts *options.ClientOptions, cfg *Config) (*mongo.Client, error) {
	opts.SetAppName("shardgate probe").SetServerSelectionTimeout(5 * time.Second).SetConnectTimeout(cfg.DialTimeout)
	if cfg.TLS != nil {
		opts.SetTLSConfig(cfg.TLS)
	}
	if !cfg.Admin.None() {
		opts.SetAuth(options.Credential{
			AuthMechanism: "SCRAM-SHA-256", AuthSource: cfg.Admin.Source,
			Username: cfg.Admin.User, Password: cfg.Admin.Password, PasswordSet: true,
		})
	}
	return mongo.Connect(opts)
}

func (p *Probe) read(ctx context.Context, cfg *Config) error {
	c, err := probeClient(options.Client().SetHosts(p.Hosts).SetReplicaSet(p.SetName), cfg)
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(ctx)) }()
	var build struct {
		Version string `bson:"version"`
	}
	if err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: int32(1)}}).Decode(&build); err != nil {
		return mongoerr.Wrap(mongoerr.OperationFailed, err, "could not read the version of "+p.SetName)
	}
	p.Version = build.Version
	if prepares(ctx, c) {
		p.Capabilities = append(p.Capabilities, CapPrepare)
	}
	names, err := c.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return mongoerr.Wrap(mongoerr.OperationFailed, err, "could not list the databases of "+p.SetName)
	}
	for _, db := range names {
		if db == "admin" || db == "config" || db == "local" {
			continue
		}
		cur, err := c.Database(db).ListCollections(ctx, bson.D{})
		if err != nil {
			return fmt.Errorf("list collections of %s: %w", db, err)
		}
		var colls []ProbedCollection
		if err := cur.All(ctx, &colls); err != nil {
			return fmt.Errorf("list collections of %s: %w", db, err)
		}
		p.Databases[db] = colls
	}
	return nil
}

// prepares asks for prepareTransaction outside a transaction.
func prepares(ctx context.Context, c *mongo.Client) bool {
	return isPrepareHad(c.Database("admin").RunCommand(ctx, bson.D{{Key: "prepareTransaction", Value: int32(1)}}).Err())
}

// isPrepareHad reads the answer: 193 NoShardingEnabled where prepareTransaction is not to
// be had; 125 CommandFailed, as there is no transaction, where it is. Any other answer
// proves nothing.
func isPrepareHad(err error) bool { return hasCode(err, int32(mongoerr.CommandFailed)) }
