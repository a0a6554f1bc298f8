package pg

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

const (
	// keepDeletions is for how many versions a deletion stays on record. It must
	// be the same for all routers.
	keepDeletions = 10_000
	// keepLog is how many log entries are kept, roughly.
	keepLog = 40_000
)

// Store keeps the catalog in PostgreSQL.
type Store struct {
	opts          Options
	pool          *pgxpool.Pool
	listen        *pgx.ConnConfig
	keepDeletions catalog.Version
	keepLog       int64

	closing chan struct{} // closed by Close
	once    sync.Once
	watches sync.WaitGroup
}

var _ catalog.Store = (*Store)(nil)

// New connects, brings the schema up to date and makes sure that the catalog has
// a cluster id. It returns catalog.ErrSchema where the schema is newer than this
// program. ctx bounds only New.
func New(ctx context.Context, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	conf, err := opts.pool()
	if err != nil {
		return nil, err
	}
	direct, err := opts.direct()
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, direct, opts.MigrationWait); err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), conf)
	if err != nil {
		return nil, translate(ctx, err)
	}
	s := &Store{
		opts: opts, pool: pool, listen: direct,
		keepDeletions: keepDeletions, keepLog: keepLog,
		closing: make(chan struct{}),
	}
	if err := s.ensureClusterID(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends all watches and closes all connections.
func (s *Store) Close() {
	s.once.Do(func() { close(s.closing) })
	s.watches.Wait()
	s.pool.Close()
}

// ensureClusterID makes the first version of a new catalog.
func (s *Store) ensureClusterID(ctx context.Context) error {
	doc, err := bson.Marshal(bson.D{
		{Key: "_id", Value: catalog.ClusterIDSetting},
		{Key: "value", Value: bson.NewObjectID()},
	})
	if err != nil {
		return err
	}
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
		v, err := lockVersion(ctx, tx)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO shardgate.settings (id, doc, version)
			VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`, catalog.ClusterIDSetting, doc, v+1)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE shardgate.catalog SET version = $1`, v+1)
		return err
	})
}

type txFunc func(ctx context.Context, tx pgx.Tx) error

// A transaction that writes, and one that sees one snapshot.
const (
	beginWrite = "begin isolation level read committed"
	beginRead  = "begin isolation level repeatable read read only"
)

// write runs fn in a transaction and commits it.
func (s *Store) write(ctx context.Context, fn txFunc) error {
	return s.inTx(ctx, s.opts.Timeout, beginWrite, fn)
}

// read runs fn in a transaction that sees one snapshot.
func (s *Store) read(ctx context.Context, fn txFunc) error {
	return s.inTx(ctx, s.opts.Timeout, beginRead, fn)
}

// inTx runs fn in a transaction within a limit.
func (s *Store) inTx(ctx context.Context, limit time.Duration, begin string, fn txFunc) error {
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tx, err := s.begin(bound, begin)
	if err != nil {
		return translate(ctx, err)
	}
	if err := fn(bound, tx); err != nil {
		s.rollback(bound, tx)
		return translate(ctx, err)
	}
	return translate(ctx, tx.Commit(bound))
}

// serverSlack is by how much the server gives a statement up later than its caller does, who
// is to see the end of its own context.
const serverSlack = 500 * time.Millisecond

// begin opens a transaction whose statements the server gives up when ctx ends.
// After a restart of PostgreSQL the pool may hold dead connections: since nothing
// has been done yet, they are passed over.
func (s *Store) begin(ctx context.Context, begin string) (pgx.Tx, error) {
	for tries := s.opts.MaxConns; ; tries-- {
		left := s.opts.Timeout // of inTx, where it has a deadline
		if deadline, ok := ctx.Deadline(); ok {
			left = max(time.Until(deadline), time.Millisecond)
		}
		left += serverSlack
		tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(
			"%s; set local statement_timeout = %d; set local idle_in_transaction_session_timeout = %d",
			begin, max(left.Milliseconds(), 1), idleLimit.Milliseconds())})
		if err == nil || tries == 0 || ctx.Err() != nil || cannotConnect(err) || !unavailable(err) {
			return tx, err
		}
	}
}

// rollback gives the connection back. If it fails the pool discards the
// connection, and with it the transaction, so there is nothing to report.
func (s *Store) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = tx.Rollback(ctx)
}
