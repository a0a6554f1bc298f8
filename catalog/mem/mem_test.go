package mem_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/catalogtest"
	"github.com/shardgate/shardgate/catalog/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	catalogtest.Run(t, func(*testing.T) catalog.Store { return mem.New(mem.Options{}) })
}

func TestSilent(t *testing.T) {
	now := time.UnixMilli(1700000000000)
	s := mem.New(mem.Options{SilenceLimit: time.Minute, Now: func() time.Time { return now }})
	defer s.Close()
	silent := func() bool {
		rs, err := s.Routers(t.Context())
		require.NoError(t, err)
		return rs[0].Silent
	}
	_, _, err := s.Register(t.Context(), catalog.Router{Name: "a:1", Incarnation: "a1"})
	require.NoError(t, err)
	now = now.Add(time.Minute)
	require.False(t, silent())
	now = now.Add(1)
	require.True(t, silent())
	require.NoError(t, s.Heartbeat(t.Context(), "a1", catalog.Ack{}, nil))
	require.False(t, silent())
}

func TestInjectedErrors(t *testing.T) {
	s := mem.New(mem.Options{})
	defer s.Close()
	s.SetAvailable(false)
	_, err := s.Load(t.Context(), 0)
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	s.SetAvailable(true)
	s.LoseReply()
	_, err = s.Apply(t.Context(), catalog.Change{})
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	d, err := s.Load(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, catalog.Version(2), d.Version)
	_, err = s.Apply(t.Context(), catalog.Change{})
	require.NoError(t, err)
}
