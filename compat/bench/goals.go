package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// goal is one of what shardgate is to reach; docs/performance.md lists them all.
type goal struct {
	number int
	what   string
	got    float64
	aim    float64
	fail   float64 // beyond this something is wrong
	atMost bool
}

func (g *goal) verdict() string {
	worse := func(a, b float64) bool { return g.atMost && a > b || !g.atMost && a < b }

	switch {
	case g.got == 0:
		return "not run"
	case worse(g.got, g.fail):
		return "FAILED"
	case worse(g.got, g.aim):
		return "missed"
	default:
		return "reached"
	}
}

// goals are those that a run measures.
func (r *report) goals() []goal {
	const mongod, null = "mongod", "null"

	gate := func(backend, workload string, clients int) row { return r.find(backend, workload, clients, shardgate) }
	sorted := gate(mongod, "sorted", 1)
	list := []goal{
		{1, "CPU of a point find, null shards, 64 clients, x relay", gate(null, "find", 64).XRelayCPU, 1.20, 1.5, true},
		{2, "throughput of the same, x relay", gate(null, "find", 64).XFirst, 0.90, 0.75, false},
		{3, "throughput of a point find by the driver, 64 clients, x direct", gate(mongod, "driver-find", 64).XFirst, 0.80, 0.70, false},
		{4, "p50 of a point find, 1 client, x relay", gate(mongod, "find", 1).XRelayP50, 1.15, 1.3, true},
		{5, "added p50 of the same, x relay's", r.addedP50(), 1.3, 1.7, true},
		{6, "p99 of a point find, 64 clients, x relay", gate(mongod, "find", 64).XRelayP99, 1.25, 1.6, true},
		{7, "throughput of insertOne by the driver, 64 clients, x direct", gate(mongod, "driver-insert", 64).XFirst, 0.75, 0.65, false},
		{7, "throughput of updateOne by the driver, 64 clients, x direct", gate(mongod, "driver-update", 64).XFirst, 0.75, 0.65, false},
		{8, "throughput of an ordered bulk, 8 clients, x direct", gate(mongod, "bulk", 8).XFirst, 0.72, 0.62, false},
		{9, "CPU of insertMany of 1,000, 8 clients, x relay", gate(mongod, "insertMany", 8).XRelayCPU, 3.0, 4, true},
		{9, "throughput of the same, x direct", gate(mongod, "insertMany", 8).XFirst, 0.90, 0.8, false},
		{10, "CPU of a scan of 10,000 x 1 KiB, 8 clients, x relay", gate(mongod, "scan", 8).XRelayCPU, 1.25, 1.8, true},
		{10, "throughput of the same, x direct", gate(mongod, "scan", 8).XFirst, 0.80, 0.65, false},
		{13, "throughput of a sorted scatter, 1 client, x one shard sorted", sorted.XFirst, 1.2, 1.0, false},
		{13, "CPU of the same, ns/B", sorted.CPUPerByte, 3, 5, true},
	}

	for _, i := range r.Idle {
		if i.Side == shardgate && i.Clients > 0 {
			list = append(list,
				goal{14, "memory of an idle client, KiB", i.perClient(), 10, 20, true},
				goal{14, "resident without clients, MiB", float64(i.EmptyBytes) / (1 << 20), 40, 80, true},
				goal{14, fmt.Sprintf("resident with %d idle clients, MiB", i.Clients), float64(i.FullBytes) / (1 << 20), 60, 120, true})
		}
	}

	return list
}

// addedP50 is what shardgate adds to the median of a point find, divided by what the relay adds.
func (r *report) addedP50() float64 {
	p50 := func(side string) float64 { return r.find("mongod", "find", 1, side).P50 }
	if added := p50(relayed) - p50(direct); added > 0 {
		return (p50(shardgate) - p50(direct)) / added
	}

	return 0
}

func (r *report) writeGoals(out io.Writer) {
	fmt.Fprintln(out, "\ngoals")

	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)

	for _, g := range r.goals() {
		sign := ">="
		if g.atMost {
			sign = "<="
		}

		fmt.Fprintf(t, "%d\t%s\t%.2f\t%s %.2f\t%s\n", g.number, g.what, g.got, sign, g.aim, g.verdict())
	}

	_ = t.Flush()
}
