package commands

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// The wire versions of MongoDB 6.0 (MONGOS.md §1.1): clients are told what the shards
// can do.
const (
	minWireVersion = 0
	maxWireVersion = 17
)

// hello answers hello, isMaster and ismaster with the fields, order and types of
// MONGOSH.md §1.3. With topologyVersion and maxAwaitTimeMS it waits: nothing ever
// changes but that the router stops.
func hello(ctx context.Context, req *request) error {
	wait, err := helloWait(req)
	if err != nil {
		return err
	}
	balanced, err := behindBalancer(req)
	if err != nil {
		return err
	}
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-req.conn.Stopping():
		case <-ctx.Done():
		}
		req.stream = req.Msg != nil && req.Msg.Flags&wire.FlagExhaustAllowed != 0
	}
	r := req.Reply
	if string(req.Cmd.First.Name) == "hello" {
		r.Bool("isWritablePrimary", true)
	} else {
		r.Bool("ismaster", true)
	}
	r.String("msg", "isdbgrid")
	at, b := bsoncore.AppendDocumentElementStart(r.Elems, "topologyVersion")
	b = bsoncore.AppendObjectIDElement(b, "processId", req.h.process)
	b = bsoncore.AppendInt64Element(b, "counter", 0)
	r.Elems, _ = bsoncore.AppendDocumentEnd(b, at)
	if e, ok := req.Lookup("helloOk"); ok {
		if v, _ := e.Bool(); v {
			r.Bool("helloOk", true)
		}
	}
	r.Int32("maxBsonObjectSize", wire.MaxDocumentLen)
	r.Int32("maxMessageSizeBytes", wire.MaxMessageLen)
	r.Int32("maxWriteBatchSize", wire.MaxBatch)
	r.Elems = bsoncore.AppendDateTimeElement(r.Elems, "localTime", time.Now().UnixMilli())
	r.Int32("logicalSessionTimeoutMinutes", 30)
	r.Int32("connectionId", int32(req.conn.ID&0x7fffffff))
	r.Int32("minWireVersion", minWireVersion)
	r.Int32("maxWireVersion", maxWireVersion)
	appendCompression(req)
	if balanced {
		r.Elems = bsoncore.AppendObjectIDElement(r.Elems, "serviceId", req.h.process)
	}
	r.OK()
	return nil
}

// behindBalancer reports whether a client says that it comes through a balancer of
// connections. It is told which of the routers it has come to, and keeps what it begins on
// the connection (CASES.md A6).
func behindBalancer(req *request) (bool, error) {
	e, ok := req.Lookup("loadBalanced")
	if !ok {
		return false, nil
	}
	on, ok := e.Bool()
	if !ok {
		return false, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.loadBalanced' is the wrong type '%s', expected types '[bool, int, long, double, decimal]'",
			req.Cmd.First.Name, router.TypeName(e.Type))
	}
	return on, nil
}

// appendCompression names those of the client's compressors that this router has, in the
// client's order. What is compressed is understood in any case, as by a mongod.
func appendCompression(req *request) {
	list, ok := req.Lookup("compression")
	if !ok || list.Type != bson.TypeArray {
		return
	}
	known := bsoncore.NewArrayBuilder()
	it := wire.Doc(list.Value).Iter()
	var e wire.Elem
	some := false
	for it.Next(&e) {
		name, _ := e.Str()
		if _, has := wire.CompressorByName(name); has {
			known.AppendString(name)
			some = true
		}
	}
	if some {
		req.Reply.Elems = bsoncore.AppendArrayElement(req.Reply.Elems, "compression", known.Build())
	}
}

// helloWait returns how long an awaitable hello is to wait, 0 for a plain one
// (codes of MONGOS.md §1.1).
func helloWait(req *request) (time.Duration, error) {
	version, hasVersion := req.Lookup("topologyVersion")
	await, hasAwait := req.Lookup("maxAwaitTimeMS")
	switch {
	case hasVersion != hasAwait:
		return 0, mongoerr.New(51760, "A request with a 'topologyVersion' must include 'maxAwaitTimeMS', and the other way round")
	case !hasVersion:
		return 0, nil
	}
	ms, ok := await.Int64()
	if !ok || ms < 0 {
		return 0, mongoerr.New(51759, "maxAwaitTimeMS must be a non-negative integer")
	}
	d, ok := version.Doc()
	if !ok {
		return 0, mongoerr.New(mongoerr.TypeMismatch, "topologyVersion must be an object")
	}
	counter, _ := d.Lookup("counter")
	n, ok := counter.Int64()
	if !ok || n < 0 {
		return 0, mongoerr.New(51758, "topologyVersion must have a non-negative counter")
	}
	id, _ := d.Lookup("processId")
	if len(id.Value) != 12 || string(id.Value) != string(req.h.process[:]) {
		return 0, nil // another process's version: answer at once
	}
	return time.Duration(ms) * time.Millisecond, nil
}
