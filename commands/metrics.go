package commands

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// metrics are what the handler tells of the commands it answers.
type metrics struct {
	operations *prometheus.CounterVec   // by command and outcome
	seconds    *prometheus.HistogramVec // by command
	errors     *prometheus.CounterVec   // by code
	shard      *prometheus.HistogramVec // one round trip, by shard
	width      prometheus.Histogram     // shards that a command asked
}

// latencies are upper bounds of classes of times, in seconds: a point operation takes a
// tenth of a millisecond, a movement minutes.
var latencies = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}

func newMetrics() *metrics {
	return &metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shardgate_operations_total", Help: "Commands answered, by name and outcome (ok, error).",
		}, []string{"command", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "shardgate_operation_seconds", Help: "Time from a command's arrival to its answer.", Buckets: latencies,
		}, []string{"command"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shardgate_errors_total", Help: "Commands that failed, by the name of their code.",
		}, []string{"code"}),
		shard: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "shardgate_shard_seconds", Help: "Time of one round trip to a shard.", Buckets: latencies,
		}, []string{"shard"}),
		width: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "shardgate_scatter_width", Help: "Shards that a command asked, of those that asked any.",
			Buckets: []float64{1, 2, 3, 5, 10, 20, 50, 100},
		}),
	}
}

// observed are a command's own metrics, looked up once.
type observed struct {
	ok, failed prometheus.Counter
	seconds    prometheus.Observer
}

func (m *metrics) of(row *Command) observed {
	return observed{
		ok: m.operations.WithLabelValues(row.Name, "ok"), failed: m.operations.WithLabelValues(row.Name, "error"),
		seconds: m.seconds.WithLabelValues(row.Name),
	}
}

// note counts a command that was answered. What is no command of the table has no name:
// clients could make up any number of them.
func (m *metrics) note(row *Command, trace *router.Trace, code mongoerr.Code, failed bool, took time.Duration) {
	if row != nil {
		row.observed.seconds.Observe(took.Seconds())
		if failed {
			row.observed.failed.Inc()
		} else {
			row.observed.ok.Inc()
		}
	}
	if failed {
		m.errors.WithLabelValues(code.String()).Inc()
	}
	for i := range trace.Asked {
		a := &trace.Asked[i]
		m.shard.WithLabelValues(a.Shard).Observe(a.Took.Seconds())
	}
	if n := trace.Width(); n > 0 {
		m.width.Observe(float64(n))
	}
}

// Collectors returns the handler's metrics, for a registry.
func (h *Handler) Collectors() []prometheus.Collector {
	m := h.metrics
	return []prometheus.Collector{m.operations, m.seconds, m.errors, m.shard, m.width}
}
