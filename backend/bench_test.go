package backend

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	driver "go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"golang.org/x/sys/unix"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/nullshard"
	"github.com/shardgate/shardgate/wire"
)

// anyServer selects every server.
type anyServer struct{}

// SelectServer implements description.ServerSelector.
func (anyServer) SelectServer(_ description.Topology, list []description.Server) ([]description.Server, error) {
	return list, nil
}

// reportCPU has the returned function report the processor time of one operation, which a busy machine changes less than the time; the shard's is in it.
func reportCPU(b *testing.B) func() {
	b.Helper()
	used := func() int64 {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}

// BenchmarkRoundTrip is one point find to a shard that answers at once, over the pool's own connections and over those of the driver's pool, which
// are used as little as can be: taken, written to, read from, given back.
func BenchmarkRoundTrip(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	addr := l.Addr().String()
	null, err := nullshard.New("null", addr)
	require.NoError(b, err)
	go null.Serve(l)

	elems, err := bson.Marshal(bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.NewObjectID()}}}, {Key: "singleBatch", Value: true}})
	require.NoError(b, err)
	msg := AppendCommand(nil, "bench", elems[4:len(elems)-1])

	b.Run("own", func(b *testing.B) {
		cfg := Config{Name: "bench"}.WithDefaults()
		s, err := Open("null", "null/"+addr, &cfg)
		require.NoError(b, err)
		b.Cleanup(func() { s.Close(b.Context()) })
		require.NoError(b, s.SetCredential(Credential{}))
		require.Eventually(b, s.HasPrimary, 10*time.Second, time.Millisecond)
		b.ReportAllocs()
		defer reportCPU(b)()
		b.RunParallel(func(p *testing.PB) {
			var pool wire.Buffers
			buf := make([]byte, 0, 4096)
			for p.Next() {
				var err error
				if buf, _, err = s.RoundTrip(b.Context(), &Request{Msg: msg, Buffers: &pool}, buf); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	b.Run("driver", func(b *testing.B) {
		cfg, err := driver.NewConfig(options.Client().SetHosts([]string{addr}).SetReplicaSet("null"), nil)
		require.NoError(b, err)
		top, err := driver.New(cfg)
		require.NoError(b, err)
		require.NoError(b, top.Connect())
		b.Cleanup(func() { _ = top.Disconnect(b.Context()) })
		b.ReportAllocs()
		defer reportCPU(b)()
		b.RunParallel(func(p *testing.PB) {
			ctx := b.Context()
			for p.Next() {
				s, err := top.SelectServer(ctx, anyServer{})
				if err != nil {
					b.Error(err)
					return
				}
				c, err := s.Connection(ctx)
				if err == nil {
					err = c.Write(ctx, msg)
				}
				if err == nil {
					_, err = c.Read(ctx)
				}
				if err != nil {
					b.Error(err)
					return
				}
				_ = c.Close()
			}
		})
	})
}
