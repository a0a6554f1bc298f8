package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/shardgate/shardgate/catalog"
)

// routerColumns go with scanRouter; $1 is the limit of silence.
const routerColumns = `incarnation, name, number, program_version, started, ping, acked,
	held_ns, held_versions, held_writes, held_cursors, clock_timestamp() - ping > $1::interval, evicted, user_shards, user_names`

// Register implements catalog.Store.
func (s *Store) Register(ctx context.Context, r catalog.Router) (self, replaced *catalog.Router, err error) {
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		self, replaced = nil, nil
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, lockRegister); err != nil {
			return err
		}
		old, err := s.oneRouter(ctx, tx, `DELETE FROM shardgate.routers WHERE name = $2 RETURNING `+routerColumns, r.Name)
		switch {
		case err == nil:
			replaced = old
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		users := r.Users
		if replaced != nil {
			users = append(slices.Clone(users), replaced.Users...)
		}
		shards, names := splitUsers(users)
		self, err = s.oneRouter(ctx, tx, `INSERT INTO shardgate.routers
				(incarnation, name, number, program_version, started, ping, acked, user_shards, user_names)
			SELECT $2, $3, n, $4, $5, clock_timestamp(), 0, $6, $7 FROM generate_series(1, 32767) n
			WHERE NOT EXISTS (SELECT 1 FROM shardgate.routers WHERE number = n) ORDER BY n LIMIT 1
			RETURNING `+routerColumns, r.Incarnation, r.Name, r.Version, millis(r.Started), shards, names)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: all router numbers are taken", catalog.ErrConflict)
		}
		if err != nil {
			return err
		}
		return notify(ctx, tx)
	})
	if err != nil {
		return nil, nil, err
	}
	return self, replaced, nil
}

func (s *Store) oneRouter(ctx context.Context, tx pgx.Tx, sql string, args ...any) (*catalog.Router, error) {
	rows, err := tx.Query(ctx, sql, append([]any{s.opts.SilenceLimit}, args...)...)
	if err != nil {
		return nil, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRouter)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Heartbeat implements catalog.Store.
func (s *Store) Heartbeat(ctx context.Context, incarnation string, ack catalog.Ack, users []catalog.ShardUser) error {
	held, versions, writes, cursors := splitHolds(ack.Held)
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var news bool
		err := tx.QueryRow(ctx, `SELECT acked < $2 OR held_ns <> $3 OR held_versions <> $4 OR held_writes <> $5 OR held_cursors <> $6
			FROM shardgate.routers WHERE incarnation = $1 AND NOT evicted FOR UPDATE`,
			incarnation, ack.Version, held, versions, writes, cursors).Scan(&news)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: %q", catalog.ErrEvicted, incarnation)
		}
		if err != nil {
			return err
		}
		shards, names := splitUsers(users)
		if _, err := tx.Exec(ctx, `UPDATE shardgate.routers SET ping = clock_timestamp(),
				acked = greatest(acked, $2), held_ns = $3, held_versions = $4, held_writes = $5, held_cursors = $6,
				user_shards = CASE WHEN $7 THEN $8 ELSE user_shards END,
				user_names = CASE WHEN $7 THEN $9 ELSE user_names END
			WHERE incarnation = $1`, incarnation, ack.Version, held, versions, writes, cursors, users != nil, shards, names); err != nil {
			return err
		}
		if !news {
			return nil
		}
		return notify(ctx, tx)
	})
}

