package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// home is a router as far as its door goes; it answers what is relayed with the command.
type home struct {
	net.Listener
	secret Secret
	made   atomic.Int64  // connections
	hold   chan struct{} // not nil: answers wait for it
	gone   chan struct{} // gets a value when a connection ends
}

func newHome(t *testing.T, key string, conf *tls.Config) *home {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if conf != nil {
		l = tls.NewListener(l, conf)
	}
	h := &home{Listener: l, secret: NewSecret([]byte(key)), gone: make(chan struct{}, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			h.made.Add(1)
			wg.Go(func() { h.serve(nc); h.gone <- struct{}{} })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return h
}

func (h *home) serve(nc net.Conn) {
	defer nc.Close()
	var d Door
	in := wire.NewReader(nc, new(wire.Buffers))
	for {
		b, err := in.Next(wire.MaxMessageLen)
		if err != nil {
			return
		}
		var m wire.Msg
		var r wire.Reply
		r.Begin(nil)
		if err := wire.ParseMsg(b, &m); err != nil {
			return
		}
		if err := h.answer(nc, &d, m.Body, &r); err != nil {
			r.Error(mongoerr.As(err))
		}
		if _, err := nc.Write(r.Finish(1, 1, 0, nil)); err != nil {
			return
		}
	}
}

func (h *home) answer(nc net.Conn, d *Door, body wire.Doc, r *wire.Reply) error {
	if nonce := Bytes(body, "nonce"); nonce != nil {
		var state *tls.ConnectionState
		if c, is := nc.(*tls.Conn); is {
			s := c.ConnectionState()
			state = &s
		}
		binding, err := Binding(state)
		if err != nil {
			return err
		}
		own, proof, err := d.Knock(&h.secret, nonce, binding)
		if err != nil {
			return err
		}
		r.Elems = bsoncore.AppendBinaryElement(r.Elems, "nonce", 0, own)
		r.Elems = bsoncore.AppendBinaryElement(r.Elems, "proof", 0, proof)
		r.OK()
		return nil
	}
	if proof := Bytes(body, "proof"); proof != nil {
		r.OK()
		return d.Enter(proof)
	}
	if !d.Open() {
		return errors.New("closed")
	}
	if h.hold != nil {
		<-h.hold
	}
	command, _ := body.Lookup("command")
	r.Doc("asked", command.Value)
	r.OK()
	return nil
}

func command(t *testing.T, n int) wire.Doc {
	t.Helper()
	b, err := bson.Marshal(bson.D{{Key: "getMore", Value: int64(n)}})
	require.NoError(t, err)
	return b
}

func lives(context.Context) error { return nil }

// ask relays a command and returns what the home says that it was asked.
func ask(t *testing.T, p *Peers, h *home, n int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	to := Peer{Incarnation: "a", Addr: h.Addr().String()}
	msg, err := p.Do(ctx, &Request{To: to, Command: command(t, n), Lives: lives}, nil)
	if err != nil {
		return err
	}
	body, err := wire.ReplyBody(msg)
	require.NoError(t, err)
	asked, _ := body.Lookup("asked")
	d, _ := asked.Doc()
	first, _ := d.First()
	got, _ := first.Int64()
	require.Equal(t, int64(n), got)
	return nil
}

func TestRelay(t *testing.T) {
	for name, conf := range map[string]*tls.Config{"plain": nil, "encrypted": certificate(t)} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t, "key", conf)
			o := Options{Secret: NewSecret([]byte("key"))}
			if conf != nil {
				o.TLS = func() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }
			}
			p := New(o)
			defer p.Close()
			for n := range 20 {
				require.NoError(t, ask(t, p, h, n))
			}
			require.Equal(t, int64(1), h.made.Load(), "a connection is used again")

			o.Secret = NewSecret([]byte("other"))
			q := New(o)
			defer q.Close()
			require.ErrorIs(t, ask(t, q, h, 1), errNoProof)
			var wg sync.WaitGroup
			for n := range 50 {
				wg.Go(func() {
					for range 20 {
						require.NoError(t, ask(t, p, h, n))
					}
				})
			}
			wg.Wait()
			p.mu.Lock()
			require.LessOrEqual(t, len(p.idle["a"]), maxIdle)
			p.mu.Unlock()
		})
	}
}

// Who stands between two routers and passes on what both say gets nowhere: the proofs are of
// another connection than its own.
func TestNobodyStandsBetween(t *testing.T) {
	h := newHome(t, "key", certificate(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	between := tls.NewListener(l, certificate(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		nc, err := between.Accept()
		if err != nil {
			return
		}
		to, err := tls.Dial("tcp", h.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			nc.Close()
			return
		}
		wg.Go(func() { pass(nc, to) })
		pass(to, nc)
	})
	defer wg.Wait()
	defer between.Close()
	p := New(Options{Secret: NewSecret([]byte("key")), TLS: func() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }})
	defer p.Close()
	require.ErrorIs(t, ask(t, p, &home{Listener: between}, 1), errNoProof)
}

func pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// The other side has to prove itself, too, and a proof is for one try and one side.
func TestDoor(t *testing.T) {
	s := NewSecret([]byte("key"))
	own := make([]byte, nonceLen)
	var d Door
	require.Error(t, d.Enter(nil))
	_, _, err := d.Knock(&s, own[:5], nil)
	require.Error(t, err)
	nonce, proof, err := d.Knock(&s, own, nil)
	require.NoError(t, err)
	require.Error(t, d.Enter(proof), "it is the home's own")
	require.False(t, d.Open())
	require.Error(t, d.Enter(s.proof(asCaller, own, nonce, nil)), "the try is used up")
	nonce, _, err = d.Knock(&s, own, []byte("here"))
	require.NoError(t, err)
	require.Error(t, d.Enter(s.proof(asCaller, own, nonce, []byte("there"))))
	nonce, _, err = d.Knock(&s, own, []byte("here"))
	require.NoError(t, err)
	require.NoError(t, d.Enter(s.proof(asCaller, own, nonce, []byte("here"))))
	require.True(t, d.Open())
}

// A wait ends when nobody will answer, or nobody wants to know any more; the other side
// notices.
func TestWaitsEnd(t *testing.T) {
	h := newHome(t, "key", nil)
	h.hold = make(chan struct{})
	p := New(Options{Secret: NewSecret([]byte("key"))})
	defer p.Close()
	to := Peer{Incarnation: "a", Addr: h.Addr().String()}
	gone := errors.New("gone")
	_, err := p.Do(t.Context(), &Request{To: to, Command: command(t, 1), Lives: func(context.Context) error { return gone }}, nil)
	require.ErrorIs(t, err, gone)

	ctx, cancel := context.WithCancel(t.Context())
	looked := make(chan struct{}, 10)
	ended := make(chan error, 1)
	go func() {
		_, err := p.Do(ctx, &Request{To: to, Command: command(t, 1), Lives: func(context.Context) error { looked <- struct{}{}; return nil }}, nil)
		ended <- err
	}()
	<-looked
	cancel()
	require.Error(t, <-ended)
	close(h.hold)
	for range 2 {
		select {
		case <-h.gone:
		case <-time.After(patience):
			require.Fail(t, "a connection is still open")
		}
	}
	require.NoError(t, ask(t, p, h, 3))

	h.Close()
	p.Prune()
	require.NoError(t, ask(t, p, h, 4), "what was used just now is kept")
	p.drop(time.Now().Add(time.Hour))
	require.Error(t, ask(t, p, h, 5))
}

func certificate(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	require.NoError(t, err)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}
