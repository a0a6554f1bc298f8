package backend

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"

	"github.com/shardgate/shardgate/wire"
)

// conn is one authenticated connection to a member. It has at most one request
// under way and is for one goroutine at a time.
type conn struct {
	nc         net.Conn
	addr       string
	name       string    // appName in the member's $currentOp; no other connection has it
	generation uint64    // of the pool, when it was opened
	idleSince  time.Time // set while it lies in the pool
	fresh      bool      // has not carried a request yet

	ctx      context.Context //nolint:containedctx // guarded by the pool's mu: of the request under way
	mayBeCut atomic.Bool     // that request may be ended when ctx has
}

// noDeadline ends a deadline set before.
var noDeadline = time.Time{}

// roundTrip writes a request and reads its reply into buf[:0], or a larger buffer. sent
// tells whether bytes may have left. After an error the connection is of no use.
func (c *conn) roundTrip(deadline time.Time, r *Request, buf []byte) (reply []byte, sent bool, err error) {
	if err := c.nc.SetDeadline(deadline); err != nil {
		return buf, false, err
	}
	n, err := c.nc.Write(r.Msg)
	if err != nil {
		return buf, n > 0, err
	}
	reply, err = wire.ReadReply(c.nc, buf, wire.MaxMessageLen, r.Buffers)
	return reply, true, err
}

func (c *conn) close() { c.nc.Close() }

// dial opens, shakes hands and logs in.
func dial(ctx context.Context, addr string, s *Shard) (*conn, error) {
	cfg := s.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	l, err := s.awaitLogin(ctx)
	if err != nil {
		return nil, fmt.Errorf("no login yet: %w", err)
	}
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if cfg.TLS != nil {
		host, _, _ := net.SplitHostPort(addr)
		t := cfg.TLS.Clone()
		t.ServerName = host
		nc = tls.Client(nc, t)
	}
	c := &conn{nc: nc, addr: addr, name: connName(cfg.Name, l.cred.User), fresh: true}
	// A caller that gives up closes the half-made connection.
	stop := context.AfterFunc(ctx, c.close)
	err = c.handshake(ctx, cfg, l)
	if !stop() && err == nil {
		err = ctx.Err() // it was closed as it was ready
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}

// connName is a name that no other connection has; it begins with what a person would
// look for in $currentOp. It holds the login's user: a transaction that nobody runs just
// now has no user there, but the name of the connection that was its last.
func connName(router, user string) string {
	const longest = 128 // what a mongod takes as appName
	tail := " " + rand.Text()
	if user != "" {
		tail = " " + user + tail
	}
	head := "shardgate " + router
	return head[:min(len(head), longest-len(tail))] + tail
}

// handshake lets the driver say hello and log in over the connection. All use of
// the driver's less stable packages is in this file.
func (c *conn) handshake(ctx context.Context, cfg *Config, l *login) error {
	opts := &auth.HandshakeOptions{
		AppName:               c.name,
		PerformAuthentication: func(description.Server) bool { return l.auth != nil },
		Authenticator:         l.auth,
	}
	h := auth.Handshaker(nil, opts)
	mc := mnet.NewConnection(&driverConn{conn: c})
	if _, err := h.GetHandshakeInformation(ctx, address.Address(c.addr), mc); err != nil {
		return err
	}
	return h.FinishHandshake(ctx, mc)
}

func newAuthenticator(c Credential) (driver.Authenticator, error) {
	return auth.CreateAuthenticator(auth.SCRAMSHA256, &driver.Cred{
		Source: c.Source, Username: c.User, Password: c.Password, PasswordSet: true,
	}, nil)
}

// driverConn is a conn as the driver's handshake code wants it.
type driverConn struct {
	conn *conn
	desc description.Server
}

func (d *driverConn) Read(context.Context) ([]byte, error) {
	return wire.ReadReply(d.conn.nc, nil, wire.MaxMessageLen, nil)
}

func (d *driverConn) Write(_ context.Context, b []byte) error {
	_, err := d.conn.nc.Write(b)
	return err
}

// Close does nothing: the driver closes after each operation what a pool gave it, and
// this connection goes on.
func (d *driverConn) Close() error { return nil }

func (d *driverConn) Description() description.Server { return d.desc }
func (d *driverConn) ID() string                      { return d.conn.addr }
func (d *driverConn) ServerConnectionID() *int64      { return nil }
func (d *driverConn) DriverConnectionID() int64       { return 0 }
func (d *driverConn) Address() address.Address        { return address.Address(d.conn.addr) }
func (d *driverConn) Stale() bool                     { return false }
func (d *driverConn) OIDCTokenGenID() uint64          { return 0 }
func (d *driverConn) SetOIDCTokenGenID(uint64)        {}

// AppendCommand appends an OP_MSG that runs the given elements on db.
func AppendCommand(dst []byte, db string, elems []byte) []byte {
	start := len(dst)
	dst = wire.AppendMsgStart(dst, 0, 0, 0)
	at, dst := wire.AppendDocStart(dst)
	dst = append(dst, elems...)
	dst = bsoncore.AppendStringElement(dst, "$db", db)
	dst = wire.AppendDocEnd(dst, at)
	wire.SetLength(dst[start:])
	return dst
}
