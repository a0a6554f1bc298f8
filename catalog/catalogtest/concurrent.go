package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shardgate/shardgate/catalog"
)

// race calls do n times at once and returns what it returned.
func race(n int, do func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = do(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// oneWins checks that one call succeeded and the others failed with lost.
func (f *fixture) oneWins(errs []error, lost error) {
	f.t.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		f.ErrorIs(err, lost)
	}
	f.Equal(1, won)
}

func testRaceLock(f *fixture) {
	f.register("a:1", "r0")
	f.register("b:1", "r1")
	for i := range 20 {
		f.oneWins(race(4, func(n int) error {
			_, err := f.Acquire(f.t.Context(), fmt.Sprint("db.", i), fmt.Sprint("r", n%2), "race")
			return err
		}), catalog.ErrLocked)
	}
}

// testRaceDatabaseLock: the lock of a database and one of its collections are
// never given at once.
func testRaceDatabaseLock(f *fixture) {
	f.register("a:1", "r0")
	f.register("b:1", "r1")
	for i := range 80 {
		names := []string{fmt.Sprintf("db%d.c", i), fmt.Sprintf("db%d", i)}
		f.oneWins(race(2, func(n int) error {
			_, err := f.Acquire(f.t.Context(), names[n], fmt.Sprint("r", n), "race")
			return err
		}), catalog.ErrLocked)
	}
}

func testRaceExpect(f *fixture) {
	f.cluster()
	for i := range 10 {
		ns := fmt.Sprint("db.c", i)
		f.oneWins(race(4, func(int) error {
			_, err := f.Apply(f.t.Context(), catalog.Change{
				Expect: []catalog.Expect{{NS: ns}}, Put: []catalog.CollectionChunks{unsharded(ns, "s0")},
			})
			return err
		}), catalog.ErrConflict)
	}
}

// testRaceVersions: every change gets a version of its own, without gaps.
func testRaceVersions(f *fixture) {
	base := f.version()
	const n = 24
	got := make([]catalog.Version, n)
	errs := race(n, func(i int) (err error) {
		got[i], err = f.Apply(f.t.Context(), catalog.Change{})
		return err
	})
	f.NoError(errors.Join(errs...))
	slices.Sort(got)
	for i, v := range got {
		f.Equal(base+catalog.Version(i)+1, v)
	}
}

func testRaceRegister(f *fixture) {
	f.NoError(errors.Join(race(8, func(i int) error {
		_, _, err := f.Register(f.t.Context(), catalog.Router{Name: fmt.Sprint("r", i%4), Incarnation: fmt.Sprint("i", i)})
		return err
	})...))
	rs, err := f.Routers(f.t.Context())
	f.NoError(err)
	f.Len(rs, 4)
	for i, r := range rs {
		f.Equal(i+1, r.Number)
	}
}

// testRaceLoad follows the catalog by deltas while it changes: each delta must be
// one state, in which both collections were last put by the same change.
func testRaceLoad(f *fixture) {
	f.cluster()
	const n = 30
	// Who begins at an older version hears of the drop however late it comes to load.
	seen := f.version()
	ctx, cancel := context.WithCancelCause(f.t.Context())
	defer cancel(nil)
	errs := race(2, func(i int) error {
		if i == 0 {
			err := replaceThenDrop(f, n)
			if err != nil {
				cancel(err)
			}
			return err
		}
		for {
			d, err := f.Load(ctx, seen)
			if err != nil {
				return err
			}
			if len(d.CollectionsGone) == 2 {
				return nil
			}
			if !consistent(d) {
				return fmt.Errorf("torn delta: %+v", d)
			}
			seen = d.Version
		}
	})
	f.NoError(errors.Join(errs...))
}

// replaceThenDrop puts two collections n times, then drops both.
func replaceThenDrop(f *fixture, n int) error {
	for range n {
		if _, err := f.Apply(f.t.Context(), catalog.Change{
			Put: []catalog.CollectionChunks{sharded("db.a"), sharded("db.b")},
		}); err != nil {
			return err
		}
	}
	_, err := f.Apply(f.t.Context(), catalog.Change{Drop: []string{"db.a", "db.b"}})
	return err
}

func consistent(d *catalog.Delta) bool {
	if len(d.CollectionsGone) != 0 {
		return false
	}
	c := d.Collections
	return len(c) == 0 || len(c) == 2 && c[0].Version == c[1].Version && c[0].Version == d.Version &&
		len(c[0].Chunks) == 3 && len(c[1].Chunks) == 3
}

// hint waits for a value.
func (f *fixture) hint(w <-chan struct{}) {
	f.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case _, ok := <-w:
		f.True(ok, "the watch ended")
	case <-late.C:
		f.Fail("no hint came")
	}
}

