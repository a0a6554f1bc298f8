package mem

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

const (
	keepDeletions = 10_000
	keepLog       = 40_000
	maxRouters    = 32767
)

// Options of a Store. The zero value is ready to use.
type Options struct {
	// SilenceLimit is how long a router may send no heartbeat before it counts as
	// silent. Default 10 s.
	SilenceLimit time.Duration
	// Now is the catalog's clock. Default time.Now.
	Now func() time.Time
}

// Store keeps the catalog in memory.
type Store struct {
	opts          Options
	keepDeletions catalog.Version

	mu        sync.Mutex
	down      bool          // mu
	loseReply bool          // mu
	closed    chan struct{} // closed by Close, under mu
	state     state         // mu
	routers   map[string]*catalog.Router
	locks     map[string]catalog.Lock
	token     int64                      // mu: of the last lock given
	log       []catalog.LogEntry         // mu
	watches   map[chan struct{}]struct{} // mu
	watching  sync.WaitGroup
}

var _ catalog.Store = (*Store)(nil)

// New returns a Store that holds a cluster id and nothing else.
func New(opts Options) *Store {
	if opts.SilenceLimit <= 0 {
		opts.SilenceLimit = 10 * time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	s := &Store{
		opts: opts, keepDeletions: keepDeletions, closed: make(chan struct{}), state: newState(),
		routers: make(map[string]*catalog.Router), locks: make(map[string]catalog.Lock),
		watches: make(map[chan struct{}]struct{}),
	}
	doc, err := bson.Marshal(bson.D{
		{Key: "_id", Value: catalog.ClusterIDSetting},
		{Key: "value", Value: bson.NewObjectID()},
	})
	if err != nil {
		panic(err) // a constant document always encodes
	}
	s.state.version = 1
	s.state.settings[catalog.ClusterIDSetting] = row[catalog.Setting]{1, catalog.Setting{ID: catalog.ClusterIDSetting, Doc: doc}}
	return s
}

// SetAvailable makes all calls fail with catalog.ErrUnavailable, or work again.
// While the Store is away no hints are sent.
func (s *Store) SetAvailable(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down && up {
		s.hint()
	}
	s.down = !up
}

// LoseReply makes the next Apply that succeeds return catalog.ErrUnavailable all
// the same, as if the connection were lost after the commit.
func (s *Store) LoseReply() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loseReply = true
}

// Close ends all watches.
func (s *Store) Close() {
	s.mu.Lock()
	if !s.isClosed() {
		close(s.closed)
	}
	s.mu.Unlock()
	s.watching.Wait()
}

func (s *Store) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// enter locks the Store for a call; where it returns an error it does not.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.down || s.isClosed() {
		s.mu.Unlock()
		return fmt.Errorf("%w: by order of the test", catalog.ErrUnavailable)
	}
	return nil
}

// Load implements catalog.Store.
func (s *Store) Load(ctx context.Context, after catalog.Version) (*catalog.Delta, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	full := after <= 0 || after < s.state.version-s.keepDeletions
	if full {
		after = 0
	}
	return s.state.delta(after, full), nil
}

// Apply implements catalog.Store.
func (s *Store) Apply(ctx context.Context, c catalog.Change) (catalog.Version, error) {
	if err := c.Validate(); err != nil {
		return 0, err
	}
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	for _, l := range c.Locks {
		if held, ok := s.locks[l.Name]; !ok || held.Token != l.Token || held.Router != l.Router || s.routers[l.Router].Evicted {
			return 0, fmt.Errorf("%w: %q (token %d)", catalog.ErrLockLost, l.Name, l.Token)
		}
	}
	next := s.state.clone()
	if err := next.apply(&c); err != nil {
		return 0, err
	}
	maps.DeleteFunc(next.gone, func(_ tombstone, v catalog.Version) bool {
		return v <= next.version-s.keepDeletions
	})
	s.state = next
	for i := range c.Log {
		s.log = append(s.log, cloneLog(c.Log[i]))
	}
	s.forget()
	s.hint()
	if s.loseReply {
		s.loseReply = false
		return 0, fmt.Errorf("%w: the reply was lost, by order of the test", catalog.ErrUnavailable)
	}
	return s.state.version, nil
}

// forget drops old entries of the log.
func (s *Store) forget() {
	if extra := len(s.log) - keepLog; extra > 0 {
		s.log = slices.Delete(s.log, 0, extra)
	}
}

// Log implements catalog.Store.
func (s *Store) Log(ctx context.Context, action bool, limit int) ([]catalog.LogEntry, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var out []catalog.LogEntry
	for i := len(s.log) - 1; i >= 0 && len(out) < limit; i-- {
		if s.log[i].Action == action {
			out = append(out, cloneLog(s.log[i]))
		}
	}
	slices.Reverse(out)
	return out, nil
}

// Watch implements catalog.Store.
func (s *Store) Watch(ctx context.Context) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(chan struct{}, 1)
	out <- struct{}{}
	if s.isClosed() {
		close(out)
		return out, nil
	}
	s.watches[out] = struct{}{}
	s.watching.Add(1)
	go func() {
		defer s.watching.Done()
		select {
		case <-ctx.Done():
		case <-s.closed:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, out)
		close(out)
	}()
	return out, nil
}

// hint wakes all watches; mu is held.
func (s *Store) hint() {
	for w := range s.watches {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}
