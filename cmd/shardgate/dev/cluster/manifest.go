package cluster

import (
	"errors"
	"io/fs"
	"os"
)

// manifestName is the file that says what runs.
const manifestName = "cluster.json"

// Manifest is the content of cluster.json: what runs where, for programs that look from outside. It holds passwords.
// What does not run has no process id.
type Manifest struct {
	Catalog ManifestCatalog  `json:"catalog"`
	Shards  []ManifestShard  `json:"shards"`
	Routers []ManifestRouter `json:"routers"`
}

// ManifestCatalog is the PostgreSQL of a cluster.
type ManifestCatalog struct {
	DSN string `json:"dsn"`
	PID int    `json:"pid,omitempty"`
}

// ManifestShard is one shard.
type ManifestShard struct {
	Name    string           `json:"name"`
	URI     string           `json:"uri"` // logs in as __system
	Members []ManifestMember `json:"members"`
}

// ManifestMember is one mongod.
type ManifestMember struct {
	Addr   string `json:"addr"`
	PID    int    `json:"pid,omitempty"`
	DBPath string `json:"dbpath"`
}

// ManifestRouter is one router.
type ManifestRouter struct {
	URI string `json:"uri"`
	PID int    `json:"pid,omitempty"`
}

// pids lists the processes of a manifest.
func (m Manifest) pids() []int {
	pids := []int{m.Catalog.PID}

	for _, s := range m.Shards {
		for _, member := range s.Members {
			pids = append(pids, member.PID)
		}
	}

	for _, r := range m.Routers {
		pids = append(pids, r.PID)
	}

	return pids
}

// Manifest describes the cluster as it is now.
func (c *Cluster) Manifest() Manifest {
	m := Manifest{
		Catalog: ManifestCatalog{DSN: c.CatalogDSN(), PID: c.postgres.PID()},
		Shards:  make([]ManifestShard, 0, len(c.shards)),
		Routers: make([]ManifestRouter, 0, len(c.routers)),
	}

	for _, s := range c.shards {
		shard := ManifestShard{Name: s.Name(), URI: s.URI()}
		for _, n := range s.members {
			shard.Members = append(shard.Members, ManifestMember{Addr: n.Addr(), PID: n.PID(), DBPath: s.dbPath(n)})
		}

		m.Shards = append(m.Shards, shard)
	}

	for _, r := range c.routers {
		m.Routers = append(m.Routers, ManifestRouter{URI: routerURI(r), PID: r.PID()})
	}

	return m
}

// writeManifest writes cluster.json once the cluster is up, and again whenever a process ends or starts.
func (c *Cluster) writeManifest() error {
	c.manifestMu.Lock()
	defer c.manifestMu.Unlock()

	if !c.up {
		return nil
	}

	return writeJSON(c.folder.in(manifestName), c.Manifest())
}

// removeManifest says that nothing runs any more.
func (c *Cluster) removeManifest() error {
	c.manifestMu.Lock()
	defer c.manifestMu.Unlock()

	c.up = false

	if err := os.Remove(c.folder.in(manifestName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return nil
}
