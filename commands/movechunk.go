package commands

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// movesKnow lists the options of a command beside those of moveChunk and moveRange that
// change nothing: every write of a movement has the write concern "majority", and a chunk may
// be of any size.
func movesKnow(names ...string) []string {
	return append(names, "waitForDelete", "_waitForDelete", "forceJumbo", "secondaryThrottle", "_secondaryThrottle", "maxChunkSizeBytes")
}

// moveChunk checks the command's form (MONGOS.md §1.8); the router checks it against the
// collection.
func moveChunk(ctx context.Context, req *request) error {
	ns, err := req.fullNamespace()
	if err != nil {
		return err
	}
	if err := req.known(movesKnow("find", "bounds", "to")...); err != nil {
		return err
	}
	spec := router.MoveSpec{NS: ns, Wait: req.waitsForDelete()}
	if spec.To, err = req.stringArg("to"); err != nil {
		return err
	}
	if spec.Find, err = req.docOption("find"); err != nil {
		return err
	}
	bounds, bounded := req.Lookup("bounds")
	if bounded {
		if spec.Min, spec.Max, err = req.twoBounds(bounds); err != nil {
			return err
		}
	}
	switch {
	case bounded && spec.Find != nil:
		return mongoerr.New(mongoerr.InvalidOptions, "cannot specify bounds and query at the same time")
	case !bounded && spec.Find == nil:
		return mongoerr.New(mongoerr.InvalidOptions, "need to specify query or bounds")
	}
	begin := time.Now()
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.MoveChunk(ctx, &spec); err != nil {
		return err
	}
	req.Reply.Int64("millis", time.Since(begin).Milliseconds())
	req.Reply.OK()
	return nil
}

// moveRange is moveChunk for a part of a chunk.
func moveRange(ctx context.Context, req *request) error {
	ns, err := req.fullNamespace()
	if err != nil {
		return err
	}
	if err := req.known(movesKnow("min", "max", "toShard")...); err != nil {
		return err
	}
	spec := router.MoveSpec{NS: ns, Part: true, Wait: req.waitsForDelete()}
	if spec.To, err = req.stringArg("toShard"); err != nil {
		return err
	}
	if spec.Min, err = req.docOption("min"); err != nil {
		return err
	}
	if spec.Max, err = req.docOption("max"); err != nil {
		return err
	}
	if spec.Min == nil && spec.Max == nil {
		return mongoerr.New(mongoerr.InvalidOptions, "at least one of 'min' and 'max' must be given")
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.MoveChunk(ctx, &spec); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

func (req *request) waitsForDelete() bool {
	return req.boolOption("waitForDelete", false) || req.boolOption("_waitForDelete", false)
}

// docOption reads an option that is a document, nil where it is absent.
func (req *request) docOption(name string) (bson.Raw, error) {
	e, ok := req.Lookup(name)
	if !ok {
		return nil, nil
	}
	d, ok := e.Doc()
	if !ok {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'object'", req.row.Name, name, router.TypeName(e.Type))
	}
	return append(bson.Raw(nil), d...), nil
}

// twoBounds reads the bounds of a chunk.
func (req *request) twoBounds(e wire.Elem) (lower, upper bson.Raw, err error) {
	if e.Type != bson.TypeArray {
		return nil, nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.bounds' is the wrong type '%s', expected type 'array'", req.row.Name, router.TypeName(e.Type))
	}
	var docs []bson.Raw
	it := wire.Doc(e.Value).Iter()
	var d wire.Elem
	for it.Next(&d) {
		doc, ok := d.Doc()
		if !ok {
			return nil, nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.bounds.%s' is the wrong type '%s', expected type 'object'", req.row.Name, d.Name, router.TypeName(d.Type))
		}
		docs = append(docs, append(bson.Raw(nil), doc...))
	}
	if len(docs) != 2 {
		return nil, nil, mongoerr.New(mongoerr.InvalidOptions, "bound can only have 2 elements")
	}
	return docs[0], docs[1], nil
}
