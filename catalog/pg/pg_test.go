package pg_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/catalogtest"
	"github.com/shardgate/shardgate/catalog/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPostgres shares one server; the subtests that kill it come last.
func TestPostgres(t *testing.T) {
	srv := startServer(t)
	t.Run("Store", func(t *testing.T) {
		catalogtest.Run(t, func(t *testing.T) catalog.Store {
			_, dsn := srv.database(t)
			return open(t, pg.Options{DSN: dsn})
		})
	})
	for name, run := range map[string]func(t *testing.T, srv *server){
		"Timeline": testTimeline, "Silent": testSilent, "TwoStores": testTwoStores,
		"Migrations": testMigrations, "NewerSchema": testNewerSchema, "SchemaGiven": testSchemaGiven,
		"MigrationWait": testMigrationWait, "StoppedRouter": testStoppedRouter, "Blocked": testBlocked,
		"ReadOnly": testReadOnly, "Forgets": testForgets, "OldRouters": testOldRouters,
	} {
		t.Run(name, func(t *testing.T) { run(t, srv) })
	}
	t.Run("Terminated", func(t *testing.T) { testTerminated(t, srv) })
	t.Run("Killed", func(t *testing.T) { testKilled(t, srv) })
	t.Run("Frozen", func(t *testing.T) { testFrozen(t, srv) })
}

func open(t testing.TB, opts pg.Options) *pg.Store {
	t.Helper()
	s, err := pg.New(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func testTimeline(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn})
	d, err := s.Load(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, int64(1), d.Timeline)

	// Where it may not be asked, loading works all the same.
	srv.exec(t, name, "REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC")
	d, err = s.Load(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, d.Timeline)
	require.Len(t, d.Settings, 1)
}

func testSilent(t *testing.T, srv *server) {
	_, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn, SilenceLimit: 300 * time.Millisecond})
	_, _, err := s.Register(t.Context(), catalog.Router{Name: "a:1", Incarnation: "a1"})
	require.NoError(t, err)
	silent := func() bool {
		rs, err := s.Routers(t.Context())
		require.NoError(t, err)
		return rs[0].Silent
	}
	require.False(t, silent())
	eventually(t, silent)
	require.NoError(t, s.Heartbeat(t.Context(), "a1", catalog.Ack{}, nil))
	require.False(t, silent())
}

// testTwoStores: two routers see each other's work, and are told of it.
func testTwoStores(t *testing.T, srv *server) {
	_, dsn := srv.database(t)
	a, b := open(t, pg.Options{DSN: dsn}), open(t, pg.Options{DSN: dsn})
	w, err := b.Watch(t.Context())
	require.NoError(t, err)
	hint(t, w)
	v, err := a.Apply(t.Context(), catalog.Change{Shards: []catalog.Shard{{ID: "s0", Host: "h"}}})
	require.NoError(t, err)
	hint(t, w)
	d, err := b.Load(t.Context(), v-1)
	require.NoError(t, err)
	require.Equal(t, v, d.Version)
	require.Len(t, d.Shards, 1)
	_, _, err = a.Register(t.Context(), catalog.Router{Name: "a:1", Incarnation: "a1"})
	require.NoError(t, err)
	_, err = a.Acquire(t.Context(), "db", "a1", "why")
	require.NoError(t, err)
	_, err = b.Acquire(t.Context(), "db.c", "a1", "why")
	require.ErrorIs(t, err, catalog.ErrLocked)
}

// testMigrations: routers that start together end up with one schema and one
// cluster id.
func testMigrations(t *testing.T, srv *server) {
	_, dsn := srv.database(t)
	var wg sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids {
		wg.Go(func() {
			s, err := pg.New(t.Context(), pg.Options{DSN: dsn})
			if err != nil {
				ids[i] = err.Error()
				return
			}
			defer s.Close()
			d, err := s.Load(t.Context(), 0)
			if err != nil {
				ids[i] = err.Error()
				return
			}
			ids[i] = d.Settings[0].Doc.String()
		})
	}
	wg.Wait()
	require.Contains(t, ids[0], catalog.ClusterIDSetting)
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
}

func testNewerSchema(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	open(t, pg.Options{DSN: dsn})
	srv.exec(t, name, "INSERT INTO shardgate.schema_version (version_id, is_applied) VALUES (999999, true)")
	_, err := pg.New(t.Context(), pg.Options{DSN: dsn})
	require.ErrorIs(t, err, catalog.ErrSchema)
	require.ErrorContains(t, err, "999999")
}

