package parts

import (
	"archive/zip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// write returns a build that writes one file.
func write(text string) build {
	return func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o644)
	}
}

func TestEnsureBuildsOnce(t *testing.T) {
	dir := t.TempDir()

	var (
		builds atomic.Int32
		all    sync.WaitGroup
	)

	for range 8 {
		all.Go(func() {
			got, err := ensure(t.Context(), dir, "part-1", func(ctx context.Context, dir string) error {
				builds.Add(1)
				return write("whole")(ctx, dir)
			})
			if err != nil || got != filepath.Join(dir, "part-1") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}

	all.Wait()
	require.EqualValues(t, 1, builds.Load())
}

func TestEnsureAbortedBuildLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	aborted := errors.New("aborted")

	_, err := ensure(t.Context(), dir, "part-1", func(ctx context.Context, dir string) error {
		return errors.Join(write("half")(ctx, dir), aborted)
	})
	require.ErrorIs(t, err, aborted)
	require.NoDirExists(t, filepath.Join(dir, "part-1"))

	// What a killed process left is removed.
	killed := filepath.Join(dir, "part-1.partial-123")
	require.NoError(t, os.Mkdir(killed, 0o755))

	got, err := ensure(t.Context(), dir, "part-1", write("whole"))
	require.NoError(t, err)
	require.NoDirExists(t, killed)
	require.FileExists(t, filepath.Join(got, "file"))
}

func TestEnsureWaitsForAnotherProcess(t *testing.T) {
	dir := t.TempDir()

	unlock, err := lockFile(t.Context(), filepath.Join(dir, "part-1.lock"))
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()

	_, err = ensure(ctx, dir, "part-1", write("whole"))
	require.ErrorIs(t, err, context.DeadlineExceeded)

	unlock()

	_, err = ensure(t.Context(), dir, "part-1", write("whole"))
	require.NoError(t, err)
}

func TestCheckSumAndUnzip(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "a.whl")

	f, err := os.Create(archive)
	require.NoError(t, err)

	z := zip.NewWriter(f)
	w, err := z.Create("bin/program")
	require.NoError(t, err)

	_, err = w.Write([]byte("#!/bin/sh\n"))
	require.NoError(t, err)
	require.NoError(t, errors.Join(z.Close(), f.Close()))

	require.ErrorContains(t, checkSum(archive, strings.Repeat("0", 64)), "pinned is 000")

	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, unzipMember(archive, "bin/program", program))

	info, err := os.Stat(program)
	require.NoError(t, err)
	require.EqualValues(t, 0o755, info.Mode().Perm())
	require.ErrorIs(t, unzipMember(archive, "bin/other", program), os.ErrNotExist)
}
