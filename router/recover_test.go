package router

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
	"github.com/shardgate/shardgate/wire"
)

// putState is d.a's row in a state, with what edit makes of it.
func putState(t *testing.T, store catalog.Store, state catalog.State, edit func(*catalog.Collection)) {
	t.Helper()
	c := row("d.a", "s").Collection
	c.State = state
	edit(&c)
	_, err := store.Apply(t.Context(), catalog.Change{Rows: []catalog.Collection{c}})
	require.NoError(t, err)
}

func unborn(c *catalog.Collection) { c.UUID, c.Options = uuid.Nil, nil }

// TestRecovery is what becomes of a collection that a dead router left fenced.
func TestRecovery(t *testing.T) {
	t.Parallel()
	full := func(c *catalog.Collection) {
		c.Options = bson.Raw(doc(t, e("capped", true)))
		c.Collation = bson.Raw(doc(t, e("locale", "fr")))
	}
	for name, c := range map[string]struct {
		state catalog.State
		edit  func(*catalog.Collection)
		opens bool
	}{
		"yet to be made": {catalog.StateFenced, unborn, false},
		"in use before":  {catalog.StateFenced, full, true},
		"being dropped":  {catalog.StateDropping, full, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := fakeShard(t, func(cmd wire.Doc) bson.D {
				if el, _ := cmd.First(); string(el.Name) == "listCollections" {
					return collections()
				}
				return nil
			})
			store := newStore(t, host)
			putState(t, store, c.state, c.edit)
			// Two routers: either may do it, once.
			one, _ := startRouter(t, store, "r:1", Options{})
			two, _ := startRouter(t, store, "r:2", Options{})
			before := *one.Snapshot().Entries["d.a"].Coll
			for _, r := range []*Router{one, two} {
				eventually(t, "recovered", func() bool {
					entry := r.Snapshot().Entries["d.a"]
					return entry == nil || entry.Coll.State == catalog.StateOpen
				})
				entry := r.Snapshot().Entries["d.a"]
				if !c.opens {
					require.Nil(t, entry)
					continue
				}
				before.State, before.Version = catalog.StateOpen, entry.Coll.Version
				require.Equal(t, before, *entry.Coll, "all else is as it was")
			}
		})
	}
}

// TestRecoveryLeavesWhatIsAtWork: while its lock is held, or its shard cannot be asked,
// what is being dropped stays so.
func TestRecoveryLeavesWhatIsAtWork(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	r := idleRouter(t, store, "r:1", Options{})
	lock, err := store.Acquire(t.Context(), "d.a", r.Self().Incarnation, "drop")
	require.NoError(t, err)
	setState(t, store, catalog.StateDropping, lock)
	require.NoError(t, r.Refresh(t.Context()))
	entry := r.Snapshot().Entries["d.a"]
	entry.since = time.Now().Add(-time.Hour)
	r.recoverFenced(t.Context())
	require.Same(t, entry, r.Snapshot().Entries["d.a"], "somebody is at work")

	require.NoError(t, store.Release(t.Context(), lock))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r.recoverFenced(ctx)
	require.Same(t, entry, r.Snapshot().Entries["d.a"], "its shard cannot be asked")
	_, err = store.Acquire(t.Context(), "d.a", r.Self().Incarnation, "test")
	require.NoError(t, err, "the lock was given back")
}

// TestRecoveryOfAView asks no shard.
func TestRecoveryOfAView(t *testing.T) {
	t.Parallel()
	store := newStore(t, nowhere)
	putView(t, store, catalog.StateFenced)
	r := idleRouter(t, store, "r:1", Options{})
	r.Snapshot().Entries["d.v"].since = time.Now().Add(-time.Hour)
	r.recoverFenced(t.Context())
	require.Equal(t, catalog.StateOpen, r.Snapshot().Entries["d.v"].Coll.State)
}

func putView(t *testing.T, store *mem.Store, state catalog.State) {
	t.Helper()
	_, err := store.Apply(t.Context(), catalog.Change{Put: []catalog.CollectionChunks{{
		Collection: catalog.Collection{NS: "d.v", Kind: catalog.KindView, State: state, Epoch: bson.NewObjectID()},
	}}})
	require.NoError(t, err)
}

// TestDDLClearsUpFirst: who is first to use the name does not wait for the recovery, and
// does not act on what it would take away.
func TestDDLClearsUpFirst(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	host := fakeShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) == "listCollections" {
			return collections(held("a", id))
		}
		return nil
	})
	store := newStore(t, host)
	r, _ := startRouter(t, store, "r:1", Options{})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	putState(t, store, catalog.StateFenced, unborn)
	require.NoError(t, r.Create(t.Context(), "d.a", nil, false))
	require.Equal(t, id, r.Snapshot().Entries["d.a"].Coll.UUID)
}

// held is what listCollections says of an ordinary collection.
func held(name string, id uuid.UUID) bson.D {
	return bson.D{
		e("name", name), e("type", "collection"), e("options", bson.D{}), e("info", bson.D{e("uuid", bson.Binary{Subtype: 4, Data: id[:]})}),
	}
}

// TestDropGoesOn: what was dropped on one shard and not yet on another is not opened
// again.
func TestDropGoesOn(t *testing.T) {
	t.Parallel()
	var sick atomic.Bool
	sick.Store(true)
	id := row("d.a", "s").UUID
	host := fakeShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "listCollections":
			return collections(held("a", id))
		case "drop":
			if sick.Load() {
				return bson.D{e("ok", 0.0), e("code", int32(8)), e("errmsg", "not now")}
			}
		}
		return nil
	})
	r, _ := startRouter(t, newStore(t, host), "r:1", Options{})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	_, err := r.Drop(t.Context(), "d.a", nil)
	requireCode(t, 8, err)
	require.Equal(t, catalog.StateDropping, r.Snapshot().Entries["d.a"].Coll.State)
	sick.Store(false)
	eventually(t, "it is gone", func() bool { return r.Snapshot().Entries["d.a"] == nil })
}

// TestRecoveryReadsOptions: what a collMod may have changed before its router died is read
// from the shard. Meanwhile the collection is used.
func TestRecoveryReadsOptions(t *testing.T) {
	t.Parallel()
	now := bson.D{e("validationLevel", "off")}
	host := fakeShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) == "listCollections" {
			c := held("a", row("d.a", "s").UUID)
			c[2].Value = now
			return collections(c)
		}
		return nil
	})
	store := newStore(t, host)
	putState(t, store, catalog.StateModifying, func(*catalog.Collection) {})
	r, _ := startRouter(t, store, "r:1", Options{})
	entry, err := r.pass(t.Context(), []byte("d.a"), time.Now().Add(time.Millisecond), true)
	require.NoError(t, err)
	r.leaveAs(entry, true)
	eventually(t, "recovered", func() bool { return r.Snapshot().Entries["d.a"].Coll.State == catalog.StateOpen })
	require.Equal(t, "off", r.Snapshot().Entries["d.a"].Coll.Options.Lookup("validationLevel").StringValue())
}
