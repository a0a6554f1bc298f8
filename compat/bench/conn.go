package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
)

// conn is a client's connection that costs as little as possible: the machine is shared with what is measured.
type conn struct {
	nc      net.Conn
	out, in []byte // the last message each way
	session [16]byte
	txn     int64 // number of the last retryable write
	bytes   int64 // of replies so far
	ids     uint64
}

// dialConn connects, and logs in as __system where a password is given.
func dialConn(ctx context.Context, addr, password string) (*conn, error) {
	var d net.Dialer

	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}

	c := &conn{nc: nc}
	_, _ = rand.Read(c.session[:])
	c.session[6], c.session[8] = c.session[6]&0x0f|0x40, c.session[8]&0x3f|0x80
	c.ids = binary.LittleEndian.Uint64(c.session[:])

	_, err = c.run("admin", bson.D{{Key: "hello", Value: int32(1)}})
	if err == nil && password != "" {
		err = c.login(password)
	}

	if err != nil {
		nc.Close()
		return nil, err
	}

	return c, nil
}

// login is SCRAM-SHA-256.
func (c *conn) login(password string) error {
	client, err := scram.SHA256.NewClient("__system", password, "")
	if err != nil {
		return err
	}

	talk := client.NewConversation()
	text, err := talk.Step("")
	cmd := bson.D{
		{Key: "saslStart", Value: int32(1)},
		{Key: "mechanism", Value: "SCRAM-SHA-256"},
		{Key: "payload", Value: []byte(text)},
		{Key: "options", Value: bson.D{{Key: "skipEmptyExchange", Value: true}}},
	}

	for err == nil && !talk.Done() {
		reply, rerr := c.run("local", cmd)
		if rerr != nil {
			return rerr
		}

		id, _ := reply.Lookup("conversationId")
		payload, _ := reply.Lookup("payload")
		text, err = talk.Step(string(payload.Value[5:]))
		cmd = bson.D{{Key: "saslContinue", Value: int32(1)}, {Key: "conversationId", Value: id.RawValue()}, {Key: "payload", Value: []byte(text)}}
	}

	return err
}

// run runs a command that is not measured.
func (c *conn) run(db string, cmd bson.D) (wire.Doc, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, err
	}

	c.begin()
	c.out = append(c.out, body[4:len(body)-1]...)

	return c.exchange(db)
}

// begin begins a message: elements of its command are to be appended to out.
func (c *conn) begin() {
	c.out = wire.AppendMsgStart(c.out[:0], 1, 0, 0)
	c.out = append(c.out, 0, 0, 0, 0)
}

// retryable gives the command the session and a number, as drivers do with writes.
func (c *conn) retryable() {
	c.txn++
	c.out = bsoncore.AppendInt64Element(c.out, "txnNumber", c.txn)
	c.withSession()
}

// withSession gives the command the session, as drivers do with everything.
func (c *conn) withSession() {
	var at int32
	at, c.out = bsoncore.AppendDocumentElementStart(c.out, "lsid")
	c.out = bsoncore.AppendBinaryElement(c.out, "id", 4, c.session[:])
	c.out, _ = bsoncore.AppendDocumentEnd(c.out, at)
}

// end ends the command; sections may follow.
func (c *conn) end(db string) {
	c.out = bsoncore.AppendStringElement(c.out, "$db", db)
	c.out = wire.AppendDocEnd(c.out, wire.MsgBodyAt)
}

// exchange ends the command and runs it.
func (c *conn) exchange(db string) (wire.Doc, error) {
	c.end(db)
	return c.send()
}

// send sends the message and reads the reply, which is good until the next.
func (c *conn) send() (wire.Doc, error) {
	wire.SetLength(c.out)

	if _, err := c.nc.Write(c.out); err != nil {
		return nil, err
	}

	var err error
	if c.in, err = wire.ReadReply(c.nc, c.in, wire.MaxMessageLen, nil); err != nil {
		return nil, err
	}

	c.bytes += int64(len(c.in))

	body, err := wire.ReplyBody(c.in)
	if err != nil {
		return nil, err
	}

	info, err := wire.Inspect(body)

	switch {
	case err != nil:
		return nil, err
	case !info.OK || info.WriteErrors.Type != 0:
		return nil, fmt.Errorf("refused: %s", bson.Raw(body))
	}

	return body, nil
}

// nextID is an ObjectID that nobody else makes.
func (c *conn) nextID() (id bson.ObjectID) {
	c.ids++
	binary.BigEndian.PutUint32(id[:], uint32(c.ids>>40))
	binary.BigEndian.PutUint64(id[4:], c.ids)

	return id
}

// drain reads a cursor to its end and returns how many documents it gave.
func (c *conn) drain(coll string, first wire.Doc) (docs int, err error) {
	name := "firstBatch"

	for reply := first; ; {
		cur, ok := reply.Lookup("cursor")
		if !ok {
			return docs, errors.New("no cursor")
		}

		cursor, _ := cur.Doc()
		batch, _ := cursor.Lookup(name)

		var e wire.Elem
		for it := wire.Doc(batch.Value).Iter(); it.Next(&e); {
			docs++
		}

		id, _ := cursor.Lookup("id")

		n, _ := id.Int64()
		if n == 0 {
			return docs, nil
		}

		c.begin()
		c.out = bsoncore.AppendInt64Element(c.out, "getMore", n)
		c.out = bsoncore.AppendStringElement(c.out, "collection", coll)
		c.withSession()

		if reply, err = c.exchange(database); err != nil {
			return docs, err
		}

		name = "nextBatch"
	}
}
