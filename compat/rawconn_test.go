package compat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Opcodes and flags of the protocol, written down here so that the router's own constants are not trusted.
const (
	opReply      = 1
	opInsert     = 2002
	opQuery      = 2004
	opGetMore    = 2005
	opCompressed = 2012
	opMsg        = 2013

	flagChecksum       = 1
	flagMoreToCome     = 2
	flagExhaustAllowed = 1 << 16

	headerSize = 16
	rawLimit   = 15 * time.Second
)

// rawConn is a client that sends whatever a test wants.
type rawConn struct {
	net.Conn
	t    testing.TB
	last int32 // request id
}

// message is what came back.
type message struct {
	ID, To, Op int32
	Flags      uint32 // of OP_MSG, or the response flags of OP_REPLY
	Body       bson.Raw
	Trailer    []byte // checksum
	payload    []byte // after the header
}

// sequence is a section of kind 1.
type sequence struct {
	ID   string
	Docs []any
}

// dialRaw opens a connection to a router.
func dialRaw(t testing.TB, r int) *rawConn {
	t.Helper()

	conn, err := net.DialTimeout("tcp", shared.cluster.Router(r).Addr(), rawLimit)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })

	return &rawConn{Conn: conn, t: t, last: 1000}
}

// frame puts a header before a payload; length 0 means the true one.
func (c *rawConn) frame(op int32, payload []byte, length int32) []byte {
	c.last++

	if length == 0 {
		length = int32(headerSize + len(payload))
	}

	b := make([]byte, headerSize, headerSize+len(payload))
	binary.LittleEndian.PutUint32(b[0:], uint32(length))
	binary.LittleEndian.PutUint32(b[4:], uint32(c.last))
	binary.LittleEndian.PutUint32(b[12:], uint32(op))

	return append(b, payload...)
}

// write sends bytes.
func (c *rawConn) write(b []byte) {
	c.t.Helper()
	require.NoError(c.t, c.SetDeadline(time.Now().Add(rawLimit)))

	_, err := c.Write(b)
	require.NoError(c.t, err)
}

// raw encodes a document.
func raw(t testing.TB, doc any) []byte {
	t.Helper()

	b, err := bson.Marshal(doc)
	require.NoError(t, err)

	return b
}

// body is a section of kind 0.
func (c *rawConn) body(doc any) []byte {
	return append([]byte{0}, raw(c.t, doc)...)
}

// seq is a section of kind 1.
func (c *rawConn) seq(s sequence) []byte {
	b := append([]byte(s.ID), 0)
	for _, d := range s.Docs {
		b = append(b, raw(c.t, d)...)
	}

	out := binary.LittleEndian.AppendUint32([]byte{1}, uint32(4+len(b)))

	return append(out, b...)
}

// msg makes an OP_MSG of sections, with its checksum if flags say so.
func (c *rawConn) msg(flags uint32, sections ...[]byte) []byte {
	payload := binary.LittleEndian.AppendUint32(nil, flags)
	for _, s := range sections {
		payload = append(payload, s...)
	}

	if flags&flagChecksum == 0 {
		return c.frame(opMsg, payload, 0)
	}

	b := c.frame(opMsg, payload, int32(headerSize+len(payload)+4))

	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// query makes an OP_QUERY of one document.
func (c *rawConn) query(coll string, doc any) []byte {
	payload := append([]byte{0, 0, 0, 0}, coll...)
	payload = append(payload, 0)
	payload = append(payload, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)

	return c.frame(opQuery, append(payload, raw(c.t, doc)...), 0)
}

// read returns the next message.
func (c *rawConn) read() (message, error) {
	var m message
	if err := c.SetReadDeadline(time.Now().Add(rawLimit)); err != nil {
		return m, err
	}

	var head [headerSize]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return m, err
	}

	length := binary.LittleEndian.Uint32(head[0:])
	if length < headerSize || length > 48000000+16384 {
		return m, fmt.Errorf("a message of %d bytes", length)
	}

	m.ID, m.To, m.Op = int32(binary.LittleEndian.Uint32(head[4:])), int32(binary.LittleEndian.Uint32(head[8:])), int32(binary.LittleEndian.Uint32(head[12:]))

	m.payload = make([]byte, length-headerSize)
	if _, err := io.ReadFull(c, m.payload); err != nil {
		return m, err
	}

	m.Flags = binary.LittleEndian.Uint32(m.payload)

	switch m.Op {
	case opMsg:
		rest := m.payload[4:]
		if m.Flags&flagChecksum != 0 {
			rest, m.Trailer = rest[:len(rest)-4], rest[len(rest)-4:]
		}

		if rest[0] != 0 {
			return m, fmt.Errorf("first section of kind %d", rest[0])
		}

		m.Body = bson.Raw(rest[1:])
	case opReply:
		m.Body = bson.Raw(m.payload[20:])
	default:
		return m, fmt.Errorf("opcode %d in a reply", m.Op)
	}

	return m, m.Body.Validate()
}

// must returns the next message, which must answer the last request.
func (c *rawConn) must() message {
	c.t.Helper()

	m, err := c.read()
	require.NoError(c.t, err)
	require.Equal(c.t, c.last, m.To, "the reply answers the last request: %s", m.Body)

	return m
}

// run sends a command and returns the reply.
func (c *rawConn) run(doc any, sequences ...sequence) bson.Raw {
	c.t.Helper()

	sections := [][]byte{c.body(doc)}
	for _, s := range sequences {
		sections = append(sections, c.seq(s))
	}

	c.write(c.msg(0, sections...))

	return c.must().Body
}

// closed checks that the router closes the connection without a word.
func (c *rawConn) closed(why string) {
	c.t.Helper()

	m, err := c.read()

	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("%s: the connection should have been closed, got %v %v", why, m.Body, err)
	}
}

// silent checks that nothing comes for a while.
func (c *rawConn) silent(d time.Duration) {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(d)))

	n, err := c.Read(make([]byte, 1))

	var timeout net.Error
	require.True(c.t, errors.As(err, &timeout) && timeout.Timeout(), "%d bytes came, %v", n, err)
}

// ok checks a reply's ok field.
func ok(t testing.TB, doc bson.Raw) bson.Raw {
	t.Helper()
	require.Equal(t, bson.TypeDouble, doc.Lookup("ok").Type, "%s", doc)
	require.InDelta(t, 1, doc.Lookup("ok").Double(), 0, "%s", doc)

	return doc
}

// refused checks a reply's code, with the name that belongs to it.
func refused(t testing.TB, doc bson.Raw, want int32, name string) {
	t.Helper()
	require.InDelta(t, 0, doc.Lookup("ok").Double(), 0, "%s", doc)
	require.Equal(t, want, doc.Lookup("code").Int32(), "%s", doc)
	require.Equal(t, name, doc.Lookup("codeName").StringValue(), "%s", doc)
	require.NotEmpty(t, doc.Lookup("errmsg").StringValue(), "%s", doc)
}
