package server

import (
	"sync"
	"time"
)

// A client that does not read holds the memory of its reply, and there may be many such clients. What is being written has a limit: beyond it
// the connections close whose clients have taken nothing for longest. Clients that read keep theirs.
const (
	// unreadFrom is the length from which replies count, in bytes. Shorter ones are bounded by the number of connections.
	unreadFrom = 64 << 10
	// unreadStep is what a client must take of a reply, in bytes, within unreadGrace.
	unreadStep  = 256 << 10
	unreadGrace = 2 * time.Second
)

// unread counts the replies that are being written.
type unread struct {
	limit int64 // bytes; 0: none
	now   func() time.Time

	mu      sync.Mutex
	waiting map[*Conn]waiting // guarded by mu
	bytes   int64             // guarded by mu: of all that wait
	cut     int64             // guarded by mu: connections closed
}

// waiting is a reply that is being written.
type waiting struct {
	size  int64
	since time.Time // the client took a step
}

// begin counts a reply. Those that are to be closed for it are returned.
func (u *unread) begin(c *Conn, size int) []*Conn {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting[c] = waiting{size: int64(size), since: u.now()}
	u.bytes += int64(size)
	return u.shedLocked()
}

// took notes that a client has taken a step of its reply.
func (u *unread) took(c *Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if w, is := u.waiting[c]; is {
		w.since = u.now()
		u.waiting[c] = w
	}
}

// end ends what begin began; one that was closed is not counted any more.
func (u *unread) end(c *Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forgetLocked(c)
}

func (u *unread) forgetLocked(c *Conn) {
	u.bytes -= u.waiting[c].size
	delete(u.waiting, c)
}

// shed forgets what is beyond the limit by now, and returns it, to be closed.
func (u *unread) shed() []*Conn {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.shedLocked()
}

func (u *unread) shedLocked() (closed []*Conn) {
	for u.limit > 0 && u.bytes > u.limit {
		var oldest *Conn
		for c, w := range u.waiting {
			if oldest == nil || w.since.Before(u.waiting[oldest].since) {
				oldest = c
			}
		}
		if oldest == nil || u.now().Sub(u.waiting[oldest].since) < unreadGrace {
			return closed
		}
		u.forgetLocked(oldest)
		u.cut++
		closed = append(closed, oldest)
	}
	return closed
}

// Unread returns how many bytes of replies wait for clients to read them, short replies left out, and how many connections were closed because
// it was too much.
func (s *Server) Unread() (bytes, cut int64) {
	s.unread.mu.Lock()
	defer s.unread.mu.Unlock()
	return s.unread.bytes, s.unread.cut
}

// cutOff closes connections whose clients do not read, and tells of them.
func (s *Server) cutOff(closed []*Conn) {
	for _, c := range closed {
		c.close()
		s.opts.Log.Warn().Int64("conn", c.ID).Str("remote", c.Remote()).Int64("limit", s.unread.limit).
			Msg("connection closed: its client does not read, and the replies that wait are more than the limit")
	}
}

// writeLong writes a reply that counts.
func (c *Conn) writeLong(b []byte) error {
	u := &c.server.unread
	c.server.cutOff(u.begin(c, len(b)))
	defer u.end(c)
	for len(b) > unreadStep {
		if _, err := c.nc.Write(b[:unreadStep]); err != nil {
			return err
		}
		u.took(c)
		b = b[unreadStep:]
		if err := c.prolong(); err != nil {
			return err
		}
	}
	_, err := c.nc.Write(b)
	return err
}
