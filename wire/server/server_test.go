package server

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

func isTimeout(err error, ne *net.Error) bool { return errors.As(err, ne) && (*ne).Timeout() }

// echo answers with the value of the command.
func echo(_ context.Context, _ *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
	e, _ := m.Body.First()
	reply.Elems = append(reply.Elems, e.Raw...)
	reply.OK()
	return false, nil
}

func TestRequestsInOrder(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{command: echo, clock: &wire.ClusterTime{Time: 5 << 32}}
	s := start(t, Options{Handler: f})
	var wg sync.WaitGroup
	for range 5 {
		c := s.dial(t)
		wg.Go(func() {
			var all []byte
			const n = 200
			for i := range int32(n) {
				all = append(all, request(t, 1000+i, 0, bson.D{{Key: "x", Value: i}})...)
			}
			c.send(all) // pipelined: all before the first reply
			ids := map[int32]bool{}
			for i := range int32(n) {
				m := c.reply()
				require.Equal(t, 1000+i, m.ResponseTo)
				require.Equal(t, int64(i), number(t, m.Body, "x"))
				require.False(t, ids[m.RequestID], "request ids are not repeated")
				ids[m.RequestID] = true
				_, ok := m.Body.Lookup("$clusterTime")
				require.True(t, ok)
			}
		})
	}
	wg.Wait()
	s.stop()
	require.Equal(t, int64(1000), f.calls.Load())
	require.Equal(t, int64(5), f.closed.Load())
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Handler: &fakeHandler{command: echo}})
	c := s.dial(t)
	for _, n := range []int{10, 5000, 3 << 20, 10} {
		text := string(make([]byte, n))
		c.send(request(t, 1, 0, bson.D{{Key: "x", Value: text}}))
		e, ok := c.reply().Body.Lookup("x")
		require.True(t, ok)
		got, _ := e.Str()
		require.Len(t, got, n)
	}
}

func TestMoreToComeGetsNoReply(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{command: echo}
	s := start(t, Options{Handler: f})
	c := s.dial(t)
	c.send(request(t, 1, wire.FlagMoreToCome, bson.D{{Key: "x", Value: int32(1)}}))
	c.send(request(t, 2, wire.FlagMoreToCome, bson.D{})) // not even an error
	c.send(request(t, 3, 0, bson.D{{Key: "x", Value: int32(3)}}))
	require.Equal(t, int32(3), c.reply().ResponseTo)
	require.Equal(t, int64(3), f.calls.Load())
}

// TestMoreToComeStreamsNothing: a stream that nobody reads would never end.
func TestMoreToComeStreamsNothing(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{command: func(_ context.Context, _ *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
		reply.OK()
		return m.MoreToCome(), nil
	}}
	s := start(t, Options{Handler: f})
	c := s.dial(t)
	c.send(request(t, 1, wire.FlagMoreToCome|wire.FlagExhaustAllowed, bson.D{{Key: "hello", Value: int32(1)}}))
	c.send(ping(t, 2))
	require.Equal(t, int32(2), c.reply().ResponseTo)
	require.Equal(t, int64(2), f.calls.Load())
}

func TestChecksumInKind(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Handler: &fakeHandler{}})
	c := s.dial(t)
	for i, flags := range []uint32{0, wire.FlagChecksum, 0} {
		c.send(request(t, int32(i), flags, bson.D{{Key: "ping", Value: int32(1)}}))
		require.Equal(t, flags, c.reply().Flags) // reply checks the sum
	}
	bad := request(t, 9, wire.FlagChecksum, bson.D{{Key: "ping", Value: int32(1)}})
	bad[len(bad)-1]++
	c.send(bad)
	c.ended()
}

