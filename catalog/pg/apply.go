package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// Apply implements catalog.Store.
func (s *Store) Apply(ctx context.Context, c catalog.Change) (catalog.Version, error) {
	if err := c.Validate(); err != nil {
		return 0, err
	}
	var v catalog.Version
	limit := s.opts.Timeout + time.Duration(chunksIn(&c))*chunkPatience
	err := s.inTx(ctx, limit, beginWrite, func(ctx context.Context, tx pgx.Tx) error {
		old, err := lockVersion(ctx, tx)
		if err != nil {
			return err
		}
		if err := checkLocks(ctx, tx, c.Locks); err != nil {
			return err
		}
		if err := checkExpect(ctx, tx, c.Expect); err != nil {
			return err
		}
		v = old + 1
		return s.apply(ctx, tx, c, v)
	})
	if err != nil {
		return 0, err
	}
	return v, nil
}

// chunkPatience is how much longer a change may take for each chunk that it puts.
const chunkPatience = 100 * time.Microsecond

func chunksIn(c *catalog.Change) (n int) {
	for i := range c.Put {
		n += len(c.Put[i].Chunks)
	}
	for i := range c.Chunks {
		n += len(c.Chunks[i].Put)
	}
	return n
}

// lockVersion makes the transaction the only one that changes the catalog.
func lockVersion(ctx context.Context, tx pgx.Tx) (v catalog.Version, err error) {
	err = tx.QueryRow(ctx, `SELECT version FROM shardgate.catalog FOR UPDATE`).Scan(&v)
	return v, err
}

// checkLocks also keeps the locks from being lost before the commit. That their holder is
// not evicted meanwhile is kept by the version row.
func checkLocks(ctx context.Context, tx pgx.Tx, locks []catalog.Lock) error {
	for _, l := range locks {
		tag, err := tx.Exec(ctx, `SELECT 1 FROM shardgate.locks
			WHERE name = $1 AND token = $2 AND router = $3
			AND NOT (SELECT evicted FROM shardgate.routers WHERE incarnation = $3) FOR SHARE`, l.Name, l.Token, l.Router)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("%w: %q (token %d)", catalog.ErrLockLost, l.Name, l.Token)
		}
	}
	return nil
}

func checkExpect(ctx context.Context, tx pgx.Tx, expect []catalog.Expect) error {
	if len(expect) == 0 {
		return nil
	}
	names := make([]string, len(expect))
	for i, e := range expect {
		names[i] = e.NS
	}
	rows, err := tx.Query(ctx, `SELECT ns, version FROM shardgate.collections WHERE ns = ANY($1)
		UNION ALL SELECT name, version FROM shardgate.databases WHERE name = ANY($1)`, names)
	if err != nil {
		return err
	}
	found := make(map[string]catalog.Version, len(expect))
	var (
		ns string
		v  catalog.Version
	)
	if _, err := pgx.ForEachRow(rows, []any{&ns, &v}, func() error { found[ns] = v; return nil }); err != nil {
		return err
	}
	for _, e := range expect {
		if found[e.NS] != e.Version {
			return fmt.Errorf("%w: %q is at version %d, not %d", catalog.ErrConflict, e.NS, found[e.NS], e.Version)
		}
	}
	return nil
}

// apply writes the change as version v: first what goes, then what comes, then
// the checks that need both.
func (s *Store) apply(ctx context.Context, tx pgx.Tx, c catalog.Change, v catalog.Version) error {
	b := &pgx.Batch{}
	queueDrops(b, c, v)
	queueShards(b, c.Shards, v)
	queueDatabases(b, c.Databases, v)
	for i := range c.Put {
		queueCollection(b, &c.Put[i].Collection, v, true)
		b.Queue(`DELETE FROM shardgate.chunks WHERE ns = $1`, c.Put[i].NS)
	}
	for i := range c.Rows {
		queueCollection(b, &c.Rows[i], v, false)
	}
	removed := make([][]catalog.Chunk, len(c.Chunks))
	for i := range c.Chunks {
		queueEdit(b, &c.Chunks[i], &removed[i], v)
	}
	queueSettings(b, c.Settings, v)
	if err := queueMovements(b, c.Movements, v); err != nil {
		return err
	}
	s.queueLog(b, c.Log)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	for i := range c.Chunks {
		if err := c.Chunks[i].CheckCover(removed[i]); err != nil {
			return err
		}
	}
	if err := insertChunks(ctx, tx, c, v); err != nil {
		return err
	}
	return s.finish(ctx, tx, c, v)
}

