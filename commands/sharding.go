package commands

import (
	"context"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/configdb"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// known refuses options that the command does not have: 40415.
func (req *request) known(names ...string) error {
	for _, o := range req.options() {
		found := false
		for _, n := range names {
			found = found || n == o.Key
		}
		if !found {
			return mongoerr.Newf(40415, "BSON field '%s.%s' is an unknown field.", req.row.Name, o.Key)
		}
	}
	return nil
}

func addShard(ctx context.Context, req *request) error {
	target, ok := req.Cmd.First.Str()
	if !ok {
		return mongoerr.New(mongoerr.FailedToParse, "the shard's connection string must be a string")
	}
	if _, ok := req.Lookup("maxSize"); ok {
		return mongoerr.New(mongoerr.InvalidOptions, "maxSize is not supported")
	}
	if err := req.known("name", "weight"); err != nil {
		return err
	}
	name := ""
	if e, ok := req.Lookup("name"); ok {
		if name, ok = e.Str(); !ok {
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'addShard.name' must be a string")
		}
		if name == "" {
			return mongoerr.New(mongoerr.BadValue, "shard name cannot be empty")
		}
	}
	if name == "config" {
		return mongoerr.New(mongoerr.BadValue, "use of shard replica set with name 'config' is not allowed")
	}
	weight := 1.0
	if e, ok := req.Lookup("weight"); ok {
		if weight, ok = e.RawValue().AsFloat64OK(); !ok || weight <= 0 {
			return mongoerr.New(mongoerr.BadValue, "weight must be a number greater than 0")
		}
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	id, err := req.h.router.AddShard(ctx, target, name, weight)
	if err != nil {
		return err
	}
	req.Reply.String("shardAdded", id)
	req.Reply.OK()
	return nil
}

func listShards(ctx context.Context, req *request) error {
	var rows []catalog.Shard
	for _, sh := range req.h.router.Latest(ctx).Shards {
		rows = append(rows, sh)
	}
	docs, _ := configdb.Documents("shards", configdb.Snapshot{Shards: rows})
	b := bsoncore.NewArrayBuilder()
	for _, d := range docs {
		b.AppendDocument(bsoncore.Document(d))
	}
	req.Reply.Elems = bsoncore.AppendArrayElement(req.Reply.Elems, "shards", b.Build())
	req.Reply.OK()
	return nil
}

func enableSharding(ctx context.Context, req *request) error {
	db, ok := req.Cmd.First.Str()
	if !ok {
		return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'enableSharding' must be a string")
	}
	if err := req.known("primaryShard"); err != nil {
		return err
	}
	if err := router.CheckDB([]byte(db)); err != nil {
		return err
	}
	switch db {
	case configDB:
		req.Reply.OK()
		return nil
	case "admin", "local":
		return mongoerr.Newf(mongoerr.InvalidOptions, "can't shard %s database", db)
	}
	primary := ""
	if _, ok := req.Lookup("primaryShard"); ok {
		var err error
		if primary, err = req.stringArg("primaryShard"); err != nil {
			return err
		}
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.EnableSharding(ctx, db, primary); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

// shardCollection checks the options for themselves; the router checks them against
// the collection (MONGOS.md §1.8).
func shardCollection(ctx context.Context, req *request) error {
	spec, err := req.shardSpec()
	if err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	id, err := req.h.router.ShardCollection(ctx, spec)
	if err != nil {
		return err
	}
	req.Reply.String("collectionsharded", spec.NS)
	req.Reply.Elems = bsoncore.AppendBinaryElement(req.Reply.Elems, "collectionUUID", 4, id[:])
	req.Reply.OK()
	return nil
}

func (req *request) shardSpec() (spec router.ShardSpec, err error) {
	if spec.NS, err = req.fullNamespace(); err != nil {
		return spec, err
	}
	if err := req.known("key", "unique", "numInitialChunks", "presplitHashedZones", "collation", "timeseries",
		"implicitlyCreateIndex", "enforceUniquenessCheck"); err != nil {
		return spec, err
	}
	key, ok := req.Lookup("key")
	if !ok {
		return spec, mongoerr.New(40414, "BSON field 'shardCollection.key' is missing but a required field")
	}
	d, ok := key.Doc()
	if !ok {
		return spec, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'shardCollection.key' is the wrong type '%s', expected type 'object'", router.TypeName(key.Type))
	}
	if spec.Key, err = shardkey.ParsePattern(append(bson.Raw(nil), d...)); err != nil {
		return spec, mongoerr.New(mongoerr.BadValue, err.Error())
	}
	spec.UUID = req.collectionUUID()
	return spec, req.shardOptions(&spec)
}

func (req *request) shardOptions(spec *router.ShardSpec) error {
	spec.Unique = req.boolOption("unique", false)
	spec.ImplicitIndex = req.boolOption("implicitlyCreateIndex", true)
	spec.Enforce = req.boolOption("enforceUniquenessCheck", true)
	if spec.Unique && spec.Key.HashedField() >= 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field.")
	}
	if e, ok := req.Lookup("numInitialChunks"); ok {
		n, isNum := e.Int64()
		if !isNum {
			return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'shardCollection.numInitialChunks' must be a number")
		}
		if n < 0 || n > 1_000_000 {
			return mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks must be between 0 and 1000000")
		}
		spec.NumChunks = int(n)
		if n > 0 && spec.Key.HashedField() < 0 {
			return mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks is only supported when the collection is empty and has a hashed field in the shard key pattern")
		}
		if n > 0 && spec.Key.HashedField() > 0 {
			return mongoerr.New(mongoerr.InvalidOptions, "numInitialChunks is not supported for a hashed field that is not the first of the shard key, unless presplitHashedZones is given")
		}
	}
	if req.boolOption("presplitHashedZones", false) {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not do zones yet, which presplitHashedZones needs")
	}
	if _, ok := req.Lookup("timeseries"); ok {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not shard time series collections yet")
	}
	e, ok := req.Lookup("collation")
	if !ok {
		return nil
	}
	c, _ := e.Doc()
	l, _ := c.Lookup("locale")
	if s, _ := l.Str(); s != "simple" {
		return mongoerr.Newf(mongoerr.BadValue, "The collation for shardCollection must be {locale: 'simple'}, but found: %s", shardkey.Format(bson.Raw(c)))
	}
	spec.HasCollation = true
	return nil
}

func (req *request) boolOption(name string, def bool) bool {
	e, ok := req.Lookup(name)
	if !ok {
		return def
	}
	v, isBool := e.Bool()
	return v && isBool
}

// fullNamespace reads an argument of the form "db.coll" and refuses what cannot be
// sharded.
func (req *request) fullNamespace() (string, error) {
	ns, ok := req.Cmd.First.Str()
	if !ok {
		return "", mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type 'string'", req.row.Name, router.TypeName(req.Cmd.First.Type))
	}
	db, coll := catalog.SplitNS(ns)
	if coll == "" || len(ns) > 255 || strings.HasPrefix(coll, "$") || strings.ContainsRune(ns, 0) || !utf8.ValidString(ns) {
		return "", mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	if err := router.CheckDB([]byte(db)); err != nil {
		return "", err
	}
	if strings.HasPrefix(coll, "system.buckets.") {
		return "", mongoerr.New(5731501, "cannot shard a buckets collection")
	}
	if strings.HasPrefix(coll, "system.") || db == configDB || db == "admin" || db == "local" {
		return "", mongoerr.Newf(mongoerr.IllegalOperation, "can't shard system namespaces: %s", ns)
	}
	return ns, nil
}

// moveCollection checks the command's form; the router checks it against the collection
// (MONGOS.md §7.2).
func moveCollection(ctx context.Context, req *request) error {
	ns, err := req.fullNamespace()
	if err != nil {
		return err
	}
	if err := req.known("toShard"); err != nil {
		return err
	}
	e, ok := req.Lookup("toShard")
	if !ok {
		return mongoerr.New(40414, "BSON field 'moveCollection.toShard' is missing but a required field")
	}
	to, ok := e.Str()
	if !ok {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'moveCollection.toShard' is the wrong type '%s', expected type 'string'", router.TypeName(e.Type))
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.MoveCollection(ctx, ns, to); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

func flushRouterConfig(ctx context.Context, req *request) error {
	if err := req.h.router.Refresh(ctx); err != nil {
		return mongoerr.Wrap(mongoerr.FailedToSatisfyReadPreference, err, "the catalog (PostgreSQL) cannot be reached")
	}
	req.Reply.Bool("flushed", true)
	req.Reply.OK()
	return nil
}

func getShardMap(_ context.Context, req *request) error {
	m, hosts, conns := bson.D{}, bson.D{}, bson.D{}
	for id, sh := range req.h.router.Snapshot().Shards {
		m = append(m, bson.E{Key: id, Value: sh.Host})
		conns = append(conns, bson.E{Key: sh.Host, Value: id})
		_, list, _ := strings.Cut(sh.Host, "/")
		for h := range strings.SplitSeq(list, ",") {
			hosts = append(hosts, bson.E{Key: h, Value: id})
		}
	}
	return req.document(bson.D{{Key: "map", Value: m}, {Key: "hosts", Value: hosts}, {Key: "connStrings", Value: conns}})
}

func getShardVersion(ctx context.Context, req *request) error {
	ns, ok := req.Cmd.First.Str()
	if !ok {
		return mongoerr.New(mongoerr.TypeMismatch, "BSON field 'getShardVersion' must be a string")
	}
	s := req.h.router.Latest(ctx)
	if d, ok := s.Databases[ns]; ok {
		return req.document(bson.D{{Key: "primaryShard", Value: d.Primary}, {Key: "shardingEnabled", Value: true}, {Key: "version", Value: bson.D{
			{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: d.UUID[:]}},
			{Key: "timestamp", Value: d.Timestamp.BSON()},
			{Key: "lastMod", Value: d.LastMod},
		}}})
	}
	e := s.Entries[ns]
	if !e.Sharded() {
		return mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", ns)
	}
	return req.document(bson.D{
		{Key: "version", Value: e.Newest().BSON()},
		{Key: "versionEpoch", Value: e.Coll.Epoch},
		{Key: "versionTimestamp", Value: e.Coll.Timestamp.BSON()},
	})
}