func TestWhatCannotBeReadClosesTheConnection(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{}
	s := start(t, Options{Handler: f})
	other := func(op wire.OpCode) []byte {
		b := append(wire.AppendHeader(nil, 1, 0, op), make([]byte, 30)...)
		wire.SetLength(b)
		return b
	}
	flags := ping(t, 1)
	flags[wire.HeaderLen] = 4
	for name, b := range map[string][]byte{
		"OP_INSERT": other(wire.OpInsert), "OP_UPDATE": other(wire.OpUpdate), "OP_DELETE": other(wire.OpDelete),
		"OP_KILL_CURSORS": other(wire.OpKillCursors), "OP_REPLY": other(wire.OpReply), "OP_COMPRESSED": other(wire.OpCompressed),
		"unknown opcode": other(4711), "length 15": {15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0},
		"length of 2 GiB": {0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0},
		"unknown flag":    flags, "short OP_QUERY": other(wire.OpQuery)[:20], "HTTP": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		if name == "short OP_QUERY" {
			wire.SetLength(b)
		}
		c := s.dial(t)
		c.send(b)
		c.ended()
	}
	require.Zero(t, f.calls.Load())
	c := s.dial(t)
	c.send(ping(t, 1))
	c.reply() // others are not harmed
}

func TestErrorsThatAreAnswered(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{}
	s := start(t, Options{Handler: f})
	c := s.dial(t)
	two := ping(t, 5)
	two = append(two, two[wire.HeaderLen+4:]...)
	wire.SetLength(two)
	c.send(two)
	m := c.reply()
	require.Equal(t, int32(5), m.ResponseTo)
	require.Equal(t, int64(40430), number(t, m.Body, "code"))
	require.Equal(t, int64(0), number(t, m.Body, "ok"))
	c.send(ping(t, 6))
	require.Equal(t, int32(6), c.reply().ResponseTo, "the connection stays")
	require.Equal(t, int64(1), f.calls.Load())
}

// opQuery is an OP_QUERY.
func opQuery(t *testing.T, ns string, d bson.D) []byte {
	t.Helper()
	body, err := bson.Marshal(d)
	require.NoError(t, err)
	b := append(wire.AppendHeader(nil, 8, 0, wire.OpQuery), 0, 0, 0, 0)
	b = append(append(b, ns...), 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
	b = append(b, body...)
	wire.SetLength(b)
	return b
}

// oldReply reads an OP_REPLY.
func (c *client) oldReply() (flags uint32, d wire.Doc) {
	c.t.Helper()
	b, err := c.r.Next(wire.MaxMessageLen)
	require.NoError(c.t, err)
	h := wire.ParseHeader(b)
	require.Equal(c.t, wire.OpReply, h.OpCode)
	require.Equal(c.t, int32(8), h.ResponseTo)
	return binary.LittleEndian.Uint32(b[16:]), slices.Clone(wire.Doc(b[36:]))
}

func TestOldProtocol(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{query: func(q *wire.Query, reply *wire.Reply) (uint32, error) {
		reply.String("ns", string(q.NS))
		reply.OK()
		return 8, nil
	}}
	s := start(t, Options{Handler: f})
	c := s.dial(t)
	c.send(opQuery(t, "admin.$cmd", bson.D{{Key: "isMaster", Value: int32(1)}}))
	flags, d := c.oldReply()
	require.Equal(t, uint32(8), flags)
	e, _ := d.Lookup("ns")
	ns, _ := e.Str()
	require.Equal(t, "admin.$cmd", ns)

	getMore := append(wire.AppendHeader(nil, 8, 0, wire.OpGetMore), make([]byte, 20)...)
	wire.SetLength(getMore)
	for _, b := range [][]byte{opQuery(t, "d.c", bson.D{}), getMore} {
		c.send(b)
		flags, d = c.oldReply()
		require.Equal(t, wire.ReplyQueryFailure, flags)
		require.Equal(t, int64(5739101), number(t, d, "code"))
		_, ok := d.Lookup("$err")
		require.True(t, ok)
	}
	require.Equal(t, int64(1), f.calls.Load())
}

func TestStreamChainsAndEndsWithTheServer(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{}
	f.command = func(ctx context.Context, c *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
		n := f.calls.Load()
		if n > 4 { // from here on the hello waits
			select {
			case <-c.Stopping():
			case <-ctx.Done():
			}
		}
		reply.Int64("n", n)
		reply.OK()
		return m.Flags&wire.FlagExhaustAllowed != 0, nil
	}
	s := start(t, Options{Handler: f})
	c := s.dial(t)
	c.send(request(t, 77, wire.FlagExhaustAllowed, bson.D{{Key: "hello", Value: int32(1)}}))
	last := int32(77)
	for i := range int64(4) {
		m := c.reply()
		require.Equal(t, last, m.ResponseTo, "each answers the one before")
		require.Equal(t, wire.FlagMoreToCome, m.Flags)
		require.Equal(t, i+1, number(t, m.Body, "n"))
		last = m.RequestID
	}
	s.stop()
	m := c.reply()
	require.Equal(t, last, m.ResponseTo)
	require.Zero(t, m.Flags, "the last one")
	c.ended()
}

func TestDrainFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	started, finish := make(chan struct{}), make(chan struct{})
	f := &fakeHandler{command: func(ctx context.Context, _ *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
		if m.RequestID == 1 {
			close(started)
			<-finish
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
		}
		reply.OK()
		return false, nil
	}}
	s := start(t, Options{Handler: f})
	idle, fresh, busy := s.dial(t), s.dial(t), s.dial(t)
	idle.send(ping(t, 9))
	idle.reply()
	busy.send(append(ping(t, 1), ping(t, 2)...))
	<-started
	require.Eventually(t, func() bool { return s.Connections() == 3 }, patience, time.Millisecond)
	s.cancel()
	idle.ended()
	fresh.ended()
	_, err := net.Dial("tcp", s.Addr().String())
	require.Error(t, err, "nobody new is let in")
	select {
	case <-s.done:
		require.Fail(t, "Run ended before the operation")
	default:
	}
	close(finish)
	require.Equal(t, int32(1), busy.reply().ResponseTo)
	busy.ended()
	<-s.done
	require.Equal(t, int64(3), f.closed.Load())
	require.Zero(t, s.Connections())
}

