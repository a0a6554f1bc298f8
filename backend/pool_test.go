package backend

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// fakeMember is a mongod that says hello and ok.
type fakeMember struct {
	addr    string
	accepts atomic.Int64
	mute    atomic.Bool // says nothing any more

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

func newMember(t *testing.T) *fakeMember {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fakeMember{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.accepts.Add(1)
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
			wg.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); f.drop(); wg.Wait() })
	return f
}

func (f *fakeMember) serve(c net.Conn) {
	defer c.Close()
	in := wire.NewReader(c, new(wire.Buffers))
	for {
		b, err := in.Next(wire.MaxMessageLen)
		if err != nil {
			return
		}
		if f.mute.Load() {
			continue
		}
		body, err := bson.Marshal(bson.D{
			{Key: "isWritablePrimary", Value: true},
			{Key: "ismaster", Value: true},
			{Key: "helloOk", Value: true},
			{Key: "minWireVersion", Value: int32(0)},
			{Key: "maxWireVersion", Value: int32(17)},
			{Key: "ok", Value: 1.0},
		})
		if err != nil {
			return
		}
		h := wire.ParseHeader(b)
		out := wire.AppendMsgStart(nil, 1, h.RequestID, 0)
		if h.OpCode == wire.OpQuery {
			out = wire.AppendReplyStart(nil, 1, h.RequestID, 0)
		}
		out = append(out, body...)
		wire.SetLength(out)
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// drop closes all connections from the member's side.
func (f *fakeMember) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}

// poolOf is a pool to a member, with a login.
func poolOf(t *testing.T, f *fakeMember, cfg Config) *pool {
	t.Helper()
	cfg = cfg.WithDefaults()
	s := &Shard{ID: "s", cfg: &cfg, ready: make(chan struct{}), done: make(chan struct{})}
	s.topo.Store(newTopology(nil))
	s.poolsRead.Store(&map[string]*pool{})
	require.NoError(t, s.SetCredential(Credential{}))
	p := s.pool(f.addr)
	t.Cleanup(p.close)
	return p
}

func (p *pool) mustGet(t *testing.T) *conn {
	t.Helper()
	c, err := p.get(t.Context(), time.Now().Add(patience))
	require.NoError(t, err)
	return c
}

// lineLen waits until n wait in the line.
func (p *pool) lineLen(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiting) == n
	}, patience, time.Millisecond)
}

func (p *pool) requireSize(t *testing.T, open, idle int) {
	t.Helper()
	o, i := p.size()
	require.Equal(t, [2]int{open, idle}, [2]int{o, i}, "open and idle")
}

func TestPoolReuses(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	p := poolOf(t, f, Config{MaxConns: 3})
	a, b := p.mustGet(t), p.mustGet(t)
	require.True(t, a.fresh)
	p.requireSize(t, 2, 0)
	p.put(a, false)
	p.put(b, false)
	p.requireSize(t, 2, 2)
	require.Same(t, b, p.mustGet(t), "the last used first")
	require.False(t, b.fresh)
	require.Same(t, a, p.mustGet(t))
	p.put(a, true)
	p.requireSize(t, 1, 0)
	p.put(b, false)
	require.Equal(t, int64(2), f.accepts.Load())
}

func TestPoolNeverOpensMoreThanMax(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	p := poolOf(t, f, Config{MaxConns: 3, MaxConnecting: 2})
	var out, most atomic.Int64
	var wg sync.WaitGroup
	for g := range 12 {
		wg.Go(func() {
			for i := range 50 {
				c, err := p.get(t.Context(), time.Now().Add(patience))
				if err != nil {
					t.Error(err)
					return
				}
				if n := out.Add(1); n > most.Load() {
					most.Store(n)
				}
				out.Add(-1)
				p.put(c, (g+i)%7 == 0)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(3))
	open, idle := p.size()
	require.Equal(t, open, idle, "all are back")
	require.LessOrEqual(t, open, 3)
}

func TestPoolLineHonoursDeadlines(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{MaxConns: 1})
	c := p.mustGet(t)
	_, err := p.get(t.Context(), time.Now().Add(5*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.get(ctx, time.Time{})
	require.ErrorIs(t, err, context.Canceled)
	p.lineLen(t, 0)
	p.put(c, false)
	p.requireSize(t, 1, 1)
}

// TestPoolFirstComeFirstServed, also where somebody new comes as a connection is given
// back.
func TestPoolFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{MaxConns: 1})
	c := p.mustGet(t)
	got := make(chan int, 3)
	cont := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			c, err := p.get(t.Context(), time.Now().Add(patience))
			if err != nil {
				t.Error(err)
				return
			}
			got <- i
			<-cont
			p.put(c, false)
		})
		p.lineLen(t, i+1)
	}
	p.put(c, false)
	_, err := p.get(t.Context(), time.Now())
	require.ErrorIs(t, err, context.DeadlineExceeded, "a newcomer is not served before those who wait")
	for i := range 3 {
		require.Equal(t, i, <-got)
		cont <- struct{}{}
	}
	wg.Wait()
	p.requireSize(t, 1, 1)
}

