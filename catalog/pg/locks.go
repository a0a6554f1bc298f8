package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/shardgate/shardgate/catalog"
)

// Acquire implements catalog.Store.
func (s *Store) Acquire(ctx context.Context, name, incarnation, why string) (catalog.Lock, error) {
	l := catalog.Lock{Name: name, Router: incarnation, Why: why}
	err := s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, lockLocks); err != nil {
			return err
		}
		// The row must not go before the lock that refers to it is there.
		tag, err := tx.Exec(ctx, `SELECT 1 FROM shardgate.routers WHERE incarnation = $1 AND NOT evicted FOR KEY SHARE`, incarnation)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("%w: %q", catalog.ErrEvicted, incarnation)
		}
		if err := checkFree(ctx, tx, name); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `INSERT INTO shardgate.locks (name, db, router, why)
			VALUES ($1, nullif($2, ''), $3, $4) RETURNING token`,
			name, catalog.LockDatabase(name), incarnation, why).Scan(&l.Token)
	})
	if err != nil && l.Token == 0 {
		return catalog.Lock{}, err
	}
	// Where the commit's outcome is unknown the token tells which lock may be held.
	return l, err
}

// checkFree looks for a lock that excludes the one called name, by the rule of
// catalog.LocksConflict.
func checkFree(ctx context.Context, tx pgx.Tx, name string) error {
	var held, router, why string
	err := tx.QueryRow(ctx, `SELECT l.name, coalesce(r.name, l.router), l.why
		FROM shardgate.locks l LEFT JOIN shardgate.routers r ON r.incarnation = l.router
		WHERE l.name = $1 OR l.db = nullif($2, '') AND (l.name = $2 OR $1 = $2)
		ORDER BY l.name LIMIT 1`, name, catalog.LockDatabase(name)).Scan(&held, &router, &why)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	default:
		return fmt.Errorf("%w: %q is held by %s for %s", catalog.ErrLocked, held, router, why)
	}
}

// Release implements catalog.Store.
func (s *Store) Release(ctx context.Context, l catalog.Lock) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM shardgate.locks WHERE name = $1 AND token = $2`, l.Name, l.Token)
		return err
	})
}

// Break implements catalog.Store.
func (s *Store) Break(ctx context.Context, name string, shards []string) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM shardgate.locks l USING shardgate.routers r
			WHERE r.incarnation = l.router AND r.evicted AND NOT r.user_shards && $3
			AND (l.name = $1 OR l.db = nullif($2, '') AND (l.name = $2 OR $1 = $2))`,
			name, catalog.LockDatabase(name), list(shards))
		return err
	})
}
