package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// replyRoom is the buffer a reply starts with, in bytes.
const replyRoom = 4096

// writeLimit is how long a client may leave replies unread, at most; at least half of it.
const writeLimit = time.Minute

// Conn is one client's connection.
type Conn struct {
	ID     int64
	server *Server
	nc     net.Conn
	reader *wire.Reader
	by     time.Time // the write deadline that is set
	once   sync.Once
	busy   atomic.Bool  // an operation is running
	count  atomic.Int64 // of messages begun
	leaves atomic.Bool  // the running operation ends when its client goes
	cancel context.CancelFunc
	seen   int64       // for watch alone: count when it looked last
	ending atomic.Bool // close when it is done

	compressor wire.Compressor // of the message at hand, and so of its replies; 0: none

	// State is the Handler's own, for as long as the connection lives.
	State any
}

func newConn(s *Server, nc net.Conn) *Conn {
	return &Conn{ID: s.lastConn.Add(1), server: s, nc: nc, reader: wire.NewReader(nc, &s.buffers)}
}

// Remote returns the client's address.
func (c *Conn) Remote() string { return c.nc.RemoteAddr().String() }

// Local returns the address the client came to.
func (c *Conn) Local() string { return c.nc.LocalAddr().String() }

// TLS returns the state of the connection's encryption, nil for none.
func (c *Conn) TLS() *tls.ConnectionState {
	t, is := c.nc.(*tls.Conn)
	if !is {
		return nil
	}
	state := t.ConnectionState()
	return &state
}

// Buffers returns the pool that replies and shard messages borrow from.
func (c *Conn) Buffers() *wire.Buffers { return &c.server.buffers }

// EndsWithClient says that the running operation is of no use to anybody when its client
// has gone: its context ends then, and the Handler's Left is called.
func (c *Conn) EndsWithClient() { c.leaves.Store(true) }

// Connections returns how many clients are connected to this router.
func (c *Conn) Connections() int { return c.server.Connections() }

// Stopping is closed when the server begins to stop.
func (c *Conn) Stopping() <-chan struct{} { return c.server.stopping }

func (c *Conn) close() {
	c.once.Do(func() { c.nc.Close() })
}

// greetingLimit is how long a connection that has just come is kept for its client's first
// message when the server stops. It answers that: a driver repeats an operation whose
// connection ends, but not all of them one whose connection ended before.
const greetingLimit = 200 * time.Millisecond

// stopWhenIdle ends the connection now if it waits for a message, else after the
// running operation.
func (c *Conn) stopWhenIdle() {
	c.ending.Store(true)
	if c.count.Load() == 0 {
		_ = c.nc.SetReadDeadline(time.Now().Add(c.server.greetingLimit))
	} else if !c.busy.Load() {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // a closed connection is as good
	}
}

func (c *Conn) serve(ctx context.Context) {
	log := c.server.opts.Log
	if err := c.handshake(ctx); err != nil {
		log.Info().Int64("conn", c.ID).Err(err).Msg("connection closed: no TLS")
		return
	}
	var m wire.Msg
	for first := true; first || !c.ending.Load(); first = false {
		b, err := c.reader.Next(wire.MaxMessageLen)
		if err == nil {
			c.count.Add(1)
			c.busy.Store(true)
			err = c.guarded(ctx, b, &m)
			c.leaves.Store(false)
			c.busy.Store(false)
			c.reader.Release()
		}
		switch {
		case err == nil:
		case errors.Is(err, wire.ErrProtocol):
			log.Info().Int64("conn", c.ID).Err(err).Msg("connection closed: protocol error")
			return
		default:
			if !errors.Is(err, io.EOF) && !c.ending.Load() {
				log.Debug().Int64("conn", c.ID).Err(err).Msg("connection ended")
			}
			return
		}
	}
}

// handshakeLimit is how long a client may take to agree on TLS.
const handshakeLimit = 10 * time.Second

// handshake agrees on TLS, where that is asked for.
func (c *Conn) handshake(ctx context.Context) error {
	t, is := c.nc.(*tls.Conn)
	if !is {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	return t.HandshakeContext(ctx)
}

// errPanicked ends a connection whose message made the program panic.
var errPanicked = errors.New("the message made the handler panic")

// guarded handles a message; a panic ends this connection and no other.
func (c *Conn) guarded(ctx context.Context, b []byte, m *wire.Msg) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.server.opts.Log.Error().Int64("conn", c.ID).Interface("panic", p).Bytes("stack", debug.Stack()).Msg("panic")
			err = errPanicked
		}
	}()
	return c.handle(ctx, b, m)
}

