package pg

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// Load implements catalog.Store.
func (s *Store) Load(ctx context.Context, after catalog.Version) (*catalog.Delta, error) {
	var d *catalog.Delta
	err := s.read(ctx, func(ctx context.Context, tx pgx.Tx) error {
		d = &catalog.Delta{}
		var id []byte
		if err := tx.QueryRow(ctx, `SELECT version, (SELECT doc FROM shardgate.settings WHERE id = $1) FROM shardgate.catalog`,
			catalog.ClusterIDSetting).Scan(&d.Version, &id); err != nil {
			return err
		}
		d.Cluster = catalog.ClusterID(id)
		var err error
		if d.Timeline, err = timeline(ctx, tx); err != nil {
			return err
		}
		d.Full = after <= 0 || after < d.Version-s.keepDeletions
		if d.Full {
			after = 0
		}
		var b pgx.Batch
		queueLoad(&b, d, after)
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// timeline asks for the timeline that the server writes to. Where it may not be
// asked, or has no such thing, the answer is 0.
func timeline(ctx context.Context, tx pgx.Tx) (int64, error) {
	sub, err := tx.Begin(ctx)
	if err != nil {
		return 0, err
	}
	var tl int64
	err = sub.QueryRow(ctx, `SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint`).Scan(&tl)
	switch {
	case err == nil:
		return tl, sub.Commit(ctx)
	case sqlState(err) != "" && !unavailable(err):
		return 0, sub.Rollback(ctx)
	default:
		return 0, err
	}
}

func queueLoad(b *pgx.Batch, d *catalog.Delta, after catalog.Version) {
	queueRows(b, &d.Shards, scanShard, `SELECT id, host, weight, draining, tags, topology_time,
		server_version, capabilities, added FROM shardgate.shards WHERE version > $1 ORDER BY id`, after)
	queueRows(b, &d.Databases, scanDatabase, `SELECT name, primary_shard, placement, uuid, cluster_time,
		last_mod FROM shardgate.databases WHERE version > $1 ORDER BY name`, after)
	queueRows(b, &d.Collections, scanCollection, `SELECT ns, uuid, kind, state, shard_key, is_unique,
		options, default_collation, pinned, move_group, epoch, cluster_time, last_mod, no_balance,
		migrations, version FROM shardgate.collections WHERE version > $1 ORDER BY ns`, after)
	b.Queue(`SELECT k.ns, k.id, k.min, k.max, k.min_key, k.max_key, k.shard, k.last_mod,
		k.on_shard_since, k.history_shards, k.history_times, k.jumbo
		FROM shardgate.chunks k JOIN shardgate.collections c USING (ns)
		WHERE c.version > $1 ORDER BY k.ns, k.min_key`, after).Query(func(rows pgx.Rows) error {
		return addChunks(rows, d.Collections)
	})
	queueRows(b, &d.Settings, func(r pgx.Rows, v *catalog.Setting) error {
		return r.Scan(&v.ID, (*[]byte)(&v.Doc))
	}, `SELECT id, doc FROM shardgate.settings WHERE version > $1 ORDER BY id`, after)
	queueRows(b, &d.Movements, scanMovement, `SELECT id, ns, collection, donor, recipient, state, switched_at, since,
		min, max, min_key, max_key FROM shardgate.movements WHERE version > $1 ORDER BY id`, after)
	if after == 0 {
		return
	}
	b.Queue(`SELECT kind, name FROM shardgate.tombstones WHERE version > $1 ORDER BY kind, name`,
		after).Query(func(rows pgx.Rows) error { return addGone(rows, d) })
}

// queueRows queues a query whose rows become the elements of out.
func queueRows[T any](b *pgx.Batch, out *[]T, scan func(pgx.Rows, *T) error, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var v T
			if err := scan(rows, &v); err != nil {
				return err
			}
			*out = append(*out, v)
		}
		return rows.Err()
	})
}

func scanShard(r pgx.Rows, v *catalog.Shard) error {
	var topology int64
	err := r.Scan(&v.ID, &v.Host, &v.Weight, &v.Draining, &v.Tags, &topology, &v.Version,
		&v.Capabilities, &v.Added)
	v.TopologyTime = catalog.Timestamp(topology)
	v.Tags, v.Capabilities = orNil(v.Tags), orNil(v.Capabilities)
	return err
}

