package server

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// fakeHandler answers with its functions; those that are nil answer ok.
type fakeHandler struct {
	command func(ctx context.Context, c *Conn, m *wire.Msg, reply *wire.Reply) (bool, error)
	query   func(q *wire.Query, reply *wire.Reply) (uint32, error)
	calls   atomic.Int64
	closed  atomic.Int64
	left    atomic.Int64
	clock   *wire.ClusterTime
}

var _ Handler = (*fakeHandler)(nil)

func (f *fakeHandler) Command(ctx context.Context, c *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
	f.calls.Add(1)
	if f.command != nil {
		return f.command(ctx, c, m, reply)
	}
	reply.OK()
	return false, nil
}

func (f *fakeHandler) Query(_ context.Context, _ *Conn, q *wire.Query, reply *wire.Reply) (uint32, error) {
	f.calls.Add(1)
	if f.query != nil {
		return f.query(q, reply)
	}
	reply.OK()
	return 0, nil
}

func (f *fakeHandler) Closed(context.Context, *Conn) { f.closed.Add(1) }
func (f *fakeHandler) Left()                         { f.left.Add(1) }
func (f *fakeHandler) Time() *wire.ClusterTime       { return f.clock }

// running is a server that runs until stop.
type running struct {
	*Server

	cancel context.CancelFunc
	done   chan struct{}
}

func start(t *testing.T, o Options) *running {
	t.Helper()
	return startWith(t, o, func(*Server) {})
}

// startWith is start with a change to the server before it runs.
func startWith(t testing.TB, o Options, change func(*Server)) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o.Listener, o.Log = l, zerolog.New(io.Discard)
	if o.DrainTimeout == 0 {
		o.DrainTimeout = patience
	}
	s := New(o)
	change(s)
	r := &running{Server: s, cancel: cancel, done: make(chan struct{})}
	go func() { defer close(r.done); s.Run(ctx) }()
	t.Cleanup(r.stop)
	return r
}

// stop ends the server and waits.
func (r *running) stop() {
	r.cancel()
	<-r.done
}

// client is one connection to a server.
type client struct {
	net.Conn
	t *testing.T
	r *wire.Reader
}

func (r *running) dial(t *testing.T) *client {
	t.Helper()
	nc, err := net.Dial("tcp", r.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	return &client{Conn: nc, t: t, r: wire.NewReader(nc, new(wire.Buffers))}
}

// request is an OP_MSG.
func request(t *testing.T, id int32, flags uint32, d bson.D) []byte {
	t.Helper()
	body, err := bson.Marshal(d)
	require.NoError(t, err)
	b := append(wire.AppendMsgStart(nil, id, 0, flags), body...)
	if flags&wire.FlagChecksum != 0 {
		b = append(b, 0, 0, 0, 0)
	}
	wire.SetLength(b)
	if flags&wire.FlagChecksum != 0 {
		sum := wire.Checksum(b[:len(b)-4])
		copy(b[len(b)-4:], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)})
	}
	return b
}

func ping(t *testing.T, id int32) []byte {
	t.Helper()
	return request(t, id, 0, bson.D{{Key: "ping", Value: int32(1)}})
}

func (c *client) send(b []byte) {
	c.t.Helper()
	_, err := c.Write(b)
	require.NoError(c.t, err)
}

// reply reads the next message.
func (c *client) reply() wire.Msg {
	c.t.Helper()
	b, err := c.r.Next(wire.MaxMessageLen)
	require.NoError(c.t, err)
	var m wire.Msg
	require.NoError(c.t, wire.ParseMsg(append([]byte(nil), b...), &m))
	return m
}

// ended requires that the server closes the connection without another byte.
func (c *client) ended() {
	c.t.Helper()
	b, err := c.r.Next(wire.MaxMessageLen)
	require.Error(c.t, err, "got %x", b)
	var ne net.Error
	require.False(c.t, isTimeout(err, &ne), "still open")
}

func number(t *testing.T, d wire.Doc, field string) int64 {
	t.Helper()
	e, ok := d.Lookup(field)
	require.True(t, ok, field)
	n, ok := e.Int64()
	require.True(t, ok, field)
	return n
}
