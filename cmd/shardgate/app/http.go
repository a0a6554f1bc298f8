package app

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpServer answers /livez, /readyz and /metrics on an address of its own.
type httpServer struct {
	app      *App
	listener net.Listener
	server   *http.Server
	draining atomic.Bool
}

// slowest bounds how long a caller may take to say what it wants, and to take an answer; a
// profile runs for 30 s unless told otherwise.
const (
	slowestRequest = 5 * time.Second
	slowestAnswer  = 2 * time.Minute
)

func newHTTPServer(a *App, l net.Listener, more []prometheus.Collector) *httpServer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(), &routerCollector{a})
	registry.MustRegister(more...)
	h := &httpServer{app: a, listener: l}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", h.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	if a.config.HTTP.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	}
	h.server = &http.Server{Handler: mux, ReadTimeout: slowestRequest, WriteTimeout: slowestAnswer, IdleTimeout: slowestAnswer}
	return h
}

// readiness is what /readyz says. A router whose catalog is away is ready: it serves what it
// knows, and another one would do no better.
type readiness struct {
	Ready          bool            `json:"ready"`
	Draining       bool            `json:"draining"`
	CatalogAway    bool            `json:"catalogAway"`
	CatalogBack    bool            `json:"catalogBack"` // it went back in time: metadata operations are stopped
	CatalogVersion int64           `json:"catalogVersion"`
	Shards         map[string]bool `json:"shards"` // has a primary
}

func (h *httpServer) ready(w http.ResponseWriter, _ *http.Request) {
	s := h.app.router.Stats()
	r := readiness{
		Draining: h.draining.Load(), CatalogAway: s.CatalogAway, CatalogBack: s.CatalogBack,
		CatalogVersion: int64(s.Version), Shards: map[string]bool{},
	}
	r.Ready = !r.Draining
	for i := range s.Shards {
		r.Shards[s.Shards[i].ID] = s.Shards[i].Primary
	}
	w.Header().Set("Content-Type", "application/json")
	if !r.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(&r) // the caller may have left
}

// serve answers until close.
func (h *httpServer) serve() {
	if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		h.app.log.Error().Err(err).Msg("metrics and health are not served any more")
	}
}

// drain has /readyz say that nobody new should come.
func (h *httpServer) drain() { h.draining.Store(true) }

func (h *httpServer) close() { _ = h.server.Close() }
