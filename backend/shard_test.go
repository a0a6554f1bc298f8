package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestNoLoginYet: operations wait for the login, but an operation without a time limit
// of its own is not told that it ran out of time.
func TestNoLoginYet(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	p := poolOf(t, f, Config{DialTimeout: 20 * time.Millisecond})
	p.shard.ready = make(chan struct{})
	_, _, err := p.shard.RoundTrip(t.Context(), &Request{Msg: AppendCommand(nil, "admin", nil), Addr: f.addr}, nil)
	var be *Error
	require.ErrorAs(t, err, &be)
	require.True(t, be.SafeToRetry())
	require.Equal(t, mongoerr.HostUnreachable, be.Client().Code, "%v", err)

	_, _, err = p.shard.RoundTrip(t.Context(), &Request{Msg: AppendCommand(nil, "admin", nil), Addr: f.addr, Deadline: time.Now().Add(5 * time.Millisecond)}, nil)
	require.ErrorAs(t, err, &be)
	require.Equal(t, mongoerr.MaxTimeMSExpired, be.Client().Code, "%v", err)
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	p := poolOf(t, f, Config{MaxConns: 2})
	req := &Request{Msg: AppendCommand(nil, "admin", nil), Addr: f.addr}
	reply, addr, err := p.shard.RoundTrip(t.Context(), req, nil)
	require.NoError(t, err)
	require.Equal(t, f.addr, addr)
	_, err = wire.ReplyBody(reply)
	require.NoError(t, err)
	p.requireSize(t, 1, 1)

	// A second one lies idle when the member goes away: neither is used again.
	a, b := p.mustGet(t), p.mustGet(t)
	p.put(a, false)
	p.put(b, false)
	f.drop()
	_, _, err = p.shard.RoundTrip(t.Context(), req, nil)
	var be *Error
	require.ErrorAs(t, err, &be)
	require.Equal(t, mongoerr.HostUnreachable, be.Client().Code)
	p.requireSize(t, 0, 0)
	_, _, err = p.shard.RoundTrip(t.Context(), req, nil)
	require.NoError(t, err)
}

func TestRoundTripDeadline(t *testing.T) {
	t.Parallel()
	f := newMember(t)
	p := poolOf(t, f, Config{MaxConns: 2})
	p.put(p.mustGet(t), false)
	f.mute.Store(true)
	_, _, err := p.shard.RoundTrip(t.Context(), &Request{Msg: AppendCommand(nil, "admin", nil), Addr: f.addr, Deadline: time.Now().Add(time.Millisecond - grace)}, nil)
	var be *Error
	require.ErrorAs(t, err, &be)
	require.Equal(t, mongoerr.MaxTimeMSExpired, be.Client().Code, "%v", err)
	p.requireSize(t, 0, 0)
}

func TestSelectMember(t *testing.T) {
	t.Parallel()
	p := poolOf(t, newMember(t), Config{SelectTimeout: patience})
	s := p.shard
	_, err := s.selectMember(t.Context(), &ReadPref{}, time.Now().Add(5*time.Millisecond))
	var be *Error
	require.ErrorAs(t, err, &be)
	require.Equal(t, mongoerr.MaxTimeMSExpired, be.Client().Code)

	got := make(chan string, 1)
	go func() {
		addr, err := s.selectMember(t.Context(), &ReadPref{}, time.Time{})
		if err != nil {
			t.Error(err)
		}
		got <- addr
	}()
	for _, primary := range []bool{false, true} { // the first view has none
		topo := newTopology(nil)
		topo.members = []member{{addr: "a:1", primary: primary}}
		s.setTopology(topo)
	}
	require.Equal(t, "a:1", <-got)
	require.True(t, s.HasPrimary())

	s.cfg.SelectTimeout = time.Millisecond
	_, err = s.selectMember(t.Context(), &ReadPref{Mode: Secondary}, time.Time{})
	require.ErrorAs(t, err, &be)
	require.Equal(t, mongoerr.FailedToSatisfyReadPreference, be.Client().Code)
	require.True(t, be.SafeToRetry())

	s.cfg.SelectTimeout = patience
	failed := make(chan error, 1)
	go func() {
		_, err := s.selectMember(t.Context(), &ReadPref{Mode: Secondary}, time.Time{})
		failed <- err
	}()
	close(s.done)
	require.ErrorIs(t, <-failed, errClosed, "a shard that is closed keeps nobody waiting")
}
