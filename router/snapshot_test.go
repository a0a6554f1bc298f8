package router

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/catalog"
)

// TestCollectionThatIsMade: its row is there, fenced, before the shard has given it a UUID.
// That is no other collection: the whole catalog need not be loaded for it.
func TestCollectionThatIsMade(t *testing.T) {
	t.Parallel()
	c := row("d.a", "s")
	made := c.UUID
	c.UUID, c.State = uuid.Nil, catalog.StateFenced
	snap, _, err := (&Snapshot{}).next(&catalog.Delta{Version: 1, Full: true, Collections: []catalog.CollectionDelta{{CollectionChunks: c}}})
	require.NoError(t, err)

	part := catalog.CollectionDelta{CollectionChunks: catalog.CollectionChunks{Collection: c.Collection}, Part: true}
	part.UUID, part.State = made, catalog.StateOpen
	snap, _, err = snap.next(&catalog.Delta{Version: 2, Collections: []catalog.CollectionDelta{part}})
	require.NoError(t, err)
	require.Equal(t, made, snap.Entries["d.a"].Coll.UUID)
	require.Equal(t, "s", snap.Entries["d.a"].Home())

	part.UUID = uuid.New()
	_, _, err = snap.next(&catalog.Delta{Version: 3, Collections: []catalog.CollectionDelta{part}})
	require.ErrorIs(t, err, errDelta)
}
