package backend

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// TestPrepareIsProven: only the answer of a mongod that knows the command counts.
func TestPrepareIsProven(t *testing.T) {
	t.Parallel()
	require.True(t, isPrepareHad(mongo.CommandError{Code: 125, Name: "CommandFailed"}))
	for _, err := range []error{
		nil, errors.New("connection reset"),
		mongo.CommandError{Code: 193},
		mongo.CommandError{Code: 59},
		mongo.CommandError{Code: 13},
		mongo.CommandError{Code: 10107},
		mongo.CommandError{Code: 11600},
	} {
		require.False(t, isPrepareHad(err), "%v", err)
	}
}
