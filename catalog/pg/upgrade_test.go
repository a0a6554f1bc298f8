package pg_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/pg"
)

// testOldRouters: while a cluster is upgraded, routers of before there were versions of
// chunks write without them, and rows of that time have none. New routers miss nothing.
func testOldRouters(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn})
	chunk := func(n, from, to byte) catalog.Chunk {
		return catalog.Chunk{ID: bson.ObjectID{11: n}, MinKey: []byte{from}, MaxKey: []byte{to}, Shard: "s0"}
	}
	_, err := s.Apply(t.Context(), catalog.Change{
		Shards:    []catalog.Shard{{ID: "s0", Host: "h"}},
		Databases: []catalog.Database{{Name: "db", Primary: "s0"}},
		Put: []catalog.CollectionChunks{{
			Collection: catalog.Collection{NS: "db.c", Kind: catalog.KindSharded, State: catalog.StateOpen, Key: bson.Raw{5, 0, 0, 0, 0}},
			Chunks:     []catalog.Chunk{chunk(1, 1, 10), chunk(2, 10, 20)},
		}},
	})
	require.NoError(t, err)
	srv.exec(t, name, "UPDATE shardgate.chunks SET version = 0")
	srv.exec(t, name, "UPDATE shardgate.collections SET layout = 0")
	load := func(after catalog.Version) *catalog.Delta {
		d, err := s.Load(t.Context(), after)
		require.NoError(t, err)
		require.Len(t, d.Collections, 1)
		return d
	}
	d := load(0)
	require.False(t, d.Collections[0].Part)
	require.Len(t, d.Collections[0].Chunks, 2)

	const insert = `INSERT INTO shardgate.chunks (ns, id, min_key, max_key, shard, last_mod, on_shard_since, history_shards, history_times, jumbo)
		VALUES ('db.c', '\x000000000000000000000003', '\x0a', '\x14', 's0', 0, 0, '{}', '{}', false)`
	old := func(statements ...string) {
		all := "BEGIN; SELECT version FROM shardgate.catalog FOR UPDATE;"
		for _, st := range statements {
			all += st + ";"
		}
		srv.exec(t, name, all+"UPDATE shardgate.catalog SET version = version + 1; COMMIT", pgx.QueryExecModeSimpleProtocol)
	}
	next := `version = (SELECT version + 1 FROM shardgate.catalog)`
	old("UPDATE shardgate.collections SET "+next+" WHERE ns = 'db.c'",
		`DELETE FROM shardgate.chunks WHERE id = '\x000000000000000000000002'`, insert)
	part := load(d.Version)
	require.True(t, part.Collections[0].Part)
	require.Len(t, part.Collections[0].Chunks, 1)
	require.Equal(t, bson.ObjectID{11: 3}, part.Collections[0].Chunks[0].ID)

	// One that puts all chunks anew sends all of them, and one that makes the collection
	// anew is seen to.
	old("UPDATE shardgate.collections SET "+next+" WHERE ns = 'db.c'", "DELETE FROM shardgate.chunks WHERE ns = 'db.c'",
		insert, `UPDATE shardgate.chunks SET min_key = '\x01' WHERE ns = 'db.c'`)
	require.Len(t, load(part.Version).Collections[0].Chunks, 1)
	old("DELETE FROM shardgate.collections WHERE ns = 'db.c'",
		`INSERT INTO shardgate.collections (ns, db, uuid, kind, state, is_unique, pinned, move_group, epoch, cluster_time, last_mod, no_balance, migrations, version)
			SELECT 'db.c', 'db', '00000000-0000-0000-0000-000000000001', 'sharded', 'open', false, false, '', '\x00', 0, now(), false, true, version + 1 FROM shardgate.catalog`, insert)
	again := load(part.Version)
	require.False(t, again.Collections[0].Part)
	require.Len(t, again.Collections[0].Chunks, 1)
}
