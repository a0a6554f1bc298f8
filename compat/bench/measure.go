package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sys/unix"
)

// warmUp is how long each side runs before it is measured.
const warmUp = 50 * time.Millisecond

// turn is what one side did in one turn.
type turn struct {
	ops     int
	took    time.Duration
	cpu     time.Duration // of what stands between
	bytes   int64         // of replies
	latency []time.Duration
}

// cpuTime returns how long all threads of a process have run. It is what /proc/PID/stat tells in hundredths of a second.
func cpuTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}

	var t unix.Timespec
	// The clock of another process, as clock_getcpuclockid(3) makes it.
	if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}

	return time.Duration(t.Nano()), nil
}

// resident returns the resident memory of a process in bytes.
func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}

	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}

	return 0, errors.New("no VmRSS")
}

// all runs everything that was asked for.
func (b *bench) all(ctx context.Context) error {
	b.report.Load = loadAverage()

	if err := b.idle(ctx); err != nil {
		return err
	}

	for _, w := range workloads() {
		for _, k := range []*backend{&b.mongod, &b.null} {
			if w.driver != nil && k == &b.null {
				continue
			}

			for _, clients := range w.clients {
				if !b.settings.only.MatchString(w.id(k.name, clients)) {
					continue
				}

				if err := b.cell(ctx, k, &w, clients); err != nil {
					return fmt.Errorf("%s: %w", w.id(k.name, clients), err)
				}
			}
		}
	}

	return nil
}

// cell measures one workload with one number of clients on all sides, in turns.
func (b *bench) cell(ctx context.Context, k *backend, w *workload, clients int) error {
	turns := make([][]turn, len(k.sides))

	for _, s := range k.sides {
		if _, err := s.run(ctx, w, clients, warmUp); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}

	for round := range b.settings.rounds {
		for i := range k.sides {
			i = (i + round) % len(k.sides) // nobody is always behind the same
			t, err := k.sides[i].run(ctx, w, clients, b.settings.round)
			if err != nil {
				return fmt.Errorf("%s: %w", k.sides[i].name, err)
			}

			turns[i] = append(turns[i], t)
		}
	}

	for i, s := range k.sides {
		b.report.add(k, w.name, clients, s.name, turns, i)
	}

	return nil
}

// run has clients do the work for a while.
func (s *side) run(ctx context.Context, w *workload, clients int, limit time.Duration) (turn, error) {
	if w.driver != nil {
		return s.runDriver(ctx, w, clients, limit)
	}

	for len(s.conns) < clients {
		c, err := dialConn(ctx, s.addr, s.password)
		if err != nil {
			return turn{}, err
		}

		s.conns = append(s.conns, c)
	}

	do := w.run
	if w.direct != nil && s.name != shardgate {
		do = w.direct
	}

	before := s.received(clients)
	t, err := s.clock(clients, limit, func(n, i int) error { return do(s.conns[n], i) })
	t.bytes = s.received(clients) - before

	return t, err
}

func (s *side) received(clients int) (n int64) {
	for _, c := range s.conns[:clients] {
		n += c.bytes
	}

	return n
}

// runDriver is run by the Go driver.
func (s *side) runDriver(ctx context.Context, w *workload, clients int, limit time.Duration) (turn, error) {
	opts := options.Client().ApplyURI("mongodb://" + s.addr + "/").SetDirect(true).SetMaxPoolSize(uint64(clients)).SetMinPoolSize(uint64(clients))
	if s.password != "" {
		opts.SetAuth(options.Credential{AuthMechanism: "SCRAM-SHA-256", AuthSource: "local", Username: "__system", Password: s.password})
	}

	client, err := mongo.Connect(opts)
	if err != nil {
		return turn{}, err
	}
	defer client.Disconnect(ctx) //nolint:errcheck // nothing depends on it

	coll := client.Database(database).Collection(points)
	// Connections are made first.
	if _, err := s.clock(clients, warmUp, func(_, i int) error { return w.driver(ctx, coll, i) }); err != nil {
		return turn{}, err
	}

	return s.clock(clients, limit, func(_, i int) error { return w.driver(ctx, coll, i) })
}

