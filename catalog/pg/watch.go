package pg

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	channel = "shardgate" // of NOTIFY

	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second
	// checkEvery is how often a silent connection is asked whether it lives.
	checkEvery = 15 * time.Second
)

// Watch implements catalog.Store. It keeps a connection of its own for as long
// as it runs and opens it again whenever it is lost.
func (s *Store) Watch(ctx context.Context) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	s.watches.Add(2)
	go func() {
		defer s.watches.Done()
		defer cancel()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
	}()
	go func() {
		defer s.watches.Done()
		defer cancel()
		defer close(out)
		s.watch(ctx, out)
	}()
	return out, nil
}

func (s *Store) watch(ctx context.Context, out chan<- struct{}) {
	backoff := backoffMin
	for ctx.Err() == nil {
		if s.listenOnce(ctx, out) {
			backoff = backoffMin
		}
		wait := time.NewTimer(backoff/2 + rand.N(backoff/2))
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
		wait.Stop()
		backoff = min(2*backoff, backoffMax)
	}
}

// listenOnce passes hints on until the connection is lost or ctx ends. It
// reports whether it came to listen at all.
func (s *Store) listenOnce(ctx context.Context, out chan<- struct{}) bool {
	conn, err := pgx.ConnectConfig(ctx, s.listen)
	if err != nil {
		return false
	}
	defer closeConn(ctx, conn)
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return false
	}
	for {
		// The first hint stands for all that was missed before.
		select {
		case out <- struct{}{}:
		default:
		}
		if err := waitNotification(ctx, conn); err != nil {
			return true
		}
	}
}

func waitNotification(ctx context.Context, conn *pgx.Conn) error {
	for {
		bound, cancel := context.WithTimeout(ctx, checkEvery)
		_, err := conn.WaitForNotification(bound)
		cancel()
		if err == nil || ctx.Err() != nil || !pgconn.Timeout(err) {
			return err
		}
		bound, cancel = context.WithTimeout(ctx, connectTimeout)
		err = conn.Ping(bound)
		cancel()
		if err != nil {
			return errors.Join(errors.New("catalog/pg: the listening connection is dead"), err)
		}
	}
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is gone either way
}
