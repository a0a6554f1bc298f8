package backend

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errClosed says that the shard was removed or the router stops.
var errClosed = errors.New("connection pool is closed")

// pool keeps the connections to one member: at most max, the last used first out,
// at most connecting handshakes at once. Those who find none wait in line.
type pool struct {
	addr       string
	shard      *Shard
	connecting chan struct{} // one token per handshake under way

	mu         sync.Mutex
	idle       []*conn            // guarded by mu; the last is the newest
	busy       map[*conn]struct{} // guarded by mu
	open       int                // guarded by mu: idle, busy and being opened
	waiting    []chan *conn       // guarded by mu; first come, first served; nobody waits while there is room
	generation uint64             // guarded by mu
	closed     bool               // guarded by mu
}

func newPool(s *Shard, addr string) *pool {
	return &pool{
		addr: addr, shard: s, connecting: make(chan struct{}, s.cfg.MaxConnecting),
		busy: map[*conn]struct{}{},
	}
}

// get takes a connection: an idle one, a new one, or one that comes back in time.
func (p *pool) get(ctx context.Context, deadline time.Time) (*conn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.busy[c] = struct{}{}
		c.ctx = ctx
		p.mu.Unlock()
		return c, nil
	}
	if p.open < p.shard.cfg.MaxConns {
		p.open++
		p.mu.Unlock()
		return p.dial(ctx, deadline)
	}
	turn := make(chan *conn, 1)
	p.waiting = append(p.waiting, turn)
	p.mu.Unlock()
	c, err := p.wait(ctx, deadline, turn)
	if c == nil && err == nil {
		return p.dial(ctx, deadline)
	}
	if c != nil {
		p.mu.Lock()
		c.ctx = ctx
		p.mu.Unlock()
	}
	return c, err
}

// wait waits for what comes to a place in the line: a connection, or nil for the right
// to open one.
func (p *pool) wait(ctx context.Context, deadline time.Time, turn chan *conn) (*conn, error) {
	ctx, cancel := withDeadline(ctx, deadline)
	defer cancel()
	select {
	case c, ok := <-turn:
		if !ok {
			return nil, errClosed
		}
		return c, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, w := range p.waiting {
		if w == turn {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			return nil, ctx.Err()
		}
	}
	// Our turn came as we left: pass it on.
	switch c, ok := <-turn; {
	case c != nil:
		p.putLocked(c, false)
	case ok:
		p.freeLocked()
	}
	return nil, ctx.Err()
}

func (p *pool) dial(caller context.Context, deadline time.Time) (*conn, error) {
	ctx, cancel := withDeadline(caller, deadline)
	defer cancel()
	var c *conn
	var err error
	select {
	case p.connecting <- struct{}{}:
		p.mu.Lock()
		gen := p.generation
		p.mu.Unlock()
		c, err = dial(ctx, p.addr, p.shard)
		<-p.connecting
		switch {
		case err == nil:
			c.generation = gen
		case isTimeout(err) && ctx.Err() == nil:
			// Not the operation's limit, which would be the client's own doing.
			err = errors.New("no connection within " + p.shard.cfg.DialTimeout.String() + ": " + err.Error())
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.closed {
		c.close()
		err = errClosed
	}
	if err != nil {
		p.freeLocked()
		return nil, err
	}
	p.busy[c] = struct{}{}
	c.ctx = caller
	return c, nil
}

// put gives a connection back; broken ones are closed.
func (p *pool) put(c *conn, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(c, broken)
}

// putLocked is put. Who waits longest gets the connection, before anybody new.
func (p *pool) putLocked(c *conn, broken bool) {
	c.ctx = nil
	if broken || p.closed || c.generation != p.generation {
		delete(p.busy, c)
		c.close()
		p.freeLocked()
		return
	}
	c.fresh = false
	if w := p.nextLocked(); w != nil {
		w <- c // it stays busy
		return
	}
	delete(p.busy, c)
	c.idleSince = time.Now()
	p.idle = append(p.idle, c)
}

// freeLocked gives up the place of a connection that is no more: to who waits longest,
// who may open one there.
func (p *pool) freeLocked() {
	if w := p.nextLocked(); w != nil {
		w <- nil
		return
	}
	p.open--
}

// nextLocked takes the first place in the line, nil if nobody waits.
func (p *pool) nextLocked() chan *conn {
	if len(p.waiting) == 0 {
		return nil
	}
	w := p.waiting[0]
	p.waiting = p.waiting[1:]
	return w
}

// clear drops all idle connections, and busy ones when they come back: the member
// was lost, or the login changed.
func (p *pool) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
}

func (p *pool) clearLocked() {
	p.generation++
	for _, c := range p.idle {
		c.close()
		p.open--
	}
	p.idle = nil
}

// prune closes connections that were idle since before t.
func (p *pool) prune(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.idle) && p.idle[n].idleSince.Before(t) {
		p.idle[n].close()
		n++
	}
	p.idle = append(p.idle[:0], p.idle[n:]...)
	p.open -= n
}

// cut closes the connections whose requests may be ended and whose callers' contexts have
// ended: a member ends a read when its connection does.
func (p *pool) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.busy {
		if c.ctx != nil && c.ctx.Err() != nil && c.mayBeCut.Load() {
			c.close()
		}
	}
}

// close closes everything, running requests included.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
	p.closed = true
	for c := range p.busy {
		c.close()
	}
	for _, w := range p.waiting {
		close(w)
	}
	p.waiting = nil
}

// size returns how many connections are open and how many of them are idle.
func (p *pool) size() (open, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, len(p.idle)
}

func withDeadline(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	if deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}
