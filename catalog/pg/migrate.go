package pg

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/shardgate/shardgate/catalog"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Keys of PostgreSQL's advisory locks, all of this package's.
const (
	lockMigrations int64 = 0x7368617264670001 + iota // one router migrates
	lockLocks                                        // one Acquire decides
	lockRegister                                     // one Register picks a number
)

// migrate brings the schema up to date. Routers that start together wait for
// each other, at most for the given time.
func migrate(ctx context.Context, conf *pgx.ConnConfig, wait time.Duration) error {
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	db := stdlib.OpenDB(*conf)
	defer func() { _ = db.Close() }() // nothing is pending
	if err := ensureSchema(bound, db, wait); err != nil {
		return translate(ctx, err)
	}
	current, known, err := up(bound, db, wait)
	if err != nil {
		return translate(ctx, err)
	}
	if current > known {
		return fmt.Errorf("%w: it is at %d, this program knows %d", catalog.ErrSchema, current, known)
	}
	return nil
}

// ensureSchema makes the schema, where goose keeps its table.
func ensureSchema(ctx context.Context, db *sql.DB, wait time.Duration) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", wait.Milliseconds())); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", lockMigrations); err != nil {
		return err
	}
	// A role that may not create schemas is refused even "if not exists".
	var exists bool
	row := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'shardgate')")
	if err := row.Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := tx.ExecContext(ctx, "CREATE SCHEMA shardgate"); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func up(ctx context.Context, db *sql.DB, wait time.Duration) (current, known int64, err error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return 0, 0, err
	}
	const everySecond = 1
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(lockMigrations),
		lock.WithLockTimeout(everySecond, max(uint64(wait/time.Second), 1)))
	if err != nil {
		return 0, 0, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName("shardgate.schema_version"),
		goose.WithAllowOutofOrder(true), // numbers are given out before their changes are ready
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, 0, err
	}
	if _, err := p.Up(ctx); err != nil {
		return 0, 0, err
	}
	return p.GetVersions(ctx)
}
