package router

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// renamingShard is a shard that holds d.a and d.b, renames and drops.
type renamingShard struct {
	sick atomic.Bool
	mu   sync.Mutex
	held map[string]uuid.UUID // guarded by mu; by name
}

func (s *renamingShard) answer(cmd wire.Doc) bson.D {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw := bson.Raw(cmd)
	switch el, _ := cmd.First(); string(el.Name) {
	case "listCollections":
		if name, ok := raw.Lookup("filter", "name").StringValueOK(); ok {
			if id, is := s.held[name]; is {
				return collections(held(name, id))
			}
			return collections()
		}
		var list []bson.D
		for name, id := range s.held {
			list = append(list, held(name, id))
		}
		return collections(list...)
	case "drop":
		name, _ := el.Str()
		_, id := raw.Lookup("collectionUUID").Binary()
		if was := s.held[name]; string(was[:]) != string(id) {
			return failure(361)
		}
		delete(s.held, name)
	case "renameCollection":
		from, _ := el.Str()
		to, _ := raw.Lookup("to").StringValueOK()
		_, from = catalog.SplitNS(from)
		_, to = catalog.SplitNS(to)
		_, id := raw.Lookup("collectionUUID").Binary()
		was := s.held[from]
		switch _, taken := s.held[to]; {
		case s.sick.Load():
			return failure(8)
		case string(was[:]) != string(id):
			return failure(361)
		case taken:
			return failure(48)
		}
		s.held[to] = was
		delete(s.held, from)
	}
	return nil
}

func newRenaming(t *testing.T) (s *renamingShard, store catalog.Store) {
	t.Helper()
	s = &renamingShard{held: map[string]uuid.UUID{"a": row("d.a", "s").UUID, "b": row("d.b", "s").UUID}}
	return s, newStore(t, fakeShard(t, s.answer))
}

// TestRenameIsFinished: once it is marked a rename is finished, by whoever comes next to
// either name, or when nobody comes.
func TestRenameIsFinished(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(t *testing.T, r *Router){
		"nobody":       func(*testing.T, *Router) {},
		"the old name": func(t *testing.T, r *Router) { t.Helper(); require.NoError(t, r.Create(t.Context(), "d.a", nil, true)) },
		"the new name": func(t *testing.T, r *Router) {
			t.Helper()
			requireCode(t, 48, r.Create(t.Context(), "d.b", bson.D{e("capped", true)}, false))
		},
		"both":           func(t *testing.T, r *Router) { t.Helper(); requireCode(t, 26, rename(t, r, "d.a", "d.b")) },
		"whole database": func(t *testing.T, r *Router) { t.Helper(); require.NoError(t, r.EnableSharding(t.Context(), "d", "")) },
	} {
		for done := range 3 { // how far it has come on the shard
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, store := newRenaming(t)
				a, b := row("d.a", "s").Collection, row("d.b", "s").Collection
				if done > 0 {
					delete(s.held, "b")
				}
				if done > 1 {
					s.held = map[string]uuid.UUID{"b": a.UUID}
				}
				a.State, b.State, a.RenamedTo = catalog.StateRenaming, catalog.StateRenaming, "d.b"
				_, err := store.Apply(t.Context(), catalog.Change{Rows: []catalog.Collection{a, b}})
				require.NoError(t, err)
				one, _ := startRouter(t, store, "r:1", Options{LockTimeout: patience, BarrierTimeout: patience})
				_, _ = startRouter(t, store, "r:2", Options{LockTimeout: patience, BarrierTimeout: patience})
				eventually(t, "the shard's primary", one.Shard("s").HasPrimary)
				next(t, one)
				eventually(t, "it is done", func() bool {
					e := one.Snapshot().Entries["d.b"]
					return e.Coll.State == catalog.StateOpen && e.Coll.UUID == a.UUID && e.Coll.RenamedTo == ""
				})
				if name != "the old name" {
					require.Nil(t, one.Snapshot().Entries["d.a"])
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				require.Equal(t, a.UUID, s.held["b"])
			})
		}
	}
}

func rename(t *testing.T, r *Router, from, to string) error {
	t.Helper()
	_, err := r.RenameCollection(t.Context(), &RenameSpec{From: from, To: to, DropTarget: true})
	return err
}

// TestRenameGoesOn: a shard that fails for a while does not fail the command, and one that
// fails for long leaves what was begun to be finished.
func TestRenameGoesOn(t *testing.T) {
	t.Parallel()
	s, store := newRenaming(t)
	r, _ := startRouter(t, store, "r:1", Options{LockTimeout: patience, BarrierTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	s.sick.Store(true)
	done := make(chan error, 1)
	go func() { done <- rename(t, r, "d.a", "d.b") }()
	eventually(t, "it is marked", func() bool { return r.Snapshot().Entries["d.a"].Coll.State == catalog.StateRenaming })
	_, err := r.enter(t.Context(), []byte("d.b"), time.Now().Add(time.Millisecond))
	requireCode(t, mongoerr.MaxTimeMSExpired, err)
	s.sick.Store(false)
	require.NoError(t, <-done)
	require.Nil(t, r.Snapshot().Entries["d.a"])
	require.Equal(t, row("d.a", "s").UUID, r.Snapshot().Entries["d.b"].Coll.UUID)
}

// TestRenameLeavesNoReservation: what is refused behind the fence leaves all as it was, and
// the new name to nobody.
func TestRenameLeavesNoReservation(t *testing.T) {
	t.Parallel()
	s, store := newRenaming(t)
	delete(s.held, "a") // the shard has lost it
	r, _ := startRouter(t, store, "r:1", Options{LockTimeout: patience, BarrierTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	requireCode(t, mongoerr.NamespaceNotFound, rename(t, r, "d.a", "d.c"))
	require.Nil(t, r.Snapshot().Entries["d.c"])
	require.Equal(t, catalog.StateOpen, r.Snapshot().Entries["d.a"].Coll.State)

	s.mu.Lock()
	s.held["a"] = row("d.a", "s").UUID
	s.mu.Unlock()
	require.NoError(t, rename(t, r, "d.a", "d.c"))
	require.Equal(t, row("d.a", "s").UUID, r.Snapshot().Entries["d.c"].Coll.UUID)
	require.Nil(t, r.Snapshot().Entries["d.a"])
}
