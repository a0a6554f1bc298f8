package pg

import (
	"bytes"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// fullLoadPatience is how many times longer than other calls a load of everything may take:
// it is as long as the catalog is large.
const fullLoadPatience = 6

// Load implements catalog.Store.
func (s *Store) Load(ctx context.Context, after catalog.Version) (*catalog.Delta, error) {
	limit := s.opts.Timeout
	if after <= 0 {
		limit *= fullLoadPatience
	}
	var d *catalog.Delta
	err := s.inTx(ctx, limit, beginRead, func(ctx context.Context, tx pgx.Tx) error {
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
		if d.Full = after <= 0 || after < d.Version-s.keepDeletions; d.Full && after > 0 {
			return nil // asked for again, with time for it
		}
		if d.Full {
			after = -1 // rows of before there were versions of chunks have 0
		}
		var b pgx.Batch
		queueLoad(&b, d, after)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		return loadWhole(ctx, tx, d)
	})
	switch {
	case err != nil:
		return nil, err
	case d.Full && after > 0:
		return s.Load(ctx, 0)
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
		last_mod, claims_shard FROM shardgate.databases WHERE version > $1 ORDER BY name`, after)
	queueRows(b, &d.Collections, scanCollection, `SELECT ns, uuid, kind, state, shard_key, is_unique,
		options, default_collation, pinned, move_group, epoch, cluster_time, last_mod, no_balance,
		migrations, renamed_to, version, layout <= $1 FROM shardgate.collections WHERE version > $1 ORDER BY ns`, after)
	if !d.Full {
		b.Queue(`SELECT `+chunkColumns+` FROM shardgate.chunks k JOIN shardgate.collections c USING (ns)
			WHERE k.version > $1 AND c.layout <= $1 ORDER BY k.ns, k.min_key`, after).Query(func(rows pgx.Rows) error {
			return addChunks(rows, d.Collections)
		})
	}
	queueRows(b, &d.Settings, func(r pgx.Rows, v *catalog.Setting) error {
		return r.Scan(&v.ID, (*[]byte)(&v.Doc))
	}, `SELECT id, doc FROM shardgate.settings WHERE version > $1 ORDER BY id`, after)
	queueRows(b, &d.Movements, scanMovement, `SELECT id, ns, collection, donor, recipient, state, switched_at, since,
		min, max, min_key, max_key, layout FROM shardgate.movements WHERE version > $1 ORDER BY id`, after)
	if d.Full {
		return
	}
	b.Queue(`SELECT kind, name FROM shardgate.tombstones WHERE version > $1 ORDER BY kind, name`,
		after).Query(func(rows pgx.Rows) error { return addGone(rows, d) })
}

const chunkColumns = `k.ns, k.id, k.min, k.max, k.min_key, k.max_key, k.shard, k.last_mod,
	k.on_shard_since, k.history_shards, k.history_times, k.jumbo`

// loadWhole loads all chunks of the collections whose chunks were all put anew. It is asked
// by itself, and with their names: so PostgreSQL knows that there is mostly nothing of it.
func loadWhole(ctx context.Context, tx pgx.Tx, d *catalog.Delta) error {
	var names []string
	for i := range d.Collections {
		if !d.Collections[i].Part {
			names = append(names, d.Collections[i].NS)
		}
	}
	if len(names) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `SELECT `+chunkColumns+` FROM shardgate.chunks k WHERE k.ns = ANY($1) ORDER BY k.ns, k.min_key`, names)
	if err != nil {
		return err
	}
	defer rows.Close()
	return addChunks(rows, d.Collections)
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
		lay []byte
	)
	err := r.Scan(&id, &v.NS, &v.Collection, &v.From, &v.To, &v.State, &at, &v.Since,
		(*[]byte)(&rng.Min), (*[]byte)(&rng.Max), &rng.MinKey, &rng.MaxKey, &lay)
	if err != nil {
		return err
	}
	if v.Layout, err = catalog.DecodeLayout(lay); err != nil {
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
	err := r.Scan(&v.Name, &v.Primary, &v.Placement, &v.UUID, &ts, &v.LastMod, &v.ClaimsShard)
	v.Timestamp = catalog.Timestamp(ts)
	return err
}

func scanCollection(r pgx.Rows, v *catalog.CollectionDelta) error {
	var (
		ts    int64
		epoch []byte
		mod   time.Time
	)
	c := &v.Collection
	err := r.Scan(&c.NS, &c.UUID, &c.Kind, &c.State, (*[]byte)(&c.Key), &c.Unique,
		(*[]byte)(&c.Options), (*[]byte)(&c.Collation), &c.Pinned, &c.Group, &epoch, &ts, &mod,
		&c.NoBalance, &c.Migrations, &c.RenamedTo, &c.Version, &v.Part)
	copy(c.Epoch[:], epoch)
	c.Timestamp, c.LastMod = catalog.Timestamp(ts), mod.UTC()
	return err
}

// addChunks gives chunks to collections; both are ordered by namespace. Chunks that touch
// share the bytes of their common bound, and all of them the shards' names: there may be a
// million of them.
func addChunks(rows pgx.Rows, colls []catalog.CollectionDelta) error {
	i := 0
	names := map[string]string{}
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
		share(names, &c.Shard)
		for h := range c.History {
			share(names, &c.History[h].Shard)
		}
		if n := len(colls[i].Chunks); n > 0 {
			if last := &colls[i].Chunks[n-1]; bytes.Equal(last.MaxKey, c.MinKey) && bytes.Equal(last.Max, c.Min) {
				c.MinKey, c.Min = last.MaxKey, last.Max
			}
		}
		colls[i].Chunks = append(colls[i].Chunks, c)
	}
	return rows.Err()
}

// share makes equal strings the same memory.
func share(seen map[string]string, s *string) {
	if have, ok := seen[*s]; ok {
		*s = have
		return
	}
	seen[*s] = *s
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
