package router

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/time/rate"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/relay"
)

// Options are the settings of a Router.
type Options struct {
	Store   catalog.Store
	Backend backend.Config
	Name    string // stable: the advertised host:port
	Version string // program version
	Log     zerolog.Logger

	HoldLimit      time.Duration // how long operations wait at a fence
	BarrierTimeout time.Duration // how long DDL waits for other routers
	LockTimeout    time.Duration // how long DDL waits for a lock
	RetryTimeout   time.Duration // how long the router repeats what is safe to repeat
	CursorTimeout  time.Duration // idle cursors are closed after this
	EvictAfter     time.Duration // a router that says nothing for so long is shut out
	OrphanDelay    time.Duration // a moved collection's former copy is kept for cursors so long
	CopyRate       int64         // bytes a second that movements copy on this router; 0: no limit

	Former string // incarnation of an evicted router in whose place this one comes

	Failpoints string // folder of files that stop this router at a step, for tests

	AllowUntestedVersions bool // addShard takes shards that are not MongoDB 6.0

	PeerTLS func() *tls.Config // for connections to other routers; nil: plain
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.HoldLimit, 30*time.Second)
	def(&o.BarrierTimeout, 5*time.Second)
	def(&o.LockTimeout, 20*time.Second)
	def(&o.RetryTimeout, 30*time.Second)
	def(&o.CursorTimeout, 10*time.Minute)
	def(&o.EvictAfter, 10*time.Second)
	def(&o.OrphanDelay, 15*time.Minute)
	o.Backend = o.Backend.WithDefaults()
	return o
}

// Router routes. New registers it, Run keeps it up to date until its context ends.
type Router struct {
	opts  Options
	store catalog.Store
	log   zerolog.Logger
	Clock *Clock

	snap     atomic.Pointer[Snapshot]
	shards   atomic.Pointer[map[string]*backend.Shard]
	self     atomic.Pointer[catalog.Router]
	lastTime atomic.Uint64 // of freshTime
	cursors  cursorTable
	sessions sessionCache
	txns     txnTable
	numbers  numberTable
	others   others
	peers    *relay.Peers
	secret   relay.Secret  // by which routers know each other
	copyRate *rate.Limiter // bytes
	prepared sync.Map      // ids of shards on which InternalDB is ready
	spills   atomic.Int64  // temporary collections made

	reload  hint // load the catalog now
	drained hint // an operation of a retired entry has ended
	ticked  broadcast

	syncMu  mutex    // one load at a time
	retired []*Entry // guarded by syncMu: retired and not yet drained
	sent    beat     // guarded by syncMu: the last heartbeat

	usersMu sync.Mutex
	users   map[string]string          // guarded by usersMu: shard id → our user there
	former  map[catalog.ShardUser]bool // guarded by usersMu: to be shut out; true: somebody is at it

	heard     atomic.Pointer[time.Time] // when the catalog last took a heartbeat
	evicting  atomic.Bool               // the catalog has a router that is evicted
	evicted   atomic.Bool               // this one is
	refused   atomic.Bool               // a shard did not know its user: whether it is evicted is to be asked
	down      atomic.Bool               // the catalog cannot be reached
	regressed atomic.Bool               // the catalog went back, or is another one

	seen        atomic.Int64 // when the catalog was last loaded, in nanoseconds since 1970
	waiting     atomic.Int64 // operations that wait at the gate
	barriers    atomic.Int64 // waits for other routers
	barrierTime atomic.Int64 // their nanoseconds

	wg goers // of what the router does in the background

	recovering atomic.Bool   // recoverFenced runs
	measuring  atomic.Bool   // latencies of shards are measured
	tidied     time.Time     // guarded by recovering: when movements were last looked after
	stopped    chan struct{} // closed when Run ends
	ending     chan struct{} // closed by EndMovements
	endOnce    sync.Once
}

// New registers the router in the catalog and loads it. The catalog must be
// reachable; shards need not be.
func New(ctx context.Context, opts Options) (*Router, error) {
	opts = opts.WithDefaults()
	r := &Router{
		opts: opts, store: opts.Store, log: opts.Log,
		Clock: NewClock(nil), reload: newHint(), drained: newHint(), users: map[string]string{}, former: map[catalog.ShardUser]bool{}, stopped: make(chan struct{}), ending: make(chan struct{}),
		syncMu: make(mutex, 1), copyRate: newCopyRate(opts.CopyRate),
	}
	r.wg.panicked = r.panicked
	r.ticked.init()
	r.snap.Store(&Snapshot{})
	r.shards.Store(&map[string]*backend.Shard{})
	r.cursors.init(opts.CursorTimeout, r.wakeRetired)
	r.sessions.init()
	r.txns.init()
	replaced, err := r.register(ctx)
	if err != nil {
		return nil, err
	}
	r.opts.Backend.Name = r.opts.Name
	if err := r.load(ctx); err != nil {
		r.Close(ctx)
		return nil, err
	}
	if replaced != nil {
		r.expectUser(replaced.Incarnation)
	}
	if opts.Former != "" {
		r.expectUser(opts.Former)
	}
	r.shutOutFormer(ctx)
	return r, nil
}

