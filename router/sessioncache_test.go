package router

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// TestSessionsThatNobodyUsesAreForgotten wherever they lie in the cache.
func TestSessionsThatNobodyUsesAreForgotten(t *testing.T) {
	t.Parallel()
	r := &Router{}
	r.sessions.init()
	begun := time.Now()
	for range 1000 {
		require.NoError(t, r.TouchSession(Session{ID: UUID(uuid.New())}, begun))
	}
	kept := Session{ID: UUID(uuid.New())}
	require.NoError(t, r.TouchSession(kept, begun.Add(time.Hour)))
	require.Len(t, r.LocalSessions(), 1001)
	for i := range sessionParts {
		// However far apart the calls are: each sees to another part.
		r.sessions.expire(begun.Add(time.Hour + time.Duration(i)*20*time.Second))
	}
	left := r.LocalSessions()
	require.Len(t, left, 1)
	require.Equal(t, kept.ID, left[0].ID)
}
