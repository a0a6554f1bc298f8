package pg

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/shardgate/shardgate/catalog"
)

// queueDrops removes rows and leaves tombstones for those that were there.
func queueDrops(b *pgx.Batch, c catalog.Change, v catalog.Version) {
	drop := func(kind, table, column, match string, names []string) {
		if len(names) == 0 {
			return
		}
		b.Queue(fmt.Sprintf(`WITH gone AS (DELETE FROM shardgate.%s WHERE %s = ANY($1) RETURNING %s AS name)
			INSERT INTO shardgate.tombstones (kind, name, version) SELECT $2, name, $3 FROM gone
			ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version`, table, match, column),
			names, kind, v)
	}
	drop(goneCollection, "collections", "ns", "db", c.DropDatabases)
	drop(goneDatabase, "databases", "name", "name", c.DropDatabases)
	drop(goneCollection, "collections", "ns", "ns", c.Drop)
	drop(goneSetting, "settings", "id", "id", c.DropSettings)
	drop(goneMovement, "movements", "id", "id", ids(c.DropMovements))
	drop(goneShard, "shards", "id", "id", c.DropShards)
}

// queueRevive takes a tombstone away because its name is in use again.
func queueRevive(b *pgx.Batch, kind, name string) {
	b.Queue(`DELETE FROM shardgate.tombstones WHERE kind = $1 AND name = $2`, kind, name)
}

func queueShards(b *pgx.Batch, shards []catalog.Shard, v catalog.Version) {
	for i := range shards {
		s := &shards[i]
		b.Queue(`INSERT INTO shardgate.shards (id, host, weight, draining, tags, topology_time,
				server_version, capabilities, added, version)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
			ON CONFLICT (id) DO UPDATE SET host = excluded.host, weight = excluded.weight,
				draining = excluded.draining, tags = excluded.tags, topology_time = excluded.topology_time,
				server_version = excluded.server_version, capabilities = excluded.capabilities,
				version = excluded.version`,
			s.ID, s.Host, s.Weight, s.Draining, list(s.Tags), int64(s.TopologyTime), s.Version,
			list(s.Capabilities), v)
		queueRevive(b, goneShard, s.ID)
	}
}

func queueDatabases(b *pgx.Batch, dbs []catalog.Database, v catalog.Version) {
	for i := range dbs {
		d := &dbs[i]
		b.Queue(`INSERT INTO shardgate.databases (name, primary_shard, placement, uuid, cluster_time,
				last_mod, version, claims_shard)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (name) DO UPDATE SET primary_shard = excluded.primary_shard,
				placement = excluded.placement, uuid = excluded.uuid, cluster_time = excluded.cluster_time,
				last_mod = excluded.last_mod, version = excluded.version, claims_shard = excluded.claims_shard`,
			d.Name, d.Primary, d.Placement, d.UUID, int64(d.Timestamp), d.LastMod, v, d.ClaimsShard)
		queueRevive(b, goneDatabase, d.Name)
	}
}

// queueCollection puts a row; whole says that all its chunks are put with it.
func queueCollection(b *pgx.Batch, c *catalog.Collection, v catalog.Version, whole bool) {
	db, _ := catalog.SplitNS(c.NS)
	b.Queue(`INSERT INTO shardgate.collections (ns, db, uuid, kind, state, shard_key, is_unique, options,
			default_collation, pinned, move_group, epoch, cluster_time, last_mod, no_balance, migrations, renamed_to, version, layout)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $18)
		ON CONFLICT (ns) DO UPDATE SET uuid = excluded.uuid, kind = excluded.kind, state = excluded.state,
			shard_key = excluded.shard_key, is_unique = excluded.is_unique, options = excluded.options,
			default_collation = excluded.default_collation, pinned = excluded.pinned,
			move_group = excluded.move_group, epoch = excluded.epoch, cluster_time = excluded.cluster_time,
			last_mod = excluded.last_mod, no_balance = excluded.no_balance,
			migrations = excluded.migrations, renamed_to = excluded.renamed_to, version = excluded.version,
			layout = CASE WHEN $19 THEN excluded.layout ELSE collections.layout END`,
		c.NS, db, c.UUID, c.Kind, c.State, blob(c.Key), c.Unique, blob(c.Options), blob(c.Collation),
		c.Pinned, c.Group, c.Epoch[:], int64(c.Timestamp), millis(c.LastMod), c.NoBalance, c.Migrations,
		c.RenamedTo, v, whole)
	queueRevive(b, goneCollection, c.NS)
}

func queueSettings(b *pgx.Batch, settings []catalog.Setting, v catalog.Version) {
	for i := range settings {
		b.Queue(`INSERT INTO shardgate.settings (id, doc, version) VALUES ($1, $2, $3)
			ON CONFLICT (id) DO UPDATE SET doc = excluded.doc, version = excluded.version`,
			settings[i].ID, blob(settings[i].Doc), v)
		queueRevive(b, goneSetting, settings[i].ID)
	}
}

func queueMovements(b *pgx.Batch, movements []catalog.Movement, v catalog.Version) error {
	for i := range movements {
		m := &movements[i]
		var rng catalog.Range // NULLs where there is none
		if m.Range != nil {
			rng = *m.Range
		}
		layout, err := catalog.EncodeLayout(m.Layout)
		if err != nil {
			return err
		}
		b.Queue(`INSERT INTO shardgate.movements (id, ns, collection, donor, recipient, state, switched_at, since, version,
				min, max, min_key, max_key, layout)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
			ON CONFLICT (id) DO UPDATE SET ns = excluded.ns, collection = excluded.collection, donor = excluded.donor,
				recipient = excluded.recipient, state = excluded.state, switched_at = excluded.switched_at,
				since = excluded.since, version = excluded.version, min = excluded.min, max = excluded.max,
				min_key = excluded.min_key, max_key = excluded.max_key, layout = excluded.layout`,
			m.ID.String(), m.NS, m.Collection, m.From, m.To, m.State, int64(m.At), millis(m.Since), v,
			[]byte(rng.Min), []byte(rng.Max), rng.MinKey, rng.MaxKey, layout)
		queueRevive(b, goneMovement, m.ID.String())
	}
	return nil
}

// ids are the names by which movements are stored.
func ids(list []uuid.UUID) []string {
	out := make([]string, len(list))
	for i, id := range list {
		out[i] = id.String()
	}
	return out
}

func (s *Store) queueLog(b *pgx.Batch, entries []catalog.LogEntry) {
	for i := range entries {
		e := &entries[i]
		b.Queue(`INSERT INTO shardgate.log (id, is_action, server, shard, client, logged, what, ns, details)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			e.ID, e.Action, e.Server, e.Shard, e.Client, millis(e.Time), e.What, e.NS, blob(e.Details))
	}
	if len(entries) == 0 {
		return
	}
	b.Queue(`DELETE FROM shardgate.log WHERE seq <= (SELECT max(seq) FROM shardgate.log) - $1::bigint`, s.keepLog)
}

// millis is what is left of a time in BSON.
func millis(t time.Time) time.Time {
	return t.UTC().Truncate(time.Millisecond)
}

// list makes nil an empty array, not NULL.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
