package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Shard is one replica set.
type Shard struct {
	ID   string
	Host string // "set/host:port,host:port"

	cfg   *Config
	admin *mongo.Client // monitoring and administration
	topo  atomic.Pointer[topology]
	login atomic.Pointer[login] // data connections use it
	ready chan struct{}         // closed by the first SetCredential
	// poolsRead is the map that get uses without a lock; pools are added under mu.
	poolsRead atomic.Pointer[map[string]*pool]
	// opTime is the greatest operationTime that the shard has reported.
	opTime atomic.Uint64
	// latency is what Measure measured last, at measured (Unix nanoseconds).
	latency  atomic.Pointer[latencies]
	measured atomic.Int64
	done     chan struct{} // closed by Close
	mu       sync.Mutex
	closed   bool // guarded by mu
}

// login is a credential with the driver's authenticator, which remembers the costly
// part of SCRAM between handshakes. A nil authenticator means no auth.
type login struct {
	cred Credential
	auth driver.Authenticator
}

// ParseHost splits "set/host:port,host:port".
func ParseHost(s string) (set string, hosts []string, err error) {
	set, list, ok := strings.Cut(s, "/")
	if !ok || set == "" || list == "" {
		return "", nil, fmt.Errorf("%q is not of the form set/host:port,…", s)
	}
	for h := range strings.SplitSeq(list, ",") {
		if h == "" {
			return "", nil, fmt.Errorf("%q has an empty host", s)
		}
		if !strings.Contains(h, ":") {
			h += ":27017"
		}
		hosts = append(hosts, h)
	}
	return set, hosts, nil
}

// Open begins to monitor a replica set; it does not wait for it to answer.
func Open(id, host string, cfg *Config) (*Shard, error) {
	set, hosts, err := ParseHost(host)
	if err != nil {
		return nil, err
	}
	s := &Shard{ID: id, Host: host, cfg: cfg, ready: make(chan struct{}), done: make(chan struct{})}
	s.topo.Store(newTopology(nil))
	s.poolsRead.Store(&map[string]*pool{})
	opts := options.Client().SetHosts(hosts).SetReplicaSet(set).
		SetAppName("shardgate " + cfg.Name + " admin").
		SetMaxPoolSize(4).SetHeartbeatInterval(5 * time.Second).
		SetConnectTimeout(cfg.DialTimeout).SetServerSelectionTimeout(cfg.SelectTimeout).
		SetServerMonitor(&event.ServerMonitor{
			TopologyDescriptionChanged: func(e *event.TopologyDescriptionChangedEvent) {
				s.setTopology(newTopology(&e.NewDescription))
			},
		})
	if cfg.TLS != nil {
		opts.SetTLSConfig(cfg.TLS)
	}
	if !cfg.Admin.None() {
		opts.SetAuth(options.Credential{
			AuthMechanism: "SCRAM-SHA-256", AuthSource: cfg.Admin.Source,
			Username: cfg.Admin.User, Password: cfg.Admin.Password, PasswordSet: true,
		})
	}
	if s.admin, err = mongo.Connect(opts); err != nil {
		return nil, fmt.Errorf("shard %s: %w", id, err)
	}
	return s, nil
}

// Close ends monitoring and closes all connections, running requests included.
func (s *Shard) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closed {
		close(s.done)
	}
	s.closed = true
	pools := *s.poolsRead.Load()
	s.mu.Unlock()
	for _, p := range pools {
		p.close()
	}
	if err := s.admin.Disconnect(ctx); err != nil {
		s.cfg.Log.Debug().Err(err).Str("shard", s.ID).Msg("disconnect")
	}
}

// Admin returns the driver's client under the administrator's login: for users
// and probes, never for data.
func (s *Shard) Admin() *mongo.Client { return s.admin }

// SetCredential sets the login of data connections and drops those made before.
// Until it was called once, operations wait for it.
func (s *Shard) SetCredential(c Credential) error {
	l := &login{cred: c}
	if !c.None() {
		a, err := newAuthenticator(c)
		if err != nil {
			return err
		}
		l.auth = a
	}
	if s.login.Swap(l) == nil {
		close(s.ready)
	}
	for _, p := range *s.poolsRead.Load() {
		p.clear()
	}
	return nil
}

