package router

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// hideStepDown makes 6 of a write concern error's code that says that a node is no
// primary: a driver reads it there, too, and would think ill of the router
// (MONGOS.md §5.1).
func (s *sent) hideStepDown() error {
	if !s.info.OK || s.info.WCError.Type != bson.TypeEmbeddedDocument {
		return nil
	}
	wc, _ := s.info.WCError.Doc()
	code, _ := wc.Lookup("code")
	if n, ok := code.Int64(); !ok || !mongoerr.Code(n).NotPrimary() {
		return nil
	}
	msg := wire.AppendMsgStart(make([]byte, 0, len(s.msg)), 0, 0, 0)
	at, msg := wire.AppendDocStart(msg)
	it := s.body.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if string(e.Name) == "writeConcernError" {
			msg = bsoncore.AppendDocumentElement(msg, "writeConcernError", withCode(wc, mongoerr.HostUnreachable))
			continue
		}
		msg = append(msg, e.Raw...)
	}
	msg = wire.AppendDocEnd(msg, at)
	wire.SetLength(msg)
	*s.buf = msg
	return s.read()
}

// clientCode is a shard's code as a client is to see it: it says nothing of the router.
func clientCode(c mongoerr.Code) mongoerr.Code {
	if c.NotPrimary() {
		return mongoerr.HostUnreachable
	}
	return c
}

// notOurs makes a shard's error one whose code says nothing of the router.
func notOurs(err error) error {
	if c := mongoerr.CodeOf(err); c.NotPrimary() {
		return mongoerr.New(clientCode(c), err.Error())
	}
	return err
}

// UnconfirmedAt is a shard's write concern error as a client is to see it in a reply of
// several shards: with the shard's name, and a code that says nothing of the router.
func UnconfirmedAt(shard string, wc wire.Doc) []byte {
	e := wcErrorOf(shard, wc)
	at, out := wire.AppendDocStart(make([]byte, 0, len(wc)+len(shard)+8))
	it := wire.Doc(withCode(wc, e.Code)).Iter()
	var f wire.Elem
	for it.Next(&f) {
		if string(f.Name) == "errmsg" {
			out = bsoncore.AppendStringElement(out, "errmsg", e.Message)
			continue
		}
		out = append(out, f.Raw...)
	}
	return wire.AppendDocEnd(out, at)
}

// withCode copies an error's document with another code.
func withCode(doc wire.Doc, code mongoerr.Code) []byte {
	at, out := wire.AppendDocStart(make([]byte, 0, len(doc)))
	it := doc.Iter()
	var e wire.Elem
	for it.Next(&e) {
		switch string(e.Name) {
		case "code":
			out = bsoncore.AppendInt32Element(out, "code", int32(code))
		case "codeName":
			out = bsoncore.AppendStringElement(out, "codeName", code.String())
		default:
			out = append(out, e.Raw...)
		}
	}
	return wire.AppendDocEnd(out, at)
}
