package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// What the gate lets pass: processor time of one operation, as a multiple of what the relay needs in the same run. The figures of a quiet
// machine are in docs/performance.md; these leave room for a busy one.
const (
	gateRounds = 9
	gateRound  = 100 * time.Millisecond
)

// gateLimits are the workloads and their limits.
func gateLimits() map[string]float64 {
	return map[string]float64{"find": 2, "update": 2}
}

// gate fails where an operation costs too much. It measures no time, only what the kernel counts for the two programs.
func gate(ctx context.Context, s *settings, out io.Writer) error {
	b := &bench{settings: s, group: proc.NewGroup()}
	s.rounds, s.round = gateRounds, gateRound

	var err error
	if b.cluster, err = cluster.Start(ctx, cluster.Options{Shards: 1, Members: 1}); err != nil {
		b.group.Close()
		return err
	}
	defer b.close()

	b.dir = b.cluster.Dir()

	if err := b.openNull(ctx); err != nil {
		return err
	}

	const clients = 8

	for _, w := range workloads() {
		limit, asked := gateLimits()[w.name]
		if !asked {
			continue
		}

		if err := b.cell(ctx, &b.null, &w, clients); err != nil {
			return err
		}

		got := b.report.find(b.null.name, w.name, clients, shardgate).XRelayCPU
		fmt.Fprintf(out, "%s: %.2f times the processor time of a TCP relay, at most %.2f\n", w.name, got, limit)

		if got > limit {
			return fmt.Errorf("%s costs %.2f times the processor time of a TCP relay, which is more than %.2f", w.name, got, limit)
		}
	}

	return nil
}