// finish checks the result as a whole and raises the version.
func (s *Store) finish(ctx context.Context, tx pgx.Tx, c catalog.Change, v catalog.Version) error {
	b := &pgx.Batch{}
	b.Queue(`SET CONSTRAINTS ALL IMMEDIATE`)
	if len(c.Rows) > 0 {
		queueKindCheck(b, c.Rows)
	}
	if len(c.Drop)+len(c.DropDatabases)+len(c.DropShards)+len(c.DropSettings)+len(c.DropMovements) > 0 {
		b.Queue(`DELETE FROM shardgate.tombstones WHERE version <= $1`, v-s.keepDeletions)
	}
	b.Queue(`UPDATE shardgate.catalog SET version = $1`, v)
	b.Queue(`SELECT pg_notify($1, '')`, channel)
	return tx.SendBatch(ctx, b).Close()
}

// queueKindCheck checks that rows put without chunks have the chunks that their
// kind asks for. It counts no further than two.
func queueKindCheck(b *pgx.Batch, rows []catalog.Collection) {
	names := make([]string, len(rows))
	for i := range rows {
		names[i] = rows[i].NS
	}
	b.Queue(`SELECT c.ns, c.kind, (SELECT count(*) FROM
			(SELECT 1 FROM shardgate.chunks k WHERE k.ns = c.ns LIMIT 2) few)
		FROM shardgate.collections c WHERE c.ns = ANY($1)`, names).Query(func(rows pgx.Rows) error {
		var (
			ns   string
			kind catalog.Kind
			n    int
		)
		_, err := pgx.ForEachRow(rows, []any{&ns, &kind, &n}, func() error {
			if !kind.Admits(n) {
				return fmt.Errorf("%w: %q is %q and cannot have its present chunks", catalog.ErrInvalid, ns, kind)
			}
			return nil
		})
		return err
	})
}

// queueEdit removes the chunks that an edit replaces and hands their ranges out.
func queueEdit(b *pgx.Batch, e *catalog.ChunkEdit, removed *[]catalog.Chunk, v catalog.Version) {
	b.Queue(`UPDATE shardgate.collections SET version = $2 WHERE ns = $1`, e.NS, v)
	ids := make([][]byte, len(e.Remove))
	for i := range e.Remove {
		ids[i] = e.Remove[i][:]
	}
	queueRows(b, removed, func(r pgx.Rows, c *catalog.Chunk) error {
		return r.Scan(&c.MinKey, &c.MaxKey)
	}, `DELETE FROM shardgate.chunks WHERE ns = $1 AND id = ANY($2) RETURNING min_key, max_key`, e.NS, ids)
}

// manyChunks is how many new rows make PostgreSQL's knowledge of the table useless: it
// would read all of it to find the few that changed, until it has looked by itself.
const manyChunks = 20_000

// insertChunks adds the chunks of all puts and edits by one COPY.
func insertChunks(ctx context.Context, tx pgx.Tx, c catalog.Change, v catalog.Version) error {
	type owned struct {
		ns    string
		chunk *catalog.Chunk
	}
	var all []owned
	for i := range c.Put {
		for j := range c.Put[i].Chunks {
			all = append(all, owned{c.Put[i].NS, &c.Put[i].Chunks[j]})
		}
	}
	for i := range c.Chunks {
		for j := range c.Chunks[i].Put {
			all = append(all, owned{c.Chunks[i].NS, &c.Chunks[i].Put[j]})
		}
	}
	if len(all) == 0 {
		return nil
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"shardgate", "chunks"}, []string{
		"ns", "id", "min", "max", "min_key", "max_key", "shard", "last_mod", "on_shard_since",
		"history_shards", "history_times", "jumbo", "version",
	}, pgx.CopyFromSlice(len(all), func(i int) ([]any, error) {
		k := all[i].chunk
		shards, times := make([]string, len(k.History)), make([]int64, len(k.History))
		for j, o := range k.History {
			shards[j], times[j] = o.Shard, int64(o.ValidAfter)
		}
		return []any{
			all[i].ns, k.ID[:], blob(k.Min), blob(k.Max), bytesOf(k.MinKey), k.MaxKey, k.Shard,
			int64(k.LastMod), int64(k.OnShardSince), shards, times, k.Jumbo, int64(v),
		}, nil
	}))
	if err != nil || len(all) < manyChunks {
		return err
	}
	_, err = tx.Exec(ctx, `ANALYZE shardgate.chunks`)
	return err
}

// blob makes an empty document NULL.
func blob(doc bson.Raw) []byte {
	if len(doc) == 0 {
		return nil
	}
	return doc
}

// bytesOf makes nil an empty value, not NULL: the least key may be empty.
func bytesOf(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
