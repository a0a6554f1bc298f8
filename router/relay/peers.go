package relay

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
)

const (
	// Command is the name of the command in which others are relayed.
	Command = "_shardgateRelay"

	dialLimit    = 5 * time.Second // to connect and prove each other's identity, or to send
	idleLimit    = time.Minute     // unused connections are closed after this
	maxIdle      = 32              // unused connections that are kept, per router
	maxHandshake = 4               // under way at once with one router, so that a start of many is no storm
	lookEvery    = time.Second     // between two looks whether who is to answer still lives
)

// Peer is another router.
type Peer struct {
	Incarnation string
	Addr        string // host:port
}

// Options are the settings of Peers.
type Options struct {
	Secret Secret
	TLS    func() *tls.Config // the configuration of a connection that begins; nil: plain
}

// Peers are the connections to other routers.
type Peers struct {
	opts Options

	mu         sync.Mutex
	connecting map[string]chan struct{} // guarded by mu, by incarnation
	idle       map[string][]*conn       // guarded by mu, by incarnation; the last is the newest
	closed     bool                     // guarded by mu
}

type conn struct {
	nc    net.Conn
	since time.Time // it lies idle
}

// New returns Peers without any connection.
func New(o Options) *Peers {
	return &Peers{opts: o, connecting: map[string]chan struct{}{}, idle: map[string][]*conn{}}
}

// Request is what is relayed.
type Request struct {
	To      Peer
	UID     [32]byte // digest of the client's user
	Command wire.Doc // as the client sent it
	// Lives is asked now and then while the answer is waited for: its error ends that.
	Lives func(context.Context) error
}

// Do relays a command and returns the reply's message, read into buf[:0]. After an error
// it is not known whether the command was run, so it must not be sent again. When ctx ends
// the connection does, which the other router notices.
func (p *Peers) Do(ctx context.Context, r *Request, buf []byte) ([]byte, error) {
	c, err := p.get(ctx, r.To)
	if err != nil {
		return buf, err
	}
	stop := context.AfterFunc(ctx, func() { c.nc.Close() })
	elems := bsoncore.AppendInt32Element(nil, Command, 1)
	elems = bsoncore.AppendBinaryElement(elems, "uid", 0, r.UID[:])
	elems = bsoncore.AppendDocumentElement(elems, "command", r.Command)
	buf, err = c.exchange(elems, buf, func() error { return r.Lives(ctx) })
	if !stop() && err == nil {
		err = ctx.Err() // it was closed behind our back
	}
	if err != nil {
		c.nc.Close()
		return buf, err
	}
	p.put(r.To, c)
	return buf, nil
}

// get takes an unused connection, or makes one.
func (p *Peers) get(ctx context.Context, to Peer) (*conn, error) {
	p.mu.Lock()
	list := p.idle[to.Incarnation]
	if n := len(list); n > 0 && time.Since(list[n-1].since) < idleLimit {
		c := list[n-1] // under the lock: its place in the list may be taken next
		p.idle[to.Incarnation] = list[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	turn := p.connectingTo(to)
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-turn }()
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	nc, err := d.DialContext(ctx, "tcp", to.Addr)
	if err != nil {
		return nil, err
	}
	if p.opts.TLS != nil {
		nc = tls.Client(nc, p.opts.TLS())
	}
	c := &conn{nc: nc}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	err = c.prove(ctx, &p.opts.Secret)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// connectingTo has a token for each handshake with a router that is under way: one that
// cannot be reached holds up nobody who wants another.
func (p *Peers) connectingTo(to Peer) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	turn := p.connecting[to.Incarnation]
	if turn == nil {
		turn = make(chan struct{}, maxHandshake)
		p.connecting[to.Incarnation] = turn
	}
	return turn
}

// put keeps a connection for later.
func (p *Peers) put(to Peer, c *conn) {
	c.since = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[to.Incarnation]) >= maxIdle {
		c.nc.Close()
		return
	}
	p.idle[to.Incarnation] = append(p.idle[to.Incarnation], c)
}