// TestStopAnswersTheGreeting of a client that has just come, and nothing more.
func TestStopAnswersTheGreeting(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{command: func(_ context.Context, _ *Conn, _ *wire.Msg, reply *wire.Reply) (bool, error) {
		reply.OK()
		return false, nil
	}}
	s := startWith(t, Options{Handler: f}, func(s *Server) { s.greetingLimit = patience })
	c := s.dial(t)
	require.Eventually(t, func() bool { return s.Connections() == 1 }, patience, time.Millisecond)
	s.cancel()
	<-s.Stopping()
	c.send(append(ping(t, 1), ping(t, 2)...))
	require.Equal(t, int32(1), c.reply().ResponseTo)
	c.ended()
}

func TestMaxConns(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Handler: &fakeHandler{}, MaxConns: 2})
	a, b := s.dial(t), s.dial(t)
	for _, c := range []*client{a, b} {
		c.send(ping(t, 1))
		c.reply()
	}
	s.dial(t).ended()
	a.Close()
	require.Eventually(t, func() bool { return s.Connections() == 1 }, patience, time.Millisecond)
	c := s.dial(t)
	c.send(ping(t, 1))
	c.reply()
}

func TestHandlersErrorAndPanicEndOneConnection(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{command: func(_ context.Context, _ *Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
		switch m.RequestID {
		case 1:
			return false, errors.New("no")
		case 2:
			panic("the test's")
		}
		reply.OK()
		return false, nil
	}}
	s := start(t, Options{Handler: f})
	good := s.dial(t)
	for id := range int32(2) {
		c := s.dial(t)
		c.send(ping(t, id+1))
		c.ended()
	}
	good.send(ping(t, 3))
	good.reply()
	require.Eventually(t, func() bool { return f.closed.Load() == 2 }, patience, time.Millisecond)
}

func TestConnKeepsItsState(t *testing.T) {
	t.Parallel()
	f := &fakeHandler{command: func(_ context.Context, c *Conn, _ *wire.Msg, reply *wire.Reply) (bool, error) {
		n, _ := c.State.(int32)
		c.State = n + 1
		reply.Int32("n", n+1)
		reply.Int64("id", c.ID)
		reply.String("remote", c.Remote())
		reply.OK()
		return false, nil
	}}
	s := start(t, Options{Handler: f})
	seen := map[int64]bool{}
	for range 3 {
		c := s.dial(t)
		for i := range int64(3) {
			c.send(ping(t, 1))
			m := c.reply()
			require.Equal(t, i+1, number(t, m.Body, "n"))
			id := number(t, m.Body, "id")
			require.Equal(t, i > 0, seen[id])
			seen[id] = true
			e, _ := m.Body.Lookup("remote")
			remote, _ := e.Str()
			require.Equal(t, c.LocalAddr().String(), remote)
		}
	}
}
