package router

import (
	"maps"
	"sync"
	"time"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// sessionLife is how long a session lasts that nobody uses, and maxSessions how many a
// router knows at a time; both as a mongod has them.
const (
	sessionLife = 30 * time.Minute
	maxSessions = 1_000_000
)

// sessionParts is in how many parts the cache lies, so that clients seldom wait for each
// other: each command looks in.
const sessionParts = 64

// sessionCache knows the sessions that clients have used at this router, for
// $listLocalSessions. Those that the router makes for itself are not among them.
type sessionCache struct {
	parts [sessionParts]sessionPart
	turn  int // of expire, which one goroutine calls
}

type sessionPart struct {
	mu   sync.Mutex
	used map[sessionKey]int64 // guarded by mu: Unix milliseconds of the last use
}

func (c *sessionCache) init() {
	for i := range c.parts {
		c.parts[i].used = map[sessionKey]int64{}
	}
}

func (c *sessionCache) part(id *UUID) *sessionPart { return &c.parts[id[0]%sessionParts] }

// TouchSession notes that a client uses a session: 261 when there are too many, as
// the shards would say, too.
func (r *Router) TouchSession(s Session, now time.Time) error {
	p := r.sessions.part(&s.ID)
	key := sessionKey{id: s.ID, uid: s.UID}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.used[key]; !known && len(p.used) >= maxSessions/sessionParts {
		return mongoerr.Newf(mongoerr.TooManyLogicalSessions, "Unable to add session ID %x into the cache because the number of active sessions is too high", s.ID)
	}
	p.used[key] = now.UnixMilli()
	return nil
}

// forget removes a session that has ended.
func (c *sessionCache) forget(s Session) {
	p := c.part(&s.ID)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, sessionKey{id: s.ID, uid: s.UID})
}

// expire forgets what nobody has used for too long, in one part after the other: it is called
// each second.
func (c *sessionCache) expire(now time.Time) {
	oldest := now.Add(-sessionLife).UnixMilli()
	p := &c.parts[c.turn%sessionParts]
	c.turn++
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.used, func(_ sessionKey, used int64) bool { return used < oldest })
}

// UsedSession is a client's session and when it was used last.
type UsedSession struct {
	Session
	LastUse time.Time
}

// LocalSessions returns the sessions that clients have used at this router.
func (r *Router) LocalSessions() []UsedSession {
	var out []UsedSession
	for i := range r.sessions.parts {
		p := &r.sessions.parts[i]
		p.mu.Lock()
		for key, used := range p.used {
			out = append(out, UsedSession{Session: Session{ID: key.id, UID: key.uid}, LastUse: time.UnixMilli(used)})
		}
		p.mu.Unlock()
	}
	return out
}

// reservedVersion is the version in the ids of sessions that routers make for themselves.
// Clients' have version 4.
const reservedVersion = 8

// reserve makes a router's own session id of 16 bytes.
func reserve(id *UUID) {
	id[6] = id[6]&0x0f | reservedVersion<<4
	id[8] = id[8]&0x3f | 0x80
}

// Reserved reports whether a session is a router's own, none of a client's.
func (u UUID) Reserved() bool { return u[6]>>4 == reservedVersion }