// Prune closes connections that nobody has used for a while.
func (p *Peers) Prune() { p.drop(time.Now().Add(-idleLimit)) }

// drop closes what lies idle since before t.
func (p *Peers) drop(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for incarnation, list := range p.idle {
		n := 0
		for n < len(list) && list[n].since.Before(t) {
			list[n].nc.Close()
			n++
		}
		if list = append(list[:0], list[n:]...); len(list) == 0 {
			delete(p.idle, incarnation)
		} else {
			p.idle[incarnation] = list
		}
	}
}

// Close closes all unused connections; those in use when their command is done.
func (p *Peers) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop(time.Now().Add(time.Hour))
}

// errNoProof says that who answered does not know the cluster's key.
var errNoProof = errors.New("it did not prove to be a router of this cluster")

// prove proves this router's identity and has the other prove its own, before ctx ends.
func (c *conn) prove(ctx context.Context, s *Secret) error {
	var state *tls.ConnectionState
	if t, is := c.nc.(*tls.Conn); is {
		if err := t.HandshakeContext(ctx); err != nil {
			return err
		}
		s := t.ConnectionState()
		state = &s
	}
	binding, err := Binding(state)
	if err != nil {
		return err
	}
	own := make([]byte, nonceLen)
	if _, err := rand.Read(own); err != nil {
		return err
	}
	elems := bsoncore.AppendInt32Element(nil, Command, 1)
	reply, err := c.ask(ctx, bsoncore.AppendBinaryElement(elems, "nonce", 0, own))
	if err != nil {
		return err
	}
	nonce, proof := Bytes(reply, "nonce"), Bytes(reply, "proof")
	if len(nonce) != nonceLen || !hmac.Equal(proof, s.proof(asHome, own, nonce, binding)) {
		return errNoProof
	}
	_, err = c.ask(ctx, bsoncore.AppendBinaryElement(elems, "proof", 0, s.proof(asCaller, own, nonce, binding)))
	return err
}

// ask is an exchange in which anything but ok: 1 is an error.
func (c *conn) ask(ctx context.Context, elems []byte) (wire.Doc, error) {
	msg, err := c.exchange(elems, nil, ctx.Err)
	if err != nil {
		return nil, err
	}
	body, err := wire.ReplyBody(msg)
	if err != nil {
		return nil, err
	}
	info, err := wire.Inspect(body)
	if err == nil && !info.OK {
		text, _ := info.Errmsg.Str()
		err = fmt.Errorf("%w: %s", errNoProof, text)
	}
	return body, err
}

// Bytes returns the binary value of a field, nil where there is none.
func Bytes(d wire.Doc, name string) []byte {
	e, ok := d.Lookup(name)
	if !ok || e.Type != bson.TypeBinary || len(e.Value) < 5 {
		return nil
	}
	return e.Value[5:]
}

// exchange sends a command to the other router's admin database and reads the reply into
// buf[:0].
func (c *conn) exchange(elems, buf []byte, lives func() error) ([]byte, error) {
	msg := wire.AppendMsgStart(nil, 1, 0, 0)
	at, msg := wire.AppendDocStart(msg)
	msg = append(msg, elems...)
	msg = bsoncore.AppendStringElement(msg, "$db", "admin")
	msg = wire.AppendDocEnd(msg, at)
	wire.SetLength(msg)
	if err := c.nc.SetWriteDeadline(time.Now().Add(dialLimit)); err != nil {
		return buf, err
	}
	if _, err := c.nc.Write(msg); err != nil {
		return buf, err
	}
	return wire.ReadReply(&patient{nc: c.nc, lives: lives}, buf, wire.MaxMessageLen, nil)
}

// patient reads without a limit as long as the other side lives.
type patient struct {
	nc    net.Conn
	lives func() error
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	for {
		if err := p.nc.SetReadDeadline(time.Now().Add(lookEvery)); err != nil {
			return 0, err
		}
		n, err := p.nc.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := p.lives(); err != nil {
			return 0, err
		}
	}
}