// Deregister implements catalog.Store. The locks go by a foreign key.
func (s *Store) Deregister(ctx context.Context, incarnation string) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM shardgate.routers WHERE incarnation = $1 AND NOT evicted`, incarnation)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return notify(ctx, tx)
	})
}

// Evict implements catalog.Store. It excludes changes, so that whoever loads the catalog
// afterwards has all that the router has changed.
func (s *Store) Evict(ctx context.Context, incarnation string, ping time.Time) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := lockVersion(ctx, tx); err != nil {
			return err
		}
		r, err := s.lockRouter(ctx, tx, incarnation)
		switch {
		case errors.Is(err, pgx.ErrNoRows), err == nil && r.Evicted:
			return nil
		case err != nil:
			return err
		case !r.Ping.Equal(millis(ping)):
			return fmt.Errorf("%w: router %s has answered since", catalog.ErrConflict, r.Name)
		}
		return setUsers(ctx, tx, incarnation, r.Users)
	})
}

// ShutOut implements catalog.Store.
func (s *Store) ShutOut(ctx context.Context, incarnation string, u catalog.ShardUser) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		r, err := s.lockRouter(ctx, tx, incarnation)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !r.Evicted {
			return nil
		}
		if err != nil {
			return err
		}
		return setUsers(ctx, tx, incarnation, slices.DeleteFunc(r.Users, func(o catalog.ShardUser) bool { return o == u }))
	})
}

// lockRouter returns a row that nobody else changes until the transaction ends.
func (s *Store) lockRouter(ctx context.Context, tx pgx.Tx, incarnation string) (*catalog.Router, error) {
	return s.oneRouter(ctx, tx, `SELECT `+routerColumns+` FROM shardgate.routers WHERE incarnation = $2 FOR UPDATE`, incarnation)
}

// setUsers says where an evicted router is not shut out yet. One that is shut out of all
// shards goes.
func setUsers(ctx context.Context, tx pgx.Tx, incarnation string, users []catalog.ShardUser) error {
	var err error
	if len(users) == 0 {
		_, err = tx.Exec(ctx, `DELETE FROM shardgate.routers WHERE incarnation = $1`, incarnation)
	} else {
		shards, names := splitUsers(users)
		_, err = tx.Exec(ctx, `UPDATE shardgate.routers SET evicted = true, user_shards = $2, user_names = $3 WHERE incarnation = $1`,
			incarnation, shards, names)
	}
	if err != nil {
		return err
	}
	return notify(ctx, tx)
}

// Routers implements catalog.Store.
func (s *Store) Routers(ctx context.Context) ([]catalog.Router, error) {
	var out []catalog.Router
	err := s.read(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+routerColumns+` FROM shardgate.routers ORDER BY number`, s.opts.SilenceLimit)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, scanRouter)
		return err
	})
	if err != nil {
		return nil, err
	}
	return orNil(out), nil
}

func scanRouter(row pgx.CollectableRow) (catalog.Router, error) {
	var (
		r                   catalog.Router
		held, shards, names []string
		versions, writes    []int64
		cursors             []int64
	)
	err := row.Scan(&r.Incarnation, &r.Name, &r.Number, &r.Version, &r.Started, &r.Ping, &r.Ack.Version,
		&held, &versions, &writes, &cursors, &r.Silent, &r.Evicted, &shards, &names)
	if err != nil {
		return r, err
	}
	r.Started, r.Ping = r.Started.UTC(), millis(r.Ping)
	if len(writes) != len(held) {
		writes = versions // of a program that says nothing of its writes: any may be one
	}
	for i := range held {
		h := catalog.Hold{NS: held[i], Version: catalog.Version(versions[i]), Writes: catalog.Version(writes[i])}
		if i < len(cursors) {
			h.Cursors = catalog.Version(cursors[i])
		}
		r.Ack.Held = append(r.Ack.Held, h)
	}
	for i := range shards {
		r.Users = append(r.Users, catalog.ShardUser{Shard: shards[i], User: names[i]})
	}
	return r, nil
}

func splitHolds(held []catalog.Hold) (names []string, versions, writes, cursors []int64) {
	names, versions = make([]string, len(held)), make([]int64, len(held))
	writes, cursors = make([]int64, len(held)), make([]int64, len(held))
	for i, h := range held {
		names[i], versions[i], writes[i], cursors[i] = h.NS, int64(h.Version), int64(h.Writes), int64(h.Cursors)
	}
	return names, versions, writes, cursors
}

func splitUsers(users []catalog.ShardUser) (shards, names []string) {
	shards, names = make([]string, len(users)), make([]string, len(users))
	for i, u := range users {
		shards[i], names[i] = u.Shard, u.User
	}
	return shards, names
}

// notify sends a hint to all watches when the transaction commits.
func notify(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel)
	return err
}
