package mem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shardgate/shardgate/catalog"
)

// Register implements catalog.Store.
func (s *Store) Register(ctx context.Context, r catalog.Router) (self, replaced *catalog.Router, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, nil, err
	}
	defer s.mu.Unlock()
	taken := make(map[int]bool)
	for _, o := range s.routers {
		if o.Name == r.Name {
			replaced = s.show(o)
			continue
		}
		if o.Incarnation == r.Incarnation {
			return nil, nil, fmt.Errorf("%w: incarnation %q is another router's", catalog.ErrConflict, r.Incarnation)
		}
		taken[o.Number] = true
	}
	n := 1
	for taken[n] {
		n++
	}
	if n > maxRouters {
		return nil, nil, fmt.Errorf("%w: all router numbers are taken", catalog.ErrConflict)
	}
	if replaced != nil {
		s.remove(replaced.Incarnation)
	}
	r.Number, r.Ack, r.Ping, r.Silent, r.Evicted = n, catalog.Ack{}, s.opts.Now(), false, false
	r.Started = millis(r.Started)
	r.Users = cloneSlice(r.Users)
	if replaced != nil {
		r.Users = append(r.Users, replaced.Users...)
	}
	s.routers[r.Incarnation] = &r
	s.hint()
	return s.show(&r), replaced, nil
}

// remove takes a router and its locks away; mu is held.
func (s *Store) remove(incarnation string) {
	delete(s.routers, incarnation)
	maps.DeleteFunc(s.locks, func(_ string, l catalog.Lock) bool { return l.Router == incarnation })
}

// show returns a copy of a row, as seen now; mu is held.
func (s *Store) show(r *catalog.Router) *catalog.Router {
	out := *r
	out.Users, out.Ack.Held = cloneSlice(r.Users), cloneSlice(r.Ack.Held)
	out.Silent = s.opts.Now().Sub(r.Ping) > s.opts.SilenceLimit
	out.Ping = millis(r.Ping)
	return &out
}

// Heartbeat implements catalog.Store.
func (s *Store) Heartbeat(ctx context.Context, incarnation string, ack catalog.Ack, users []catalog.ShardUser) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, ok := s.routers[incarnation]
	if !ok || r.Evicted {
		return fmt.Errorf("%w: %q", catalog.ErrEvicted, incarnation)
	}
	r.Ping = s.opts.Now()
	if users != nil {
		r.Users = cloneSlice(users)
	}
	if ack.Version > r.Ack.Version || !slices.Equal(ack.Held, r.Ack.Held) {
		s.hint()
	}
	r.Ack = catalog.Ack{Version: max(ack.Version, r.Ack.Version), Held: cloneSlice(ack.Held)}
	return nil
}

// Deregister implements catalog.Store.
func (s *Store) Deregister(ctx context.Context, incarnation string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if r, ok := s.routers[incarnation]; ok && !r.Evicted {
		s.remove(incarnation)
		s.hint()
	}
	return nil
}

// Routers implements catalog.Store.
func (s *Store) Routers(ctx context.Context) ([]catalog.Router, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var out []catalog.Router
	for _, r := range s.routers {
		out = append(out, *s.show(r))
	}
	slices.SortFunc(out, func(a, b catalog.Router) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// Evict implements catalog.Store.
func (s *Store) Evict(ctx context.Context, incarnation string, ping time.Time) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, ok := s.routers[incarnation]
	switch {
	case !ok || r.Evicted:
		return nil
	case !millis(r.Ping).Equal(millis(ping)):
		return fmt.Errorf("%w: router %s has answered since", catalog.ErrConflict, r.Name)
	}
	r.Evicted = true
	s.hint()
	if len(r.Users) == 0 {
		s.remove(incarnation)
	}
	return nil
}

// ShutOut implements catalog.Store.
func (s *Store) ShutOut(ctx context.Context, incarnation string, u catalog.ShardUser) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, ok := s.routers[incarnation]
	if !ok || !r.Evicted {
		return nil
	}
	r.Users = slices.DeleteFunc(r.Users, func(o catalog.ShardUser) bool { return o == u })
	if len(r.Users) == 0 {
		s.remove(incarnation)
	}
	s.hint()
	return nil
}

// Acquire implements catalog.Store.
func (s *Store) Acquire(ctx context.Context, name, incarnation, why string) (catalog.Lock, error) {
	if err := s.enter(ctx); err != nil {
		return catalog.Lock{}, err
	}
	defer s.mu.Unlock()
	if r, ok := s.routers[incarnation]; !ok || r.Evicted {
		return catalog.Lock{}, fmt.Errorf("%w: %q", catalog.ErrEvicted, incarnation)
	}
	for _, l := range s.locks {
		if catalog.LocksConflict(l.Name, name) {
			return catalog.Lock{}, fmt.Errorf("%w: %q is held by %s for %s",
				catalog.ErrLocked, l.Name, s.routers[l.Router].Name, l.Why)
		}
	}
	s.token++
	l := catalog.Lock{Name: name, Router: incarnation, Token: s.token, Why: why}
	s.locks[name] = l
	return l, nil
}

// Release implements catalog.Store.
func (s *Store) Release(ctx context.Context, l catalog.Lock) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if held, ok := s.locks[l.Name]; ok && held.Token == l.Token {
		delete(s.locks, l.Name)
	}
	return nil
}

// Break implements catalog.Store.
func (s *Store) Break(ctx context.Context, name string, shards []string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	maps.DeleteFunc(s.locks, func(held string, l catalog.Lock) bool {
		r := s.routers[l.Router]
		return r.Evicted && catalog.LocksConflict(held, name) &&
			!slices.ContainsFunc(r.Users, func(u catalog.ShardUser) bool { return slices.Contains(shards, u.Shard) })
	})
	return nil
}