// TestPoolBrokenOneMakesRoom: who waits opens a new connection in place of one that is
// given back broken.
func TestPoolBrokenOneMakesRoom(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	p := poolOf(t, f, Config{MaxConns: 1})
	c := p.mustGet(t)
	got := make(chan *conn, 1)
	go func() {
		c, err := p.get(t.Context(), time.Now().Add(patience))
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	p.lineLen(t, 1)
	p.put(c, true)
	next := <-got
	require.NotSame(t, c, next)
	p.requireSize(t, 1, 0)
	p.put(next, false)
	require.Equal(t, int64(2), f.accepts.Load())
}

// TestPoolNobodyIsForgotten: many who give up as their turn comes lose no connection.
func TestPoolNobodyIsForgotten(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{MaxConns: 2})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				c, err := p.get(t.Context(), time.Now().Add(time.Duration((g*37+i)%50)*time.Microsecond))
				if err == nil {
					p.put(c, i%20 == 0)
				}
			}
		})
	}
	wg.Wait()
	open, idle := p.size()
	require.Equal(t, open, idle)
	a, b := p.mustGet(t), p.mustGet(t)
	p.put(a, false)
	p.put(b, false)
}

func TestPoolClear(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{MaxConns: 3})
	a, b := p.mustGet(t), p.mustGet(t)
	p.put(a, false)
	p.clear()
	p.requireSize(t, 1, 0)
	require.Error(t, a.nc.SetDeadline(time.Now()), "closed")
	require.NoError(t, b.nc.SetDeadline(noDeadline), "in use: it may finish")
	p.put(b, false)
	p.requireSize(t, 0, 0)
	require.NotSame(t, b, p.mustGet(t))
}

func TestPoolPrune(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{MaxConns: 3})
	a, b, c := p.mustGet(t), p.mustGet(t), p.mustGet(t)
	for _, x := range []*conn{a, b, c} {
		p.put(x, false)
	}
	now := time.Now()
	a.idleSince, b.idleSince, c.idleSince = now.Add(-time.Hour), now.Add(-time.Minute), now
	p.prune(now.Add(-time.Second))
	p.requireSize(t, 1, 1)
	require.Same(t, c, p.mustGet(t))
	require.Error(t, b.nc.SetDeadline(now))
}

func TestPoolCloseWakesWhoWaits(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{MaxConns: 1})
	c := p.mustGet(t)
	failed := make(chan error, 3)
	for range cap(failed) {
		go func() {
			_, err := p.get(t.Context(), time.Time{})
			failed <- err
		}()
	}
	p.lineLen(t, cap(failed))
	p.close()
	for range cap(failed) {
		require.ErrorIs(t, <-failed, errClosed)
	}
	require.Error(t, c.nc.SetDeadline(time.Now()), "running requests end")
	p.put(c, false)
	p.requireSize(t, 0, 0)
	_, err := p.get(t.Context(), time.Time{})
	require.ErrorIs(t, err, errClosed)
	p.close() // again is no harm
}

func TestPoolDialThatFailsGivesItsPlaceUp(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	f.mute.Store(true)
	p := poolOf(t, f, Config{MaxConns: 1, DialTimeout: 500 * time.Millisecond})
	_, err := p.get(t.Context(), time.Time{})
	require.Error(t, err)
	require.Equal(t, mongoerr.HostUnreachable, p.shard.failed(f.addr, false, err).Client().Code, "the operation has no limit: %v", err)
	p.requireSize(t, 0, 0)
	f.mute.Store(false)
	p.put(p.mustGet(t), false)
}

// Many who find no connection do not all open one at once.
func TestPoolFewHandshakesAtOnce(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	f.mute.Store(true)
	p := poolOf(t, f, Config{MaxConns: 50, MaxConnecting: 3})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			_, err := p.get(ctx, time.Time{})
			require.Error(t, err)
		})
	}
	require.Eventually(t, func() bool { return f.accepts.Load() == 3 && len(p.connecting) == 3 }, patience, time.Millisecond)
	require.Never(t, func() bool { return f.accepts.Load() > 3 }, 100*time.Millisecond, 10*time.Millisecond)
	cancel()
	wg.Wait()
	p.requireSize(t, 0, 0)
}