// testSchemaGiven: a role that may not create schemas is content with one that is
// there.
func testSchemaGiven(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	srv.exec(t, "postgres", "ALTER DATABASE "+name+" OWNER TO super")
	srv.exec(t, name, "CREATE SCHEMA shardgate AUTHORIZATION app")
	open(t, pg.Options{DSN: dsn})
	refused, dsn := srv.database(t)
	srv.exec(t, "postgres", "ALTER DATABASE "+refused+" OWNER TO super")
	_, err := pg.New(t.Context(), pg.Options{DSN: dsn})
	require.Error(t, err)
	require.NotErrorIs(t, err, catalog.ErrUnavailable)
}

func testMigrationWait(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	open(t, pg.Options{DSN: dsn})
	c, err := pgx.Connect(t.Context(), srv.dsn("super", superPassword, name))
	require.NoError(t, err)
	defer c.Close(t.Context())
	_, err = c.Exec(t.Context(), "SELECT pg_advisory_lock($1)", pg.LockMigrations)
	require.NoError(t, err)
	_, err = pg.New(t.Context(), pg.Options{DSN: dsn, MigrationWait: time.Second})
	require.ErrorIs(t, err, catalog.ErrUnavailable)
}

// holdVersion has s stop in the middle of a change, with the version row locked, until release is called or the test ends;
// done then has its error.
func holdVersion(t *testing.T, s *pg.Store) (release func(), done <-chan error) {
	t.Helper()
	entered, released, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // before s is closed, which waits for its transactions
	go func() { ended <- s.HoldVersion(context.Background(), entered, released) }()
	select {
	case <-entered:
	case err := <-ended:
		require.NoError(t, err, "the version row was not locked")
	}
	return release, ended
}

// testStoppedRouter: a router that stops with the version row locked is thrown
// out by the server, and the others go on.
func testStoppedRouter(t *testing.T, srv *server) {
	_, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn, Timeout: 30 * time.Second})
	stopped := open(t, pg.Options{DSN: dsn})
	release, done := holdVersion(t, stopped)
	began := time.Now()
	_, err := s.Apply(t.Context(), catalog.Change{})
	require.NoError(t, err)
	require.Greater(t, time.Since(began), time.Second)
	release()
	require.ErrorIs(t, <-done, catalog.ErrUnavailable)
	_, err = stopped.Apply(t.Context(), catalog.Change{})
	require.NoError(t, err)
}

// testBlocked: who must wait for the version row waits no longer than its
// context, or the Store's own limit.
func testBlocked(t *testing.T, srv *server) {
	_, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn, Timeout: time.Second})
	other := open(t, pg.Options{DSN: dsn})
	release, done := holdVersion(t, other)
	_, err := s.Apply(t.Context(), catalog.Change{})
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = s.Apply(ctx, catalog.Change{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, catalog.ErrUnavailable)
	release()
	require.NoError(t, <-done)
	d, err := s.Load(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, catalog.Version(1), d.Version)
}

// testForgets: deletions and log entries are not kept for ever, and who asks for
// more than is known gets everything.
func testForgets(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn})
	s.SetKeep(3, 4)
	drop := func(id string) catalog.Version {
		_, err := s.Apply(t.Context(), catalog.Change{Shards: []catalog.Shard{{ID: id, Host: "h"}}})
		require.NoError(t, err)
		v, err := s.Apply(t.Context(), catalog.Change{
			DropShards: []string{id}, Log: []catalog.LogEntry{{ID: id}, {ID: id, Action: true}},
		})
		require.NoError(t, err)
		return v
	}
	v := drop("a")
	d, err := s.Load(t.Context(), v-1)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, d.ShardsGone)
	drop("b")
	last := drop("c")
	require.Equal(t, "b,c", srv.exec(t, name, "SELECT name FROM shardgate.tombstones ORDER BY name"))
	d, err = s.Load(t.Context(), last-3)
	require.NoError(t, err)
	require.False(t, d.Full)
	require.Equal(t, []string{"b", "c"}, d.ShardsGone)
	d, err = s.Load(t.Context(), last-4)
	require.NoError(t, err)
	require.True(t, d.Full)
	require.Empty(t, d.ShardsGone)
	require.Len(t, d.Settings, 1)
	for _, action := range []bool{false, true} {
		log, err := s.Log(t.Context(), action, 10)
		require.NoError(t, err)
		require.Len(t, log, 2)
		require.Equal(t, "c", log[1].ID)
	}
}