func testWatchHints(f *fixture) {
	w, err := f.Watch(f.t.Context())
	f.NoError(err)
	other, err := f.Watch(f.t.Context())
	f.NoError(err)
	f.hint(w) // established
	f.hint(other)
	both := func() {
		f.t.Helper()
		f.hint(w)
		f.hint(other)
	}
	f.apply(catalog.Change{})
	both()
	f.register("a:1", "a1")
	both()
	ack := catalog.Ack{Version: 1}
	f.NoError(f.Heartbeat(f.t.Context(), "a1", ack, nil))
	both()
	ack = catalog.Ack{Version: 2, Held: []catalog.Hold{{NS: "d.a", Version: 1}}}
	f.NoError(f.Heartbeat(f.t.Context(), "a1", ack, nil))
	both()
	f.NoError(f.Heartbeat(f.t.Context(), "a1", ack, nil)) // nothing new
	ack.Held = nil
	f.NoError(f.Heartbeat(f.t.Context(), "a1", ack, nil))
	both()
	f.NoError(f.Deregister(f.t.Context(), "a1"))
	both()
	for range 5 { // unread ones coalesce
		f.apply(catalog.Change{})
	}
	both()
}

// ended waits until a watch is closed.
func (f *fixture) ended(w <-chan struct{}) {
	f.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case _, ok := <-w:
			if !ok {
				return
			}
		case <-late.C:
			f.Fail("the watch did not end")
			return
		}
	}
}

func testWatchEnds(f *fixture) {
	ctx, cancel := context.WithCancel(f.t.Context())
	w, err := f.Watch(ctx)
	f.NoError(err)
	stays, err := f.Watch(f.t.Context())
	f.NoError(err)
	f.hint(stays)
	cancel()
	f.ended(w)
	f.apply(catalog.Change{})
	f.hint(stays)
	_, err = f.Watch(ctx)
	f.ErrorIs(err, context.Canceled)
	f.Close()
	f.ended(stays)
}

func testContextEnded(f *fixture) {
	ctx, cancel := context.WithCancel(f.t.Context())
	cancel()
	calls := f.calls(ctx)
	for name, err := range calls {
		f.ErrorIs(err, context.Canceled, name)
		f.NotErrorIs(err, catalog.ErrUnavailable, name)
	}
}

func testClosed(f *fixture) {
	f.Close()
	for name, err := range f.calls(f.t.Context()) {
		f.ErrorIs(err, catalog.ErrUnavailable, name)
	}
	f.Close()
}

// calls makes every call that reaches the catalog.
func (f *fixture) calls(ctx context.Context) map[string]error {
	errs := make(map[string]error)
	_, errs["Load"] = f.Load(ctx, 0)
	_, errs["Apply"] = f.Apply(ctx, catalog.Change{})
	_, _, errs["Register"] = f.Register(ctx, catalog.Router{Name: "n", Incarnation: "i"})
	errs["Heartbeat"] = f.Heartbeat(ctx, "i", catalog.Ack{}, nil)
	errs["Deregister"] = f.Deregister(ctx, "i")
	_, errs["Routers"] = f.Routers(ctx)
	_, errs["Acquire"] = f.Acquire(ctx, "n", "i", "")
	errs["Release"] = f.Release(ctx, catalog.Lock{})
	_, errs["Log"] = f.Log(ctx, false, 1)
	return errs
}
