package router

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// viewShard takes every view and says that it has the newest.
func viewShard(t *testing.T) string {
	t.Helper()
	var on atomic.Pointer[string]
	return fakeShard(t, func(cmd wire.Doc) bson.D {
		switch el, _ := cmd.First(); string(el.Name) {
		case "create":
			if under, ok := bson.Raw(cmd).Lookup("viewOn").StringValueOK(); ok {
				on.Store(&under)
			}
		case "listCollections":
			if name, ok := bson.Raw(cmd).Lookup("filter", "name").StringValueOK(); ok && on.Load() != nil {
				return collections(bson.D{e("name", name), e("type", "view"), e("options", viewOn(*on.Load()))})
			}
			return collections()
		}
		return nil
	})
}

func viewOn(under string) bson.D { return bson.D{e("viewOn", under), e("pipeline", bson.A{})} }

// TestViewsOverEachOther: of two that come at once, one is refused as it would be if it came
// later, whether it is new or gets a new definition.
func TestViewsOverEachOther(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(ctx context.Context, r *Router) error{
		"create":  func(ctx context.Context, r *Router) error { return r.CreateView(ctx, "d.y", viewOn("x")) },
		"collMod": func(ctx context.Context, r *Router) error { return r.ModifyView(ctx, "d.z", viewOn("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := newStore(t, viewShard(t))
			store := &firstStore{Store: inner}
			one, _ := startRouter(t, store, "r:1", Options{BarrierTimeout: patience})
			two, _ := startRouter(t, inner, "r:2", Options{BarrierTimeout: patience, LockTimeout: 100 * time.Millisecond})
			for _, r := range []*Router{one, two} {
				eventually(t, "the shard's primary", r.Shard("s").HasPrimary)
			}
			under := "y"
			if name == "collMod" {
				under = "z"
				require.NoError(t, two.CreateView(t.Context(), "d.z", viewOn("a")))
			}
			store.first = func() { requireCode(t, mongoerr.LockBusy, second(t.Context(), two)) }
			require.NoError(t, one.CreateView(t.Context(), "d.x", viewOn(under)))
			requireCode(t, mongoerr.GraphContainsCycle, second(t.Context(), two))
			require.Nil(t, store.first)
		})
	}
}