// testReadOnly: a server that takes no writes (a standby, a primary that was
// replaced) is as good as away.
func testReadOnly(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn})
	srv.exec(t, "postgres", "ALTER DATABASE "+name+" SET default_transaction_read_only = on")
	_, err := pg.New(t.Context(), pg.Options{DSN: dsn})
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	srv.exec(t, "postgres", "ALTER DATABASE "+name+" RESET default_transaction_read_only")
	_, err = s.Apply(t.Context(), catalog.Change{})
	require.NoError(t, err)
}

// testTerminated: connections that died in the pool are passed over.
func testTerminated(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn})
	w, err := s.Watch(t.Context())
	require.NoError(t, err)
	hint(t, w)
	for range 3 {
		var wg sync.WaitGroup
		for range 6 { // fill the pool
			wg.Go(func() { _, _ = s.Load(t.Context(), 0) })
		}
		wg.Wait()
		srv.exec(t, "postgres", `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1`, name)
		_, err = s.Apply(t.Context(), catalog.Change{})
		require.NoError(t, err)
		hint(t, w)
	}
}

func testKilled(t *testing.T, srv *server) {
	_, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn})
	w, err := s.Watch(t.Context())
	require.NoError(t, err)
	hint(t, w)
	v, err := s.Apply(t.Context(), catalog.Change{Shards: []catalog.Shard{{ID: "s0", Host: "h"}}})
	require.NoError(t, err)
	hint(t, w)
	for range 2 {
		srv.kill(t)
		_, err = s.Load(t.Context(), 0)
		require.ErrorIs(t, err, catalog.ErrUnavailable)
		require.NotContains(t, err.Error(), appPassword)
		_, err = s.Apply(t.Context(), catalog.Change{})
		require.ErrorIs(t, err, catalog.ErrUnavailable)
		_, err = s.Acquire(t.Context(), "db", "a1", "")
		require.ErrorIs(t, err, catalog.ErrUnavailable)
		_, err = pg.New(t.Context(), pg.Options{DSN: dsn})
		require.ErrorIs(t, err, catalog.ErrUnavailable)
		require.NotContains(t, err.Error(), appPassword)
		srv.start(t)
		hint(t, w) // the watch is established again
		d, err := s.Load(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, v, d.Version)
		require.Len(t, d.Shards, 1)
		v, err = s.Apply(t.Context(), catalog.Change{})
		require.NoError(t, err)
		hint(t, w)
	}
}

// testFrozen: connections that stay open and answer nothing.
func testFrozen(t *testing.T, srv *server) {
	name, dsn := srv.database(t)
	s := open(t, pg.Options{DSN: dsn, Timeout: 500 * time.Millisecond})
	_, err := s.Load(t.Context(), 0)
	require.NoError(t, err)
	var pids []int
	for _, f := range strings.Split(srv.exec(t, "postgres", `SELECT pid FROM pg_stat_activity WHERE datname = $1`, name), ",") {
		pid, err := strconv.Atoi(f)
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	signal := func(sig syscall.Signal) {
		for _, pid := range pids {
			require.NoError(t, syscall.Kill(pid, sig))
		}
	}
	signal(syscall.SIGSTOP)
	_, err = s.Load(t.Context(), 0)
	signal(syscall.SIGCONT)
	require.ErrorIs(t, err, catalog.ErrUnavailable)
	_, err = s.Apply(t.Context(), catalog.Change{})
	require.NoError(t, err)
}

// TestPasswordNotShown: no error of New shows the password, whatever is wrong
// with the connection string.
func TestPasswordNotShown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	for _, dsn := range []string{
		"postgres://u:s3cret@" + addr + "/db",
		"postgres://u:s3cret@h:port/db",
		"postgres://u:s3cret%zz@h/db",
		"postgres://u:s3cret@h/db?sslmode=maybe",
		"host=h password=s3cret port=x",
		"password='s3cret",
	} {
		_, err := pg.New(t.Context(), pg.Options{DSN: dsn})
		require.Error(t, err, dsn)
		require.NotContains(t, err.Error(), "s3cret")
		_, err = pg.New(t.Context(), pg.Options{DSN: "postgres://u@" + addr + "/db", DirectDSN: dsn})
		require.Error(t, err, dsn)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

func hint(t *testing.T, w <-chan struct{}) {
	t.Helper()
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	select {
	case _, ok := <-w:
		require.True(t, ok)
	case <-late.C:
		require.FailNow(t, "no hint came")
	}
}
