package pg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/shardgate/shardgate/catalog"
)

// LockMigrations is the advisory lock around migrations.
const LockMigrations = lockMigrations

// HoldVersion is a router that stops in the middle of a change: it locks the
// version row, closes entered, and goes on when release is closed.
func (s *Store) HoldVersion(ctx context.Context, entered chan<- struct{}, release <-chan struct{}) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := lockVersion(ctx, tx); err != nil {
			return err
		}
		close(entered)
		<-release
		_, err := lockVersion(ctx, tx)
		return err
	})
}

// SetKeep changes how much history is kept.
func (s *Store) SetKeep(deletions catalog.Version, log int64) {
	s.keepDeletions, s.keepLog = deletions, log
}