func scanMovement(r pgx.Rows, v *catalog.Movement) error {
	var (
		id  string
		at  int64
		rng catalog.Range
	)
	err := r.Scan(&id, &v.NS, &v.Collection, &v.From, &v.To, &v.State, &at, &v.Since,
		(*[]byte)(&rng.Min), (*[]byte)(&rng.Max), &rng.MinKey, &rng.MaxKey)
	if err != nil {
		return err
	}
	if rng.Min != nil {
		v.Range = &rng
	}
	v.At, v.Since = catalog.Timestamp(at), v.Since.UTC()
	v.ID, err = uuid.Parse(id)
	return err
}

func scanDatabase(r pgx.Rows, v *catalog.Database) error {
	var ts int64
	err := r.Scan(&v.Name, &v.Primary, &v.Placement, &v.UUID, &ts, &v.LastMod)
	v.Timestamp = catalog.Timestamp(ts)
	return err
}

func scanCollection(r pgx.Rows, v *catalog.CollectionChunks) error {
	var (
		ts    int64
		epoch []byte
		mod   time.Time
	)
	c := &v.Collection
	err := r.Scan(&c.NS, &c.UUID, &c.Kind, &c.State, (*[]byte)(&c.Key), &c.Unique,
		(*[]byte)(&c.Options), (*[]byte)(&c.Collation), &c.Pinned, &c.Group, &epoch, &ts, &mod,
		&c.NoBalance, &c.Migrations, &c.Version)
	copy(c.Epoch[:], epoch)
	c.Timestamp, c.LastMod = catalog.Timestamp(ts), mod.UTC()
	return err
}

// addChunks gives chunks to collections; both are ordered by namespace.
func addChunks(rows pgx.Rows, colls []catalog.CollectionChunks) error {
	i := 0
	for rows.Next() {
		var (
			ns string
			c  catalog.Chunk
		)
		if err := scanChunk(rows, &ns, &c); err != nil {
			return err
		}
		for i < len(colls) && colls[i].NS != ns {
			i++
		}
		colls[i].Chunks = append(colls[i].Chunks, c)
	}
	return rows.Err()
}

func scanChunk(rows pgx.Rows, ns *string, c *catalog.Chunk) error {
	var (
		id             []byte
		lastMod, since int64
		shards         []string
		times          []int64
	)
	err := rows.Scan(ns, &id, (*[]byte)(&c.Min), (*[]byte)(&c.Max), &c.MinKey, &c.MaxKey, &c.Shard,
		&lastMod, &since, &shards, &times, &c.Jumbo)
	if err != nil {
		return err
	}
	copy(c.ID[:], id)
	c.LastMod, c.OnShardSince = catalog.Timestamp(lastMod), catalog.Timestamp(since)
	if len(shards) > 0 {
		c.History = make([]catalog.Owner, len(shards))
	}
	for i := range shards {
		c.History[i] = catalog.Owner{Shard: shards[i], ValidAfter: catalog.Timestamp(times[i])}
	}
	return nil
}

// Kinds of tombstones.
const (
	goneShard      = "shard"
	goneDatabase   = "database"
	goneCollection = "collection"
	goneSetting    = "setting"
	goneMovement   = "movement"
)

func addGone(rows pgx.Rows, d *catalog.Delta) error {
	for rows.Next() {
		var kind, name string
		if err := rows.Scan(&kind, &name); err != nil {
			return err
		}
		switch kind {
		case goneShard:
			d.ShardsGone = append(d.ShardsGone, name)
		case goneDatabase:
			d.DatabasesGone = append(d.DatabasesGone, name)
		case goneCollection:
			d.CollectionsGone = append(d.CollectionsGone, name)
		case goneSetting:
			d.SettingsGone = append(d.SettingsGone, name)
		case goneMovement:
			d.MovementsGone = append(d.MovementsGone, name)
		}
	}
	return rows.Err()
}

// Log implements catalog.Store.
func (s *Store) Log(ctx context.Context, action bool, limit int) ([]catalog.LogEntry, error) {
	var out []catalog.LogEntry
	err := s.read(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out = nil
		var b pgx.Batch
		queueRows(&b, &out, scanLog, `SELECT id, is_action, server, shard, client, logged, what, ns, details
			FROM (SELECT * FROM shardgate.log WHERE is_action = $1 ORDER BY seq DESC LIMIT $2) newest
			ORDER BY seq`, action, max(limit, 0))
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func scanLog(r pgx.Rows, v *catalog.LogEntry) error {
	var details []byte
	err := r.Scan(&v.ID, &v.Action, &v.Server, &v.Shard, &v.Client, &v.Time, &v.What, &v.NS, &details)
	v.Time, v.Details = v.Time.UTC(), bson.Raw(details)
	return err
}

func orNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}
