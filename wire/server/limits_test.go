package server

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// TestUnreadRepliesHaveALimit: a client that asks on and on and never reads is cut off.
func TestUnreadRepliesHaveALimit(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 48<<10) // what the kernel takes at once, for a while
	f := &fakeHandler{command: func(_ context.Context, _ *Conn, _ *wire.Msg, reply *wire.Reply) (bool, error) {
		reply.String("body", body)
		reply.OK()
		return false, nil
	}}
	s := startWith(t, Options{Handler: f}, func(s *Server) { s.writeLimit = 50 * time.Millisecond })
	c := s.dial(t)
	go func() {
		msg := ping(t, 1)
		for {
			if _, err := c.Write(msg); err != nil {
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return f.closed.Load() == 1 }, patience, time.Millisecond)
}

// TestWriteDeadline is far enough for every reply and does not end an idle client.
func TestWriteDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := newConn(&Server{writeLimit: time.Minute}, near)
		read := func() {
			go func() { _, _ = far.Read(make([]byte, 1)) }()
		}
		for _, idle := range []time.Duration{0, 29 * time.Second, 2 * time.Second, time.Hour} {
			<-time.After(idle)
			read()
			require.NoError(t, c.write([]byte{1}), idle)
		}
		began := time.Now()
		require.ErrorIs(t, c.write([]byte{1}), os.ErrDeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))

		require.NoError(t, far.Close())
	})
}

func TestDrainHasALimit(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	f := &fakeHandler{command: func(ctx context.Context, _ *Conn, _ *wire.Msg, _ *wire.Reply) (bool, error) {
		close(started)
		<-ctx.Done()
		return false, ctx.Err()
	}}
	s := start(t, Options{Handler: f, DrainTimeout: time.Millisecond})
	c := s.dial(t)
	c.send(ping(t, 1))
	<-started
	s.stop()
	c.ended()
	require.Equal(t, int64(1), f.closed.Load())
}

// TestDrainDoesNotWaitForEver for what heeds no context.
func TestDrainDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	f := &fakeHandler{command: func(context.Context, *Conn, *wire.Msg, *wire.Reply) (bool, error) {
		close(started)
		<-release
		return false, nil
	}}
	s := startWith(t, Options{Handler: f, DrainTimeout: time.Millisecond}, func(s *Server) { s.cutLimit = time.Millisecond })
	c := s.dial(t)
	c.send(ping(t, 1))
	<-started
	s.stop()
	c.ended()
	require.Zero(t, f.closed.Load(), "it still runs")
	close(release)
	require.Eventually(t, func() bool { return f.closed.Load() == 1 }, patience, time.Millisecond)
}

// BenchmarkReply is a message and its reply over a socket.
func BenchmarkReply(b *testing.B) {
	s := startWith(b, Options{Handler: &fakeHandler{}}, func(*Server) {})
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(b, err)
	defer nc.Close()
	body, err := bson.Marshal(bson.D{{Key: "ping", Value: int32(1)}})
	require.NoError(b, err)
	msg := append(wire.AppendMsgStart(nil, 1, 0, 0), body...)
	wire.SetLength(msg)
	in := wire.NewReader(nc, new(wire.Buffers))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := nc.Write(msg); err != nil {
			b.Fatal(err)
		}
		if _, err := in.Next(wire.MaxMessageLen); err != nil {
			b.Fatal(err)
		}
	}
}
