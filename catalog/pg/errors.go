package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/shardgate/shardgate/catalog"
)

// SQLSTATE values that this package tells apart.
const (
	stateForeignKey   = "23503"
	stateUnique       = "23505"
	stateReadOnly     = "25006"
	stateCanceled     = "57014"
	stateLockTimeout  = "55P03"
	stateDeadlock     = "40P01"
	stateSerialize    = "40001"
	stateInTxTimeout  = "25P03"
	classConnection   = "08"
	classAuth         = "28"
	classResources    = "53"
	classIntervention = "57"
	classSystem       = "58"
)

// translate turns an error of pgx into one of package catalog. ctx is the
// caller's: where it has ended, its error is the answer, for then a failure says
// nothing about PostgreSQL.
func translate(ctx context.Context, err error) error {
	if err == nil || isCatalogError(err) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if unavailable(err) {
		return fmt.Errorf("%w: %w", catalog.ErrUnavailable, err)
	}
	if state := sqlState(err); state == stateForeignKey || state == stateUnique {
		return fmt.Errorf("%w: %w", catalog.ErrConflict, err)
	}
	return fmt.Errorf("catalog/pg: %w", err)
}

func isCatalogError(err error) bool {
	for _, e := range []error{
		catalog.ErrUnavailable, catalog.ErrLocked, catalog.ErrLockLost, catalog.ErrConflict,
		catalog.ErrInvalid, catalog.ErrSchema, catalog.ErrEvicted,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// unavailable reports whether err tells of the connection, or of a server that
// cannot serve now, and not of the request.
func unavailable(err error) bool {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return true
	}
	if state := sqlState(err); state != "" {
		switch state {
		case stateReadOnly, stateCanceled, stateLockTimeout, stateDeadlock, stateSerialize, stateInTxTimeout:
			return true
		}
		switch state[:2] {
		case classConnection, classAuth, classResources, classIntervention, classSystem:
			return true
		}
		return false
	}
	var scan pgx.ScanArgError
	return !errors.As(err, &scan) && !errors.Is(err, pgx.ErrNoRows)
}

// cannotConnect reports whether err comes from opening a connection: trying
// another one at once is of no use.
func cannotConnect(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}

func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) && len(e.Code) == 5 {
		return e.Code
	}
	return ""
}
