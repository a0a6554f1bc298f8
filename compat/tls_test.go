package compat

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// TestTLS: clients reach a router through TLS alone, and check whom they reach.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	a := clustertest.NewAuthority(t)
	cert, key := a.Issue(t, "router")
	ca := filepath.Join(dir, "ca.pem")

	for name, content := range map[string][]byte{"cert.pem": cert, "key.pem": key, "ca.pem": a.PEM()} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}

	db := newDB(t)
	addr, _, stop := aside(t, "tls:1", "SHARDGATE_TLS_CERTFILE="+filepath.Join(dir, "cert.pem"), "SHARDGATE_TLS_KEYFILE="+filepath.Join(dir, "key.pem"))
	uri := "mongodb://" + addr + "/?directConnection=true"

	client, err := mongo.Connect(options.Client().ApplyURI(uri + "&tls=true&tlsCAFile=" + ca))
	require.NoError(t, err)

	defer func() { require.NoError(t, client.Disconnect(context.WithoutCancel(t.Context()))) }()

	_, err = client.Database(db).Collection("c").InsertOne(opContext(t, opLimit), bson.D{{"_id", 1}})
	require.NoError(t, err)

	require.Contains(t, output(t, clustertest.PyMongo(t, "pymongo/tls.py", uri, ca, db)), "tls done")
	require.Contains(t, mongosh(t, "--quiet", "--norc", uri, "--tls", "--tlsCAFile", ca, "--eval", "db.getSiblingDB('"+db+"').c.countDocuments()"), "1")

	plain, err := mongo.Connect(options.Client().ApplyURI(uri + "&serverSelectionTimeoutMS=1500"))
	require.NoError(t, err)

	defer func() { require.NoError(t, plain.Disconnect(context.WithoutCancel(t.Context()))) }()

	require.Error(t, plain.Ping(opContext(t, opLimit), nil))
	stop()
}