// load loads the catalog for the first time, and the cluster's key.
func (r *Router) load(ctx context.Context) error {
	if err := r.Refresh(ctx); err != nil {
		return err
	}
	key, err := r.clusterKey(ctx)
	if err != nil {
		return err
	}
	r.Clock.setKey(key)
	r.secret = relay.NewSecret(key)
	r.peers = relay.New(relay.Options{Secret: r.secret, TLS: r.opts.PeerTLS})
	return nil
}

// keySetting holds the key that signs cluster times. It is internal: config.settings
// does not show it.
const keySetting = "shardgate.clusterTimeKey"

func (r *Router) clusterKey(ctx context.Context) ([]byte, error) {
	if key := r.storedKey(); key != nil {
		return key, nil
	}
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: keySetting}, {Key: "key", Value: secret[:]}})
	if err != nil {
		return nil, err
	}
	// Nothing rebalances by itself yet: sh.status() is to say so.
	balancer, err := bson.Marshal(bson.D{{Key: "_id", Value: "balancer"}, {Key: "mode", Value: "off"}, {Key: "stopped", Value: true}})
	if err != nil {
		return nil, err
	}
	err = r.withLock(ctx, "$firstStart", "first start", func(l catalog.Lock) error {
		if r.storedKey() != nil {
			return nil
		}
		return r.apply(ctx, catalog.Change{
			Locks: []catalog.Lock{l}, Settings: []catalog.Setting{{ID: keySetting, Doc: doc}, {ID: "balancer", Doc: balancer}},
		})
	})
	if err != nil {
		return nil, err
	}
	key := r.storedKey()
	if key == nil {
		return nil, errors.New("the catalog has no cluster time key")
	}
	return key, nil
}

func (r *Router) storedKey() []byte {
	s, ok := r.snap.Load().Settings[keySetting]
	if !ok {
		return nil
	}
	_, b, ok := s.Doc.Lookup("key").BinaryOK()
	if !ok {
		return nil
	}
	return b
}

// Snapshot returns the catalog state that this router acts by now.
func (r *Router) Snapshot() *Snapshot { return r.snap.Load() }

// Latest returns the newest catalog state, for commands that show it: what was
// acknowledged at another router must be seen here. Without the catalog it is the one
// in memory.
func (r *Router) Latest(ctx context.Context) *Snapshot {
	if !r.down.Load() {
		ctx, cancel := context.WithTimeout(ctx, latestLimit)
		defer cancel()
		if err := r.Refresh(ctx); err != nil {
			r.log.Debug().Err(err).Msg("the catalog is shown from memory")
		}
	}
	return r.snap.Load()
}

// latestLimit bounds the wait for a catalog that does not answer.
const latestLimit = 2 * time.Second

// Store returns the catalog.
func (r *Router) Store() catalog.Store { return r.store }

// Self returns this router's catalog row.
func (r *Router) Self() *catalog.Router { return r.self.Load() }

// incarnation is this router's incarnation as a UUID.
func (r *Router) incarnation() UUID { return UUID(uuid.MustParse(r.Self().Incarnation)) }

// Shard returns a shard by id, nil where there is none.
func (r *Router) Shard(id string) *backend.Shard { return (*r.shards.Load())[id] }

// Shards returns all shards by id. The map must not be changed.
func (r *Router) Shards() map[string]*backend.Shard { return *r.shards.Load() }

// RelaySecret is that by which routers of this cluster know each other.
func (r *Router) RelaySecret() *relay.Secret { return &r.secret }

// CatalogDown reports whether the catalog could not be reached lately.
func (r *Router) CatalogDown() bool { return r.down.Load() }

// mutex is a lock that is not waited for longer than a context allows.
type mutex chan struct{}

func (m mutex) lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	default:
	}
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m mutex) unlock() { <-m }

// broadcast wakes everybody who waits.
type broadcast struct{ ch atomic.Pointer[chan struct{}] }

func (b *broadcast) init() {
	c := make(chan struct{})
	b.ch.Store(&c)
}

func (b *broadcast) wait() <-chan struct{} { return *b.ch.Load() }

func (b *broadcast) signal() {
	c := make(chan struct{})
	close(*b.ch.Swap(&c))
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
