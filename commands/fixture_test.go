package commands

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/catalog/mem"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 20 * time.Second

func e(key string, value any) bson.E { return bson.E{Key: key, Value: value} }

// conn is a client of a router that has a catalog in memory and no shards.
type conn struct {
	t       *testing.T
	nc      net.Conn
	in      *wire.Reader
	handler *Handler
	stop    func()
}

func connect(t *testing.T) *conn {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	store := mem.New(mem.Options{})
	log := zerolog.New(io.Discard)
	r, err := router.New(ctx, router.Options{Store: store, Name: "r:1", Log: log})
	require.NoError(t, err)
	h := New(Options{Router: r, Log: log, Version: "test", Name: "r:1", Argv: []string{"shardgate", "serve"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := server.New(server.Options{Listener: l, Handler: h, Log: log, DrainTimeout: patience})
	routed, served := make(chan struct{}), make(chan struct{})
	go func() { defer close(routed); _ = r.Run(ctx) }()
	go func() { defer close(served); s.Run(ctx) }()
	stop := func() { cancel(); <-routed; <-served }
	t.Cleanup(func() { stop(); store.Close() })
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	return &conn{t: t, nc: nc, in: wire.NewReader(nc, new(wire.Buffers)), handler: h, stop: stop}
}

func (c *conn) send(msg []byte) {
	c.t.Helper()
	wire.SetLength(msg)
	_, err := c.nc.Write(msg)
	require.NoError(c.t, err)
}

// command sends a command with flags.
func (c *conn) command(flags uint32, db string, cmd bson.D) {
	c.t.Helper()
	body, err := bson.Marshal(append(append(bson.D{}, cmd...), e("$db", db)))
	require.NoError(c.t, err)
	c.send(append(wire.AppendMsgStart(nil, 1, 0, flags), body...))
}

// reply reads an OP_MSG.
func (c *conn) reply() (wire.Msg, bson.Raw) {
	c.t.Helper()
	b, err := c.in.Next(wire.MaxMessageLen)
	require.NoError(c.t, err)
	var m wire.Msg
	require.NoError(c.t, wire.ParseMsg(append([]byte(nil), b...), &m))
	return m, bson.Raw(m.Body)
}

// run runs a command and returns its reply.
func (c *conn) run(db string, cmd ...bson.E) bson.Raw {
	c.t.Helper()
	c.command(0, db, cmd)
	_, d := c.reply()
	return d
}

// code returns a reply's code, 0 for ok.
func code(t *testing.T, d bson.Raw) int32 {
	t.Helper()
	ok := d.Lookup("ok").Double()
	n, has := d.Lookup("code").Int32OK()
	require.Equal(t, ok == 0, has, "%s", d)
	if has {
		name, _ := d.Lookup("codeName").StringValueOK()
		require.NotEmpty(t, name)
		require.NotEmpty(t, d.Lookup("errmsg").StringValue())
	}
	return n
}