// awaitLogin returns the login of data connections, waiting for the first.
func (s *Shard) awaitLogin(ctx context.Context) (*login, error) {
	select {
	case <-s.ready:
		return s.login.Load(), nil
	case <-s.done:
		return nil, errClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Shard) setTopology(t *topology) {
	old := s.topo.Swap(t)
	close(old.changed)
	alive := map[string]bool{}
	for i := range t.members {
		alive[t.members[i].addr] = t.members[i].primary || t.members[i].secondary
	}
	for addr, p := range *s.poolsRead.Load() {
		if !alive[addr] {
			p.clear()
		}
	}
}

// HasPrimary reports whether the monitor sees a primary now.
func (s *Shard) HasPrimary() bool { return s.topo.Load().choose(&ReadPref{}, nil) != "" }

// PrimaryAddr returns the primary's address, or "".
func (s *Shard) PrimaryAddr() string { return s.topo.Load().choose(&ReadPref{}, nil) }

// Members returns the addresses of all members that the monitor sees.
func (s *Shard) Members() []string {
	t := s.topo.Load()
	list := make([]string, 0, len(t.members))
	for i := range t.members {
		if m := &t.members[i]; m.primary || m.secondary {
			list = append(list, m.addr)
		}
	}
	return list
}

// selectMember waits for a member that suits.
func (s *Shard) selectMember(ctx context.Context, p *ReadPref, deadline time.Time) (string, error) {
	t := s.topo.Load()
	if addr := t.choose(p, s.latencies()); addr != "" {
		return addr, nil
	}
	limit := time.NewTimer(s.cfg.SelectTimeout)
	defer limit.Stop()
	ctx, cancel := withDeadline(ctx, deadline)
	defer cancel()
	for {
		select {
		case <-t.changed:
		case <-limit.C:
			return "", &Error{Shard: s.ID, code: mongoerr.FailedToSatisfyReadPreference, err: errors.New("no suitable member in time")}
		case <-s.done:
			return "", &Error{Shard: s.ID, code: mongoerr.FailedToSatisfyReadPreference, err: errClosed}
		case <-ctx.Done():
			return "", &Error{Shard: s.ID, code: mongoerr.FailedToSatisfyReadPreference, err: ctx.Err()}
		}
		t = s.topo.Load()
		if addr := t.choose(p, s.latencies()); addr != "" {
			return addr, nil
		}
	}
}

func (s *Shard) pool(addr string) *pool {
	if p := (*s.poolsRead.Load())[addr]; p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.poolsRead.Load()
	if p := old[addr]; p != nil {
		return p
	}
	next := make(map[string]*pool, len(old)+1)
	for a, p := range old {
		next[a] = p
	}
	p := newPool(s, addr)
	p.closed = s.closed
	next[addr] = p
	s.poolsRead.Store(&next)
	return p
}

// Request is one message for a shard.
type Request struct {
	Msg      []byte    // a whole OP_MSG; owned by the caller
	Pref     ReadPref  // which member
	Addr     string    // this very member, where not empty (getMore)
	Deadline time.Time // zero: none
	MayBeCut bool      // a read: Cut ends it when its context has ended
	// Buffers lends room for replies that outgrow the caller's buffer, and keeps what they outgrow; nil: memory is allocated.
	Buffers *wire.Buffers
}

// grace is how much longer than the shard the router waits for a reply to an
// operation with a time limit: the shard's own error says more.
const grace = time.Second

// RoundTrip sends a request and returns the reply message, read into buf[:0], and
// the member that gave it. A failure before the reply is an *Error.
func (s *Shard) RoundTrip(ctx context.Context, r *Request, buf []byte) (reply []byte, addr string, err error) {
	addr = r.Addr
	if addr == "" {
		if addr, err = s.selectMember(ctx, &r.Pref, r.Deadline); err != nil {
			return buf, "", err
		}
	}
	p := s.pool(addr)
	c, err := p.get(ctx, r.Deadline)
	if err != nil {
		return buf, addr, s.failed(addr, false, err)
	}
	deadline := noDeadline
	if !r.Deadline.IsZero() {
		deadline = r.Deadline.Add(grace)
	}
	c.mayBeCut.Store(r.MayBeCut)
	reply, sent, err := c.roundTrip(deadline, r, buf)
	if err != nil {
		p.put(c, true)
		if !c.fresh && !isTimeout(err) && ctx.Err() == nil {
			p.clear() // its siblings were opened to the same, probably dead, peer
		}
		failure := s.failed(addr, sent, err)
		failure.Conn = c.name
		return reply, addr, failure
	}
	p.put(c, false)
	return reply, addr, nil
}

// Run runs one command on the primary under the data login and returns the
// reply's document in memory of its own. An ok:0 reply is a *mongoerr.Error.
func (s *Shard) Run(ctx context.Context, db string, elems []byte) (wire.Doc, error) {
	return s.RunAt(ctx, "", db, elems)
}

// RunAt is Run on the member at addr.
func (s *Shard) RunAt(ctx context.Context, addr, db string, elems []byte) (wire.Doc, error) {
	deadline, _ := ctx.Deadline()
	msg, _, err := s.RoundTrip(ctx, &Request{Msg: AppendCommand(nil, db, elems), Addr: addr, Deadline: deadline}, nil)
	if err != nil {
		return nil, err
	}
	body, err := wire.ReplyBody(msg)
	if err != nil {
		return nil, err
	}
	return body, ReplyError(body)
}

// ReplyError returns the error of an ok:0 reply, nil for ok:1.
func ReplyError(body wire.Doc) error {
	info, err := wire.Inspect(body)
	if err != nil || info.OK {
		return err
	}
	msg, _ := info.Errmsg.Str()
	return mongoerr.New(info.Code, msg)
}

// Reached raises the cluster time that the shard's log is known to have reached.
func (s *Shard) Reached(t uint64) {
	for {
		old := s.opTime.Load()
		if t <= old || s.opTime.CompareAndSwap(old, t) {
			return
		}
	}
}

// HasReached reports whether the shard's log is known to have reached t.
func (s *Shard) HasReached(t uint64) bool { return s.opTime.Load() >= t }

// Clear drops all connections: they are made anew.
func (s *Shard) Clear() {
	for _, p := range *s.poolsRead.Load() {
		p.clear()
	}
}

// Cut ends the requests that may be cut and whose contexts have ended.
func (s *Shard) Cut() {
	for _, p := range *s.poolsRead.Load() {
		p.cut()
	}
}

// Prune closes connections that have been idle for too long.
func (s *Shard) Prune() {
	before := time.Now().Add(-s.cfg.IdleTimeout)
	for _, p := range *s.poolsRead.Load() {
		p.prune(before)
	}
}

// PoolStats are the data connections to one member.
type PoolStats struct {
	Addr       string
	Open, Idle int // Open counts all: idle, busy and being opened
	Waiting    int // operations that wait for one
}

// Pools returns the figures of all members' connections, by address.
func (s *Shard) Pools() []PoolStats {
	pools := *s.poolsRead.Load()
	list := make([]PoolStats, 0, len(pools))
	for addr, p := range pools {
		p.mu.Lock()
		list = append(list, PoolStats{Addr: addr, Open: p.open, Idle: len(p.idle), Waiting: len(p.waiting)})
		p.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b PoolStats) int { return strings.Compare(a.Addr, b.Addr) })
	return list
}

// Connections returns how many data connections are open, and how many of them
// idle, over all members.
func (s *Shard) Connections() (open, idle int) {
	for _, p := range *s.poolsRead.Load() {
		o, i := p.size()
		open, idle = open+o, idle+i
	}
	return open, idle
}

// Done is closed when Close is called.
func (s *Shard) Done() <-chan struct{} { return s.done }
