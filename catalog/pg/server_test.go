package pg_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const (
	superPassword = "super-secret"
	appPassword   = "app-secret"
)

// server is a PostgreSQL of the test's own.
type server struct {
	bin, dir string
	port     int
	cred     *syscall.Credential // nil: as ourselves
	cmd      *exec.Cmd
	done     <-chan struct{} // closed when cmd has ended
	dbs      atomic.Int64
}

// startServer makes a new PostgreSQL and starts it. PostgreSQL refuses root, so
// as root it runs as somebody else.
func startServer(t testing.TB) *server {
	t.Helper()
	s := &server{bin: findPostgres(t)}
	var err error
	s.dir, err = os.MkdirTemp("", "shardgate-pg-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(s.dir)) })
	if os.Getuid() == 0 {
		s.cred = unprivileged(t)
		require.NoError(t, os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)))
	}
	pw := filepath.Join(s.dir, "password")
	require.NoError(t, os.WriteFile(pw, []byte(superPassword), 0o644))
	out, err := s.command("initdb", "-D", s.data(), "-U", "super", "--pwfile="+pw,
		"--auth=scram-sha-256", "--encoding=UTF8", "--no-sync").CombinedOutput()
	require.NoError(t, err, string(out))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.port = l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	s.start(t)
	t.Cleanup(func() { s.kill(t) })
	s.exec(t, "postgres", "CREATE ROLE app LOGIN PASSWORD '"+appPassword+"'")
	return s
}

func findPostgres(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	require.NoError(t, err)
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1])
	}
	path, err := exec.LookPath("postgres")
	require.NoError(t, err, "PostgreSQL is needed")
	path, err = filepath.EvalSymlinks(path)
	require.NoError(t, err)
	return filepath.Dir(path)
}

func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	require.NoError(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	require.NoError(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: s.cred}
	return cmd
}

func (s *server) start(t testing.TB) {
	t.Helper()
	s.run(t)
	eventually(t, func() bool {
		select {
		case <-s.done: // a process of the former server was still there
			s.run(t)
		default:
		}
		c, err := pgx.Connect(t.Context(), s.dsn("super", superPassword, "postgres"))
		if err != nil {
			return false
		}
		return c.Close(t.Context()) == nil
	})
}

func (s *server) run(t testing.TB) {
	t.Helper()
	s.cmd = s.command("postgres", "-D", s.data(), "-k", s.dir, "-h", "127.0.0.1",
		"-p", strconv.Itoa(s.port), "-c", "fsync=off", "-c", "max_connections=50")
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	require.NoError(t, s.cmd.Start())
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() {
		defer close(done)
		_ = cmd.Wait() // says how it was killed
	}()
}

// kill ends the server as a crash would, with all its processes.
func (s *server) kill(t testing.TB) {
	t.Helper()
	pid := s.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	for _, f := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(f)
		require.NoError(t, err)
		_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended by itself
	}
	<-s.done
}

func (s *server) dsn(user, password, db string) string {
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/%s?sslmode=disable", user, password, s.port, db)
}

// database makes an empty database that the role "app", an ordinary user, owns.
func (s *server) database(t testing.TB) (name, dsn string) {
	t.Helper()
	name = fmt.Sprintf("db%d", s.dbs.Add(1))
	s.exec(t, "postgres", "CREATE DATABASE "+name+" OWNER app")
	return name, s.dsn("app", appPassword, name)
}

// exec runs a statement as the superuser and returns its first value, if any.
func (s *server) exec(t testing.TB, db, sql string, args ...any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, s.dsn("super", superPassword, db))
	require.NoError(t, err)
	defer c.Close(ctx)
	rows, err := c.Query(ctx, sql, args...)
	require.NoError(t, err)
	vals, err := pgx.CollectRows(rows, pgx.RowToMap)
	require.NoError(t, err)
	var out []string
	for _, row := range vals {
		for _, v := range row {
			out = append(out, fmt.Sprint(v))
		}
	}
	return strings.Join(out, ",")
}

// eventually waits for a condition that nothing announces.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			require.FailNow(t, "the condition did not come true")
		}
	}
}
