package app

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardgate/shardgate/catalog"
)

// routerCollector makes metrics of a router's state when they are asked for.
type routerCollector struct{ app *App }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("shardgate_"+name, help, labels, nil)
}

var (
	descInfo        = describe("info", "The program and the router's name and number; always 1.", "version", "name", "number")
	descClients     = describe("clients", "Client connections.")
	descUnread      = describe("unread_reply_bytes", "Bytes of replies that wait for clients to read them, replies under 64 KiB left out.")
	descCut         = describe("unread_closed_total", "Connections closed because their clients did not read and such replies were too many.")
	descCursors     = describe("cursors", "Open cursors.")
	descInFlight    = describe("gate_operations", "Operations that run by the newest routing tables.")
	descWaiting     = describe("gate_waiting", "Operations that wait for a metadata operation or the switch of a movement.")
	descBarriers    = describe("barriers_total", "Times that this router waited for the others to acknowledge a change.")
	descBarrierTime = describe("barrier_seconds_total", "Seconds that it waited for them.")
	descVersion     = describe("catalog_version", "The catalog's version by which this router acts.")
	descLag         = describe("catalog_lag_seconds", "Time since the catalog was last asked with success.")
	descAway        = describe("catalog_away", "1 while the catalog cannot be reached.")
	descMovements   = describe("movements", "Movements on record, by state.", "state")
	descPrimary     = describe("shard_has_primary", "1 while the shard has a primary.", "shard")
	descConns       = describe("shard_connections", "Connections to a member, by state (idle, busy).", "shard", "member", "state")
	descConnWaiting = describe("shard_connection_waiting", "Operations that wait for a connection to a member.", "shard", "member")
)

// Describe implements prometheus.Collector.
func (c *routerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInfo, descClients, descUnread, descCut, descCursors, descInFlight, descWaiting, descBarriers, descBarrierTime, descVersion, descLag, descAway,
		descMovements, descPrimary, descConns, descConnWaiting,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *routerCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	s, self := c.app.router.Stats(), c.app.router.Self()
	gauge(descInfo, 1, Version(), self.Name, strconv.Itoa(self.Number))
	gauge(descClients, float64(c.app.server.Connections()))
	unread, cut := c.app.server.Unread()
	gauge(descUnread, float64(unread))
	count(descCut, float64(cut))
	gauge(descCursors, float64(s.Cursors))
	gauge(descInFlight, float64(s.InFlight))
	gauge(descWaiting, float64(s.Waiting))
	count(descBarriers, float64(s.Barriers))
	count(descBarrierTime, s.BarrierTime.Seconds())
	gauge(descVersion, float64(s.Version))
	gauge(descLag, time.Since(s.Seen).Seconds())
	gauge(descAway, flag(s.CatalogAway))
	for _, state := range []catalog.MovementState{catalog.MovementCopying, catalog.MovementSwitched, catalog.MovementLeaving, catalog.MovementGone} {
		gauge(descMovements, float64(s.Movements[state]), string(state))
	}
	for i := range s.Shards {
		shard := &s.Shards[i]
		gauge(descPrimary, flag(shard.Primary), shard.ID)
		for _, p := range shard.Pools {
			gauge(descConns, float64(p.Idle), shard.ID, p.Addr, "idle")
			gauge(descConns, float64(p.Open-p.Idle), shard.ID, p.Addr, "busy")
			gauge(descConnWaiting, float64(p.Waiting), shard.ID, p.Addr)
		}
	}
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
