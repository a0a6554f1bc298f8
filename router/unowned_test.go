package router

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// TestUnownedRanges: a shard has unowned ranges from a movement's begin until its copy is
// gone, and each change of them retires the entry, so that barriers know who has not seen it.
func TestUnownedRanges(t *testing.T) {
	pattern, err := shardkey.ParsePattern(bson.Raw(doc(t, e("_id", "hashed"))))
	require.NoError(t, err)
	c := row("d.a", "s")
	c.Kind, c.Key = catalog.KindSharded, pattern.Raw()
	c.Chunks = shardkey.InitialChunks(pattern, 4, []string{"s", "t"}, "s", 1)
	k := &c.Chunks[0]
	m := catalog.Movement{
		ID: uuid.New(), NS: "d.a", Collection: c.UUID, From: k.Shard, To: "t", State: catalog.MovementCopying, Since: time.Now(),
		Range: &catalog.Range{Min: k.Min, Max: k.Max, MinKey: k.MinKey, MaxKey: k.MaxKey},
	}
	snap, retired, err := (&Snapshot{}).next(&catalog.Delta{Version: 1, Full: true, Collections: []catalog.CollectionDelta{{CollectionChunks: c}}})
	require.NoError(t, err)
	require.Empty(t, retired)
	step := func(state catalog.MovementState, from, to int) {
		t.Helper()
		old := snap.Entries["d.a"]
		m.State = state
		snap, retired, err = snap.next(&catalog.Delta{Version: snap.Version + 1, Movements: []catalog.Movement{m}})
		require.NoError(t, err)
		require.Equal(t, []*Entry{old}, retired)
		require.Len(t, snap.Entries["d.a"].Unowned(m.From), from)
		require.Len(t, snap.Entries["d.a"].Unowned("t"), to)
	}
	step(catalog.MovementCopying, 0, 1)
	step(catalog.MovementSwitched, 1, 0)
	step(catalog.MovementLeaving, 1, 0)
	step(catalog.MovementGone, 0, 0)
	step(catalog.MovementCopying, 0, 1)

	// A collection that is made anew under the name has nothing of it.
	other := c
	other.UUID = uuid.New()
	next, _, err := snap.next(&catalog.Delta{Version: 9, Collections: []catalog.CollectionDelta{{CollectionChunks: other}}})
	require.NoError(t, err)
	require.Empty(t, next.Entries["d.a"].Unowned("t"))

	snap, _, err = snap.next(&catalog.Delta{Version: 9, MovementsGone: []string{m.ID.String()}})
	require.NoError(t, err)
	require.Empty(t, snap.Entries["d.a"].Unowned("t"))
}
