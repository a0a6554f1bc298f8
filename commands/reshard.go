package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// errChunkNumber is for a number of chunks that cannot be (MONGOS.md §7.1).
const errChunkNumber mongoerr.Code = 4952602

// maxReshardChunks bounds numInitialChunks of a resharding: every router loads its whole new
// layout more than once.
const maxReshardChunks = 100_000

// reshardCollection checks the command's form; the router checks it against the collection
// (MONGOS.md §7.1).
func reshardCollection(ctx context.Context, req *request) error {
	ns, err := req.fullNamespace()
	if err != nil {
		return err
	}
	if err := req.known("key", "unique", "numInitialChunks", "collation", "zones", "forceRedistribution",
		"shardDistribution", "_presetReshardedChunks"); err != nil {
		return err
	}
	key, err := req.docOption("key")
	if err != nil {
		return err
	}
	if key == nil {
		return mongoerr.New(40414, "BSON field 'reshardCollection.key' is missing but a required field")
	}
	spec := router.ReshardSpec{NS: ns, UUID: req.collectionUUID()}
	if spec.Key, err = shardkey.ParsePattern(key); err != nil {
		return mongoerr.New(mongoerr.BadValue, err.Error())
	}
	if err := req.reshardOptions(&spec); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.Reshard(ctx, &spec); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

func (req *request) reshardOptions(spec *router.ReshardSpec) (err error) {
	if req.boolOption("unique", false) {
		return mongoerr.New(mongoerr.BadValue, "reshardCollection cannot make the shard key unique: 'unique' must be false")
	}
	if spec.Force, err = req.strictBool("forceRedistribution"); err != nil {
		return err
	}
	if e, ok := req.Lookup("numInitialChunks"); ok {
		n, isNum := e.Int64()
		switch {
		case !isNum:
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'reshardCollection.numInitialChunks' is the wrong type '%s', expected a number", router.TypeName(e.Type))
		case n < 1:
			return mongoerr.New(errChunkNumber, "numInitialChunks must be a positive number")
		case n > maxReshardChunks:
			return mongoerr.Newf(mongoerr.InvalidOptions, "numInitialChunks cannot be more than %d", maxReshardChunks)
		}
		spec.NumChunks = int(n)
	}
	if err := req.noZones(); err != nil {
		return err
	}
	if spec.Shares, err = req.shares("shardDistribution", "shard", false); err != nil {
		return err
	}
	if spec.Chunks, err = req.shares("_presetReshardedChunks", "recipientShardId", true); err != nil {
		return err
	}
	if spec.Chunks != nil && (spec.NumChunks > 0 || spec.Shares != nil) {
		return mongoerr.New(mongoerr.BadValue, "_presetReshardedChunks cannot be used with numInitialChunks or shardDistribution")
	}
	spec.HasCollation, err = req.simpleCollation()
	return err
}

// simpleCollation reads the collation, which may only be the simple one.
func (req *request) simpleCollation() (given bool, err error) {
	c, err := req.docOption("collation")
	if err != nil || c == nil {
		return false, err
	}
	if s, _ := c.Lookup("locale").StringValueOK(); s != "simple" {
		return false, mongoerr.Newf(mongoerr.BadValue, "The collation for %s must be {locale: 'simple'}, but found: %s", req.row.Name, shardkey.Format(c))
	}
	return true, nil
}

// noZones refuses zones, which do not exist here yet; an empty list says that there are none.
func (req *request) noZones() error {
	e, ok := req.Lookup("zones")
	if !ok {
		return nil
	}
	if e.Type != bson.TypeArray {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.zones' is the wrong type '%s', expected type 'array'", req.row.Name, router.TypeName(e.Type))
	}
	if first, _ := wire.Doc(e.Value).First(); first.Type != 0 {
		return mongoerr.New(mongoerr.NotImplemented, "shardgate does not do zones yet")
	}
	return nil
}

// strictBool reads a flag that must be one.
func (req *request) strictBool(name string) (bool, error) {
	e, ok := req.Lookup(name)
	if !ok {
		return false, nil
	}
	v, isBool := e.Bool()
	if !isBool {
		return false, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'bool'", req.row.Name, name, router.TypeName(e.Type))
	}
	return v, nil
}

// shares reads a list of shards with ranges, nil where it is absent.
func (req *request) shares(name, shard string, bounded bool) ([]router.Share, error) {
	e, ok := req.Lookup(name)
	if !ok {
		return nil, nil
	}
	if e.Type != bson.TypeArray {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'array'", req.row.Name, name, router.TypeName(e.Type))
	}
	var list []router.Share
	it := wire.Doc(e.Value).Iter()
	var d wire.Elem
	for it.Next(&d) {
		doc, ok := d.Doc()
		if !ok {
			return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s.%s' is the wrong type '%s', expected type 'object'", req.row.Name, name, d.Name, router.TypeName(d.Type))
		}
		s, err := req.share(name, shard, append(bson.Raw(nil), doc...))
		if err != nil {
			return nil, err
		}
		if (s.Min == nil) != (s.Max == nil) || bounded && s.Min == nil {
			return nil, mongoerr.Newf(mongoerr.InvalidOptions, "each of %s must have min and max", name)
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, mongoerr.Newf(mongoerr.InvalidOptions, "%s is empty", name)
	}
	return list, it.Err()
}

// share reads one of them.
func (req *request) share(name, shard string, doc bson.Raw) (s router.Share, err error) {
	elems, err := doc.Elements()
	if err != nil {
		return s, err
	}
	for _, e := range elems {
		var ok bool
		switch e.Key() {
		case shard:
			s.Shard, ok = e.Value().StringValueOK()
		case "min":
			s.Min, ok = e.Value().DocumentOK()
		case "max":
			s.Max, ok = e.Value().DocumentOK()
		default:
			return s, mongoerr.Newf(40415, "BSON field '%s.%s.%s' is an unknown field.", req.row.Name, name, e.Key())
		}
		if !ok {
			return s, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s.%s' is the wrong type '%s'", req.row.Name, name, e.Key(), router.TypeName(e.Value().Type))
		}
	}
	if s.Shard == "" {
		return s, mongoerr.Newf(40414, "BSON field '%s.%s.%s' is missing but a required field", req.row.Name, name, shard)
	}
	return s, nil
}

// unshardCollection checks the command's form (MONGOS.md §7.2).
func unshardCollection(ctx context.Context, req *request) error {
	ns, err := req.fullNamespace()
	if err != nil {
		return err
	}
	if _, ok := req.Lookup("zones"); ok {
		return mongoerr.New(mongoerr.InvalidOptions, "unshardCollection does not take zones")
	}
	if err := req.known("toShard"); err != nil {
		return err
	}
	spec := router.ReshardSpec{NS: ns, UUID: req.collectionUUID()}
	if e, ok := req.Lookup("toShard"); ok {
		if spec.To, ok = e.Str(); !ok {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'unshardCollection.toShard' is the wrong type '%s', expected type 'string'", router.TypeName(e.Type))
		}
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.Reshard(ctx, &spec); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

// ofResharding is a command about a resharding that is under way.
func ofResharding(do func(r *router.Router, ctx context.Context, ns string) error) func(context.Context, *request) error {
	return func(ctx context.Context, req *request) error {
		ns, err := req.anyNamespace()
		if err != nil {
			return err
		}
		if err := req.known(); err != nil {
			return err
		}
		ctx, cancel := req.Context(ctx)
		defer cancel()
		if err := do(req.h.router, ctx, ns); err != nil {
			return err
		}
		req.Reply.OK()
		return nil
	}
}

func abortResharding(kind router.ReshardKind) func(context.Context, *request) error {
	return ofResharding(func(r *router.Router, ctx context.Context, ns string) error { return r.AbortResharding(ctx, ns, kind) })
}

func commitResharding(ctx context.Context, req *request) error {
	return ofResharding(func(r *router.Router, ctx context.Context, ns string) error {
		return r.CommitResharding(ctx, ns, router.Resharding)
	})(ctx, req)
}

func cleanUpResharding(ctx context.Context, req *request) error {
	return ofResharding((*router.Router).CleanUpResharding)(ctx, req)
}
