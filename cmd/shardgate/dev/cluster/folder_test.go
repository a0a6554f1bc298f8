package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTemporaryFolders(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())

	// Two clusters an hour old: one was killed, the other still runs. A third is just being made.
	used, err := openFolder("")
	require.NoError(t, err)

	killed, err := openFolder("")
	require.NoError(t, err)
	require.NoError(t, killed.lock.Close())

	young, err := openFolder("")
	require.NoError(t, err)
	require.NoError(t, young.lock.Close())

	hourAgo := time.Now().Add(-time.Hour)
	for _, f := range []*folder{used, killed} {
		require.NoError(t, os.Chtimes(f.in("lock"), hourAgo, hourAgo))
	}

	another, err := openFolder("")
	require.NoError(t, err)
	require.NoDirExists(t, killed.path)
	require.DirExists(t, used.path)
	require.DirExists(t, young.path)

	require.NoError(t, another.close())
	require.NoDirExists(t, another.path)
	require.NoError(t, used.close())
}

func TestKeptFolderIsNotRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")

	f, err := openFolder(dir)
	require.NoError(t, err)

	_, err = openFolder(dir)
	require.ErrorContains(t, err, "in use")

	require.NoError(t, f.close())
	require.DirExists(t, dir)
}

func TestStateGrows(t *testing.T) {
	dir := t.TempDir()

	s, err := readState(dir)
	require.NoError(t, err)
	require.NoError(t, s.grow(Options{}))
	require.Len(t, s.Shards, DefaultShards)
	require.NoError(t, s.write(dir))

	again, err := readState(dir)
	require.NoError(t, err)
	require.Equal(t, s, again)

	require.NoError(t, again.grow(Options{Shards: 5, Members: 1}))
	require.Len(t, again.Shards, 5)
	require.ErrorContains(t, again.grow(Options{Shards: 4}), "holds 5 shards, not 4")
	require.ErrorContains(t, again.grow(Options{Members: 3}), "of 1 members, not 3")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"format": 99}`), 0o600))

	_, err = readState(dir)
	require.ErrorContains(t, err, "another version")
}

func TestOptionsThatCannotBe(t *testing.T) {
	for want, o := range map[string]Options{
		"shards":  {Shards: -1},
		"members": {Members: 8},
		"routers": {Routers: 101},
		"port":    {Port: 70000},
		"program": {Routers: 1},
	} {
		require.ErrorContains(t, o.check(), want)
	}
}
