package commands

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/router/relay"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// relayed answers other routers, in three forms: with "nonce" and then with "proof" each
// side proves to be a router of this cluster; with "command" it runs what a client of the
// other router has sent there, and answers as it would answer the client.
func relayed(ctx context.Context, req *request) error {
	cl := req.h.client(req.conn)
	var nonce, proof, command, uid wire.Elem
	it := req.Cmd.Body.Iter()
	var e wire.Elem
	for first := true; it.Next(&e); first = false {
		switch name := string(e.Name); {
		case first, wire.IsGeneric(e.Name):
		case name == "nonce":
			nonce = e
		case name == "proof":
			proof = e
		case name == "command":
			command = e
		case name == "uid":
			uid = e
		default:
			return mongoerr.Newf(40415, "BSON field '%s.%s' is an unknown field.", relay.Command, e.Name)
		}
	}
	switch {
	case nonce.Type != 0:
		return cl.knock(req)
	case proof.Type != 0:
		if err := cl.door.Enter(relay.Bytes(req.Cmd.Body, "proof")); err != nil {
			return err
		}
		req.Reply.OK()
		return nil
	case !cl.door.Open():
		return mongoerr.Newf(mongoerr.Unauthorized, "%s is for routers of the cluster", relay.Command)
	}
	doc, ok := command.Doc()
	digest := relay.Bytes(req.Cmd.Body, "uid")
	if !ok || uid.Type == 0 || len(digest) != len(req.Session.UID) {
		return mongoerr.Newf(mongoerr.BadValue, "%s needs a command and the digest of a user", relay.Command)
	}
	return req.relayed(ctx, cl, doc, [32]byte(digest))
}

// knock begins to let another router in.
func (cl *client) knock(req *request) error {
	binding, err := relay.Binding(req.conn.TLS())
	if err != nil {
		return err
	}
	nonce, proof, err := cl.door.Knock(req.h.router.RelaySecret(), relay.Bytes(req.Cmd.Body, "nonce"), binding)
	if err != nil {
		return err
	}
	r := req.Reply
	r.Elems = bsoncore.AppendBinaryElement(r.Elems, "nonce", 0, nonce)
	r.Elems = bsoncore.AppendBinaryElement(r.Elems, "proof", 0, proof)
	r.OK()
	return nil
}

// relayed runs a command of another router's client, whose user that router has told. Only
// what is about cursors is ever relayed.
func (req *request) relayed(ctx context.Context, cl *client, doc wire.Doc, uid [32]byte) error {
	cmd := new(wire.Command)
	if err := cmd.Parse(doc); err != nil {
		return err
	}
	if name := string(cmd.First.Name); name != "getMore" && name != "killCursors" {
		return mongoerr.Newf(mongoerr.Unauthorized, "%s is not relayed", name)
	}
	inner := request{h: req.h, conn: req.conn, Op: &router.Op{
		Cmd: cmd, Reply: req.Reply, Buffers: req.Buffers, Conn: req.Op.Conn, Relayed: true,
		Session: router.Session{UID: uid},
	}}
	err := req.h.run(ctx, cl, &inner)
	req.Trace = inner.Trace
	if err == nil || errors.Is(err, router.ErrEvicted) {
		return err
	}
	return router.ClientError(inner.Op, err)
}
