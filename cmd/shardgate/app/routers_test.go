package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/mem"
)

// TestRemoveRouter: only what is silent is removed, and without users only who is told
// that it is dead believes it.
func TestRemoveRouter(t *testing.T) {
	t.Parallel()
	now := time.Now()
	store := mem.New(mem.Options{Now: func() time.Time { return now }})
	t.Cleanup(store.Close)
	users := []catalog.ShardUser{{Shard: "s0", User: "u"}, {Shard: "s1", User: "u"}}
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		_, _, err := store.Register(t.Context(), catalog.Router{Incarnation: name, Name: name, Users: users})
		require.NoError(t, err)
	}
	now = now.Add(time.Minute)
	require.NoError(t, store.Heartbeat(t.Context(), "c:1", catalog.Ack{Version: catalog.Stopped}, nil))

	refused := func(name string, users, dead bool, why string) {
		t.Helper()
		_, err := takeAway(t.Context(), store, name, users, dead)
		require.ErrorContains(t, err, why)
	}
	refused("d:1", true, true, "d:1")
	refused("c:1", true, true, "lives")
	refused("c:1", false, true, "lives")
	refused("a:1", false, false, "--yes-it-is-dead")

	said, err := takeAway(t.Context(), store, "a:1", false, true)
	require.NoError(t, err)
	require.Equal(t, "a:1 is removed", said)
	_, err = takeAway(t.Context(), store, "b:1", true, false)
	require.NoError(t, err)
	list, err := store.Routers(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.True(t, list[0].Evicted, "the others have to shut it out")

	var out bytes.Buffer
	printRouters(&out, routerRows(1, list))
	require.Contains(t, out.String(), "to be shut out of s0, s1\n")
	require.Contains(t, out.String(), "stopped, not everything it began has ended\n")
}
