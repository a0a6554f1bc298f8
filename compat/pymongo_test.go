package compat

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

func TestPyMongoNewcomer(t *testing.T) {
	out := output(t, clustertest.PyMongo(t, "pymongo/crud.py", shared.cluster.RouterURI(0), shared.cluster.RouterURI(1), newDB(t)))
	require.Contains(t, out, "crud done")
}
