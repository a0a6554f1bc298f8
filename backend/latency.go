package backend

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// latencies are the round trip times of members, by address, as they were measured lately.
// It is not changed.
type latencies map[string]time.Duration

// As drivers have them: reads go to members that are not slower than the fastest by more
// than latencyWindow; how fast one is, is measured each measureEvery and averaged, the
// newest measurement with the weight newWeight.
const (
	latencyWindow  = 15 * time.Millisecond
	measureEvery   = 10 * time.Second
	measureTimeout = 2 * time.Second
	newWeight      = 0.2
)

// near leaves only the members within the latency window of the fastest. One that was not
// measured yet is among them.
func (l latencies) near(addrs []string) []string {
	if len(addrs) < 2 || len(l) < 2 {
		return addrs
	}
	fastest := time.Duration(-1)
	for _, a := range addrs {
		if d, known := l[a]; known && (fastest < 0 || d < fastest) {
			fastest = d
		}
	}
	return slices.DeleteFunc(addrs, func(a string) bool {
		d, known := l[a]
		return known && d > fastest+latencyWindow
	})
}

// with returns the latencies with a new measurement.
func (l latencies) with(addr string, took time.Duration) latencies {
	next := make(latencies, len(l)+1)
	for a, d := range l {
		next[a] = d
	}
	if old, known := l[addr]; known {
		took = time.Duration(newWeight*float64(took) + (1-newWeight)*float64(old))
	}
	next[addr] = took
	return next
}

// latencies returns what was measured last.
func (s *Shard) latencies() latencies {
	if l := s.latency.Load(); l != nil {
		return *l
	}
	return nil
}

// MeasureDue reports whether it is time to Measure: a set of one member needs none.
func (s *Shard) MeasureDue() bool {
	return len(s.topo.Load().members) > 1 && time.Since(time.Unix(0, s.measured.Load())) > measureEvery
}

// Measure measures the latencies of all members. Only one goroutine at a time may call it.
func (s *Shard) Measure(ctx context.Context) {
	s.measured.Store(time.Now().UnixNano())
	members := s.Members()
	now := latencies{}
	for a, d := range s.latencies() {
		if slices.Contains(members, a) {
			now[a] = d
		}
	}
	for _, addr := range members {
		if took, ok := s.ping(ctx, addr); ok {
			now = now.with(addr, took)
		}
	}
	s.latency.Store(&now)
}

// ping returns how long the faster of two pings took: one may have had to wait for a
// connection.
func (s *Shard) ping(ctx context.Context, addr string) (took time.Duration, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	for range 2 {
		start := time.Now()
		if _, err := s.RunAt(ctx, addr, "admin", bsoncore.AppendInt32Element(nil, "ping", 1)); err != nil {
			return took, ok
		}
		if d := time.Since(start); !ok || d < took {
			took, ok = d, true
		}
	}
	return took, ok
}
