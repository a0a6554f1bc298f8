package server

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// TestUnreadIsShed: who has taken nothing for longest goes first, and nobody without need or before the grace is over.
func TestUnreadIsShed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	u := unread{limit: 100, now: func() time.Time { return now }, waiting: map[*Conn]waiting{}}
	conn := func() *Conn {
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		return newConn(&Server{}, near)
	}
	a, b, c, d := conn(), conn(), conn(), conn()
	require.Empty(t, u.begin(a, 60))
	now = now.Add(time.Hour)
	require.Empty(t, u.shed(), "there is room")
	require.Equal(t, []*Conn{a}, u.begin(b, 60))
	u.end(a)
	require.Equal(t, int64(60), u.bytes, "it is not counted twice")
	now = now.Add(time.Millisecond)
	require.Empty(t, u.begin(c, 60), "the other one may yet be read")
	now = now.Add(unreadGrace - time.Millisecond)
	require.Equal(t, []*Conn{b}, u.shed())
	require.Empty(t, u.begin(d, 1000))
	now = now.Add(unreadGrace / 2)
	u.took(d)
	now = now.Add(unreadGrace / 2)
	require.Equal(t, []*Conn{c}, u.shed(), "the other one reads")
	now = now.Add(unreadGrace / 2)
	require.Equal(t, []*Conn{d}, u.shed())
	u.took(d)
	u.end(d)
	u.end(c)
	require.Zero(t, u.bytes)
	require.Empty(t, u.waiting)
	require.Equal(t, int64(4), u.cut)
}

// TestUnreadRepliesAreBounded: of clients that do not read only so many are kept as there is room for, and others are served.
func TestUnreadRepliesAreBounded(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 8<<20) // what no socket takes at once
	f := &fakeHandler{command: func(_ context.Context, _ *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
		if e, _ := m.Body.First(); string(e.Name) != "ping" {
			reply.String("body", body)
		}
		reply.OK()
		return false, nil
	}}
	s := startWith(t, Options{Handler: f, MaxUnread: 20 << 20}, func(s *Server) { s.watchEvery = time.Millisecond })
	for range 6 {
		s.dial(t).send(request(t, 1, 0, bson.D{{Key: "give", Value: int32(1)}}))
	}
	require.Eventually(t, func() bool {
		bytes, cut := s.Unread()
		return cut == 4 && bytes <= 20<<20
	}, patience, time.Millisecond)
	c := s.dial(t)
	c.send(ping(t, 2))
	require.Equal(t, int32(2), c.reply().ResponseTo)
}
