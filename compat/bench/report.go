package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// report is what a run found.
type report struct {
	Load string    `json:"load"` // /proc/loadavg at the beginning
	Rows []row     `json:"rows"`
	Idle []idleRow `json:"idle"`
}

// row is one cell of the table: one workload with one number of clients on one side.
type row struct {
	Backend    string  `json:"backend"`
	Workload   string  `json:"workload"`
	Clients    int     `json:"clients"`
	Side       string  `json:"side"`
	PerSecond  float64 `json:"perSecond"`
	XFirst     float64 `json:"xFirst"` // throughput against the backend's first side: direct, or the relay before null shards
	P50        float64 `json:"p50µs"`
	P99        float64 `json:"p99µs"`
	XRelayP50  float64 `json:"xRelayP50"`
	XRelayP99  float64 `json:"xRelayP99"`
	CPU        float64 `json:"cpuµs"` // of what stands between, for one operation
	XRelayCPU  float64 `json:"xRelayCPU"`
	CPUPerByte float64 `json:"cpuNsPerByte"` // of replies
}

// idleRow is the memory of idle clients.
type idleRow struct {
	Side       string `json:"side"`
	Clients    int    `json:"clients"`
	EmptyBytes int64  `json:"emptyBytes"`
	FullBytes  int64  `json:"fullBytes"`
	Upstream   int    `json:"upstream"` // further connections to shards
}

func (r *idleRow) perClient() float64 {
	return float64(r.FullBytes-r.EmptyBytes) / float64(max(r.Clients, 1)) / 1024
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}

	slices.Sort(list)

	return list[len(list)/2]
}

func (t *turn) rate() float64 { return float64(t.ops) / t.took.Seconds() }

func (t *turn) cpuPerOp() float64 { return float64(t.cpu) / float64(max(t.ops, 1)) / 1000 }

// cpuPerByte is 0 where nobody counted bytes.
func (t *turn) cpuPerByte() float64 {
	if t.bytes == 0 {
		return 0
	}

	return float64(t.cpu) / float64(t.bytes)
}

// quantile returns a quantile of the latencies in microseconds; they are sorted after the first call.
func (t *turn) quantile(q float64) float64 {
	slices.Sort(t.latency)
	return float64(t.latency[min(int(q*float64(len(t.latency))), len(t.latency)-1)]) / float64(time.Microsecond)
}

// add makes a row of the turns of side i: medians, and medians of the ratios of turns of the same round.
func (r *report) add(k *backend, workload string, clients int, name string, turns [][]turn, i int) {
	over := func(of func(*turn) float64) float64 {
		var list []float64
		for n := range turns[i] {
			list = append(list, of(&turns[i][n]))
		}

		return median(list)
	}
	against := func(other string, of func(*turn) float64) float64 {
		at := slices.IndexFunc(k.sides, func(s *side) bool { return s.name == other })

		var list []float64
		for n := range turns[i] {
			if base := of(&turns[at][n]); base > 0 {
				list = append(list, of(&turns[i][n])/base)
			}
		}

		return median(list)
	}
	p50 := func(t *turn) float64 { return t.quantile(0.5) }
	p99 := func(t *turn) float64 { return t.quantile(0.99) }

	r.Rows = append(r.Rows, row{
		Backend: k.name, Workload: workload, Clients: clients, Side: name,
		PerSecond: over((*turn).rate), XFirst: against(k.sides[0].name, (*turn).rate),
		P50: over(p50), P99: over(p99), XRelayP50: against(relayed, p50), XRelayP99: against(relayed, p99),
		CPU: over((*turn).cpuPerOp), XRelayCPU: against(relayed, (*turn).cpuPerOp),
		CPUPerByte: over((*turn).cpuPerByte),
	})
}

// find returns a row, or one of zeros where it was not run.
func (r *report) find(backend, workload string, clients int, side string) row {
	for _, w := range r.Rows {
		if w.Backend == backend && w.Workload == workload && w.Clients == clients && w.Side == side {
			return w
		}
	}

	return row{}
}

// write writes the tables.
func (r *report) write(out io.Writer) {
	fmt.Fprintf(out, "load before: %s\n\n", r.Load)

	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "backend\tworkload\tclients\tside\top/s\tx first\tp50 µs\tp99 µs\tx relay p50\tx relay p99\tCPU µs/op\tx relay CPU\tCPU ns/B\t")

	for _, w := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f\t\n",
			w.Backend, w.Workload, w.Clients, w.Side, w.PerSecond, w.XFirst, w.P50, w.P99, w.XRelayP50, w.XRelayP99, w.CPU, w.XRelayCPU, w.CPUPerByte)
	}

	_ = t.Flush()

	fmt.Fprintln(out, "\nidle clients")

	t = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "side\tclients\tMiB without\tMiB with\tKiB each\tfurther connections to shards\t")

	for _, w := range r.Idle {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.1f\t%.1f\t%d\t\n", w.Side, w.Clients, float64(w.EmptyBytes)/(1<<20), float64(w.FullBytes)/(1<<20), w.perClient(), w.Upstream)
	}

	_ = t.Flush()

	r.writeGoals(out)
}
