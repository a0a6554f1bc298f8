package router

import (
	"slices"
	"strings"
	"time"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
)

// Stats are figures of a router at one moment, for metrics and health.
type Stats struct {
	Version     catalog.Version // of the catalog by which it acts
	Seen        time.Time       // when the catalog was last asked with success
	CatalogAway bool            // it cannot be reached
	CatalogBack bool            // it went back, or is another one: metadata operations are stopped
	InFlight    int64           // operations that passed the gate by the newest tables
	Waiting     int64           // operations that wait at the gate
	Cursors     int
	Movements   map[catalog.MovementState]int

	Barriers    int64         // that were waited for
	BarrierTime time.Duration // in all

	Shards []ShardStats // by ID
}

// ShardStats are the figures of one shard.
type ShardStats struct {
	ID      string
	Primary bool // it has one
	Pools   []backend.PoolStats
}

// Stats returns the router's figures.
func (r *Router) Stats() Stats {
	snap := r.snap.Load()
	s := Stats{
		Version: snap.Version, Seen: time.Unix(0, r.seen.Load()), CatalogAway: r.down.Load(), CatalogBack: r.regressed.Load(),
		Waiting: r.waiting.Load(), Cursors: r.cursors.count(), Movements: map[catalog.MovementState]int{},
		Barriers: r.barriers.Load(), BarrierTime: time.Duration(r.barrierTime.Load()),
	}
	for _, e := range snap.Entries {
		s.InFlight += e.inflight.Load()
	}
	for _, m := range snap.Movements {
		if !m.Renamed() {
			s.Movements[m.State]++
		}
	}
	for _, b := range r.Shards() {
		s.Shards = append(s.Shards, ShardStats{ID: b.ID, Primary: b.HasPrimary(), Pools: b.Pools()})
	}
	slices.SortFunc(s.Shards, func(a, b ShardStats) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// timeBarrier counts a wait for other routers that began at a time.
func (r *Router) timeBarrier(begun time.Time) {
	r.barriers.Add(1)
	r.barrierTime.Add(int64(time.Since(begun)))
}