// clock has each client do something again and again until the time is up, and says what that cost.
func (s *side) clock(clients int, limit time.Duration, do func(client, i int) error) (t turn, err error) {
	var wait sync.WaitGroup

	latencies, errs := make([][]time.Duration, clients), make([]error, clients)

	before, err := cpuTime(s.pid)
	if err != nil {
		return t, err
	}

	start := time.Now()

	for n := range clients {
		wait.Go(func() {
			i := n * 997
			for last := start; last.Sub(start) < limit; i++ {
				if errs[n] = do(n, i); errs[n] != nil {
					return
				}

				now := time.Now()
				latencies[n] = append(latencies[n], now.Sub(last))
				last = now
			}
		})
	}

	wait.Wait()

	t.took = time.Since(start)
	after, err := cpuTime(s.pid)
	t.cpu = after - before
	t.latency = slices.Concat(latencies...)
	t.ops = len(t.latency)

	return t, errors.Join(append(errs, err)...)
}

// idle measures the memory of clients that do nothing, before the shards that cost nothing.
func (b *bench) idle(ctx context.Context) error {
	for _, s := range b.null.sides {
		empty, err := resident(s.pid)
		if err != nil {
			return err
		}

		openBefore := s.upstream(ctx)

		var conns []*conn
		for range b.settings.idle {
			c, err := dialConn(ctx, s.addr, "")
			if err != nil {
				return err
			}

			conns = append(conns, c)
		}

		full, err := resident(s.pid)
		row := idleRow{Side: s.name, Clients: len(conns), EmptyBytes: empty, FullBytes: full}

		if s.probes != "" {
			row.Upstream = s.upstream(ctx) - openBefore
		}

		b.report.Idle = append(b.report.Idle, row)

		for _, c := range conns {
			c.nc.Close()
		}

		if err != nil {
			return err
		}
	}

	return nil
}

var connections = regexp.MustCompile(`(?m)^shardgate_shard_connections\{.*\} (\d+)$`)

// upstream returns how many connections a router has to its shards.
func (s *side) upstream(ctx context.Context) (n int) {
	text, err := s.page(ctx, "/metrics")
	if err != nil {
		return 0
	}

	for _, m := range connections.FindAllSubmatch(text, -1) {
		k, _ := strconv.Atoi(string(m[1]))
		n += k
	}

	return n
}

// page asks a router for one of its pages.
func (s *side) page(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.probes+path, nil)
	if err != nil {
		return nil, err
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()

	return io.ReadAll(resp.Body)
}

// profileTime is how long a profile is taken.
const profileTime = 5

// takeProfile writes a processor profile of shardgate under one workload.
func (b *bench) takeProfile(ctx context.Context, name string, out io.Writer) error {
	for _, w := range workloads() {
		for _, k := range []*backend{&b.mongod, &b.null} {
			for _, clients := range w.clients {
				if w.id(k.name, clients) != name {
					continue
				}

				s := k.side(shardgate)
				got := make(chan error, 1)

				go func() {
					text, err := s.page(ctx, "/debug/pprof/profile?seconds="+strconv.Itoa(profileTime))
					if err == nil {
						err = os.WriteFile("profile.pb.gz", text, 0o644)
					}
					got <- err
				}()

				t, err := s.run(ctx, &w, clients, (profileTime+1)*time.Second)
				fmt.Fprintf(out, "%s: %d operations, %v each of the router\n", name, t.ops, t.cpu/time.Duration(max(t.ops, 1)))

				return errors.Join(err, <-got)
			}
		}
	}

	return errors.New("no such workload: " + name)
}

// loadAverage says how busy the machine was before.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}

	return strings.TrimSpace(string(text))
}
