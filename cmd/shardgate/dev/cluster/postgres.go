package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

const (
	postgresUser     = "shardgate"
	postgresDatabase = "shardgate"
	// probeLimit bounds one look at whether a program serves.
	probeLimit = 5 * time.Second
)

// newPostgres returns the node of the catalog, with its data folder made if the cluster is new.
func (c *Cluster) newPostgres(ctx context.Context) error {
	major, err := dataMajor(c.folder.in("postgres"))
	if err != nil {
		return err
	}

	programs, err := c.opts.Parts.Postgres(ctx, major)
	if err != nil {
		return err
	}

	runAs, err := postgresRunsAs(c.folder.path)
	if err != nil {
		return err
	}

	if major == 0 {
		c.opts.Progress(fmt.Sprintf("making the catalog's database with PostgreSQL %d (%s)", programs.Major, programs.Bin))

		if err := c.initPostgres(ctx, programs, runAs); err != nil {
			return err
		}
	}

	if err := c.removeStalePID(ctx); err != nil {
		return err
	}

	n := c.postgres
	n.command = func(port int) (proc.Spec, error) { return c.postgresSpec(programs, runAs, port), nil }

	return nil
}

// dataMajor reads which version made a data folder, 0 if there is none.
func dataMajor(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}

	if err != nil {
		return 0, err
	}

	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// postgresRunsAs returns whose credentials PostgreSQL gets: its programs refuse to run as root.
func postgresRunsAs(dir string) (*proc.User, error) {
	if os.Geteuid() != 0 {
		return nil, nil // this process's own user
	}

	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}

		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)

		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}

		return &proc.User{Name: name, UID: uint32(uid), GID: uint32(gid), Traverse: !proc.OpenToOthers(dir)}, nil
	}

	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
}

// initPostgres makes the data folder under another name and renames it when it is whole.
func (c *Cluster) initPostgres(ctx context.Context, programs parts.Postgres, runAs *proc.User) error {
	partial, password := c.folder.in("postgres.new"), c.folder.in("postgres.password")

	if err := os.RemoveAll(partial); err != nil {
		return err
	}

	if err := os.Mkdir(partial, 0o700); err != nil {
		return err
	}

	if err := os.WriteFile(password, []byte(c.state.Password), 0o600); err != nil {
		return err
	}
	defer os.Remove(password)

	if runAs != nil {
		for _, path := range []string{partial, password} {
			if err := os.Chown(path, int(runAs.UID), int(runAs.GID)); err != nil {
				return err
			}
		}
	}

	log := c.folder.in("initdb.log")

	err := c.group.Run(ctx, proc.Spec{
		Name: "initdb",
		Path: filepath.Join(programs.Bin, "initdb"),
		Args: []string{
			"--pgdata=" + partial, "--username=" + postgresUser, "--pwfile=" + password,
			"--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions",
		},
		Env: postgresEnv(), Dir: "/", Log: log, User: runAs,
	})
	if err != nil {
		return fmt.Errorf("initdb: %w, see %s:\n%s", err, log, proc.Tail(log, tailBytes))
	}

	return os.Rename(partial, c.folder.in("postgres"))
}

// postgresEnv keeps the user's own settings away from PostgreSQL.
func postgresEnv() []string {
	return []string{"HOME=/", "LC_ALL=C", "PGDATA=", "PGOPTIONS="}
}

// removeStalePID removes the process id that a killed PostgreSQL left behind: the number may be another program's by now.
func (c *Cluster) removeStalePID(ctx context.Context) error {
	file := c.folder.in("postgres", "postmaster.pid")

	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	first, _, _ := strings.Cut(string(text), "\n")

	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}

	ctx, cancel := context.WithTimeout(ctx, leftoverWait)
	defer cancel()

	err = poll(ctx, func(context.Context) error {
		if c.folder.uses(pid) {
			return fmt.Errorf("PostgreSQL of an earlier run, process %d, still uses %s", pid, c.folder.path)
		}

		return nil
	})
	if err != nil {
		return err
	}

	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	return nil
}

// postgresSpec is how PostgreSQL is started.
func (c *Cluster) postgresSpec(programs parts.Postgres, runAs *proc.User, port int) proc.Spec {
	args := []string{"-D", c.folder.in("postgres"), "-p", strconv.Itoa(port)}
	for _, setting := range []string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=32MB", "max_connections=200",
		"logging_collector=off", "log_destination=stderr", "log_line_prefix=%m [%p] ",
	} {
		args = append(args, "-c", setting)
	}

	return proc.Spec{
		Name: c.postgres.name,
		Path: filepath.Join(programs.Bin, "postgres"),
		Args: append(args, c.opts.PostgresArgs...),
		Env:  postgresEnv(), Dir: "/", Log: c.postgres.log, User: runAs,
		StopSignal: syscall.SIGINT, // closes sessions instead of waiting for them
		// Its workers lead groups and sessions of their own: only PostgreSQL can end them all, and this is how it is told to.
		DeathSignal: syscall.SIGQUIT,
	}
}

// dsn is the catalog's address with another database.
func (c *Cluster) dsn(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(postgresUser, c.state.Password),
		Host: c.postgres.Addr(), Path: "/" + database, RawQuery: "sslmode=disable",
	}

	return u.String()
}

// CatalogDSN returns the address of the catalog's database, with the password.
func (c *Cluster) CatalogDSN() string {
	return c.dsn(postgresDatabase)
}

// probePostgres makes the catalog's database if needed and looks whether it answers.
func (c *Cluster) probePostgres(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()

	if err := dial(ctx, c.postgres.Addr()); err != nil {
		return err
	}

	conn, err := pgx.Connect(ctx, c.dsn("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)

	var exists bool

	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", postgresDatabase).Scan(&exists)
	if err != nil || exists {
		return err
	}

	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{postgresDatabase}.Sanitize())

	return err
}

// dial reports whether something listens.
func dial(ctx context.Context, addr string) error {
	var d net.Dialer

	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}

	return conn.Close()
}