func (c *Conn) handle(ctx context.Context, b []byte, m *wire.Msg) error {
	c.compressor = 0
	if wire.ParseHeader(b).OpCode == wire.OpCompressed {
		buf := c.server.buffers.Get(2 * len(b))
		defer c.server.buffers.Put(buf)
		var err error
		if *buf, c.compressor, err = wire.Decompress(*buf, b, wire.MaxMessageLen); err != nil {
			return err
		}
		b = *buf
	}
	switch h := wire.ParseHeader(b); h.OpCode {
	case wire.OpMsg:
		return c.message(ctx, b, m)
	case wire.OpQuery:
		return c.query(ctx, b)
	case wire.OpGetMore:
		return c.refuseOld("OP_GET_MORE", h.RequestID)
	default:
		return protocolErrorf("unsupported opcode %d", h.OpCode)
	}
}

func (c *Conn) message(ctx context.Context, b []byte, m *wire.Msg) error {
	buf := c.server.buffers.Get(replyRoom)
	var reply wire.Reply
	reply.Begin(*buf)
	// The reply may have moved to another buffer; that one is given back.
	defer func() { *buf = reply.Elems; c.server.buffers.Put(buf) }()
	if err := wire.ParseMsg(b, m); err != nil {
		if errors.Is(err, wire.ErrProtocol) {
			return err
		}
		reply.Error(mongoerr.As(err))
		return c.send(m, &reply, m.RequestID, 0)
	}
	responseTo := m.RequestID
	for {
		stream, err := c.server.opts.Handler.Command(ctx, c, m, &reply)
		if err != nil {
			return err
		}
		flags := m.Flags & wire.FlagChecksum
		// Who wants no reply gets no stream of them.
		if stream = stream && !m.MoreToCome() && !c.ending.Load(); stream {
			flags |= wire.FlagMoreToCome
		}
		id := c.server.ids.Next()
		if err := c.sendAs(m, &reply, id, responseTo, flags); err != nil || !stream {
			return err
		}
		responseTo = id
		reply.Begin(reply.Elems)
	}
}

func (c *Conn) send(m *wire.Msg, reply *wire.Reply, responseTo int32, flags uint32) error {
	return c.sendAs(m, reply, c.server.ids.Next(), responseTo, flags)
}

func (c *Conn) sendAs(m *wire.Msg, reply *wire.Reply, id, responseTo int32, flags uint32) error {
	if m.MoreToCome() {
		return nil
	}
	msg := reply.Finish(id, responseTo, flags, c.server.opts.Handler.Time())
	return c.write(msg)
}

// write sends a reply, compressed as the message was that it answers. A client that does not read must not hold its memory and this
// goroutine for ever; a deadline that is moved only when half of it is over costs next to
// nothing.
func (c *Conn) write(b []byte) error {
	if c.compressor != 0 {
		buf := c.server.buffers.Get(len(b))
		defer c.server.buffers.Put(buf)
		var err error
		if *buf, err = wire.AppendCompressed(*buf, b, c.compressor); err != nil {
			return err
		}
		b = *buf
	}
	if err := c.prolong(); err != nil {
		return err
	}
	if len(b) >= unreadFrom {
		return c.writeLong(b)
	}
	_, err := c.nc.Write(b)
	return err
}

// prolong moves the deadline for the client to take the next step of what is written.
func (c *Conn) prolong() error {
	limit := c.server.writeLimit
	now := time.Now()
	if c.by.Sub(now) >= limit/2 {
		return nil
	}
	c.by = now.Add(limit)
	return c.nc.SetWriteDeadline(c.by)
}

func (c *Conn) query(ctx context.Context, b []byte) error {
	q, err := wire.ParseQuery(b)
	if err != nil {
		return err
	}
	if !bytes.HasSuffix(q.NS, []byte(".$cmd")) {
		return c.refuseOld("OP_QUERY", q.RequestID)
	}
	var reply wire.Reply
	reply.Begin(make([]byte, 0, replyRoom))
	flags, err := c.server.opts.Handler.Query(ctx, c, &q, &reply)
	if err != nil {
		return err
	}
	msg := reply.Finish(c.server.ids.Next(), q.RequestID, 0, c.server.opts.Handler.Time())
	return c.write(wire.AsQueryReply(make([]byte, 0, len(msg)+16), msg, flags))
}

// refuseOld answers what asks for documents in the old protocol, in the form that old
// clients read and with mongod's code (CASES.md A4).
func (c *Conn) refuseOld(what string, responseTo int32) error {
	var reply wire.Reply
	reply.Begin(make([]byte, 0, replyRoom))
	reply.String("$err", what+" is no longer supported. The client driver may require an upgrade.")
	reply.Int32("code", 5739101)
	reply.Double("ok", 0)
	msg := reply.Finish(c.server.ids.Next(), responseTo, 0, c.server.opts.Handler.Time())
	return c.write(wire.AsQueryReply(make([]byte, 0, len(msg)+16), msg, wire.ReplyQueryFailure))
}
