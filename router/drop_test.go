package router

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestDropDatabaseLeavesTheNextLife: a router that goes on when its lock is long lost drops
// only what was there while it held it.
func TestDropDatabaseLeavesTheNextLife(t *testing.T) {
	t.Parallel()
	left, next := uuid.New(), uuid.New()
	s := &ddlShard{held: []bson.D{held("a", row("d.a", "s").UUID), held("left", left)}}
	answer := s.answer("", nil)
	host := fakeShard(t, func(cmd wire.Doc) bson.D {
		if el, _ := cmd.First(); string(el.Name) == "drop" {
			s.mu.Lock()
			s.held = append(s.held, held("next", next))
			s.mu.Unlock()
		}
		return answer(cmd)
	})
	r, _ := startRouter(t, newStore(t, host), "r:1", Options{BarrierTimeout: patience})
	eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
	require.NoError(t, r.DropDatabase(t.Context(), "d"))
	var dropped []string
	for _, cmd := range s.got("drop") {
		u, _ := cmd.Lookup("collectionUUID")
		dropped = append(dropped, string(u.Value[5:]))
	}
	require.Contains(t, dropped, string(left[:]))
	require.NotContains(t, dropped, string(next[:]))
}

// TestDropDatabaseWithoutItsLock drops nothing: what it found may be another life's.
func TestDropDatabaseWithoutItsLock(t *testing.T) {
	t.Parallel()
	for _, db := range []string{"d", "empty"} {
		s := &ddlShard{held: []bson.D{held("left", uuid.New())}}
		answer := s.answer("", nil)
		var loser atomic.Pointer[Router]
		host := fakeShard(t, func(cmd wire.Doc) bson.D {
			if kind, ok := bson.Raw(cmd).Lookup("filter", "type").StringValueOK(); ok && kind == "collection" {
				if r := loser.Swap(nil); r != nil {
					_ = r.store.Deregister(context.Background(), r.Self().Incarnation)
				}
			}
			return answer(cmd)
		})
		store := newStore(t, host)
		_, err := store.Apply(t.Context(), catalog.Change{
			Databases: []catalog.Database{{Name: "empty", Primary: "s", Placement: catalog.PlacementSpread}},
		})
		require.NoError(t, err)
		r, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
		eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
		loser.Store(r)
		requireCode(t, mongoerr.ConflictingOperationInProgress, r.DropDatabase(t.Context(), db))
		require.Empty(t, s.got("drop"))
		require.Contains(t, r.Snapshot().Databases, db)
	}
}
