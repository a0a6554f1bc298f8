package router

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
)

// awayStore cannot be reached for the next few releases.
type awayStore struct {
	catalog.Store

	fails atomic.Int32
	ended atomic.Int32 // acquisitions whose context had ended
}

func (s *awayStore) Release(ctx context.Context, l catalog.Lock) error {
	if s.fails.Add(-1) >= 0 {
		return catalog.ErrUnavailable
	}
	return s.Store.Release(ctx, l)
}

func (s *awayStore) Acquire(ctx context.Context, name, incarnation, why string) (catalog.Lock, error) {
	l, err := s.Store.Acquire(ctx, name, incarnation, why)
	if why == "lost" {
		return l, catalog.ErrUnavailable // it is held, but the answer never came
	}
	if why == "hasty" {
		<-time.After(20 * time.Millisecond) // the client's time is over before the answer
		if ctx.Err() != nil {
			s.ended.Add(1)
			return catalog.Lock{}, ctx.Err()
		}
	}
	return l, err
}

// A lock that could not be given back because the catalog was away is given back when
// it is there again, and a client without patience leaves none behind.
func TestLocksAreGivenBack(t *testing.T) {
	store := &awayStore{Store: mem.New(mem.Options{})}
	r, err := New(t.Context(), Options{Store: store, Name: "r", Log: zerolog.Nop(), LockTimeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(context.Background()) })
	nothing := func(catalog.Lock) error { return nil }

	store.fails.Store(3)
	require.NoError(t, r.withLock(t.Context(), "d.c", "first", nothing))
	require.NoError(t, r.withLock(t.Context(), "d.c", "second", nothing))
	require.Negative(t, store.fails.Load())

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_ = r.withLock(ctx, "d.c", "hasty", nothing)
	require.Zero(t, store.ended.Load())
	require.NoError(t, r.withLock(t.Context(), "d.c", "third", nothing))

	require.Error(t, r.withLock(t.Context(), "d.c", "lost", nothing))
	require.NoError(t, r.withLock(t.Context(), "d.c", "fourth", nothing))
}
