package parts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockPoll is how often a lock that another process holds is tried again.
const lockPoll = 100 * time.Millisecond

// build fills an empty folder.
type build func(ctx context.Context, dir string) error

// ensure returns the folder called name below dir, which build fills if it is not there yet. One process builds at a time.
func ensure(ctx context.Context, dir, name string, fill build) (string, error) {
	final := filepath.Join(dir, name)
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}

	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}

	unlock, err := lockFile(ctx, filepath.Join(dir, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	if _, err := os.Stat(final); err == nil {
		return final, nil
	}

	// Whoever left these behind no longer holds the lock.
	stale, err := filepath.Glob(filepath.Join(dir, name+".partial-*"))
	if err != nil {
		return "", err
	}

	for _, s := range stale {
		if err := os.RemoveAll(s); err != nil {
			return "", fmt.Errorf("cache folder: %w", err)
		}
	}

	return final, fillAndRename(ctx, dir, name, fill)
}

// fillAndRename runs fill in a new folder, which gets its name only when it is whole.
func fillAndRename(ctx context.Context, dir, name string, fill build) error {
	partial, err := os.MkdirTemp(dir, name+".partial-")
	if err != nil {
		return fmt.Errorf("cache folder: %w", err)
	}
	defer os.RemoveAll(partial)

	if err := os.Chmod(partial, 0o755); err != nil {
		return err
	}

	if err := fill(ctx, partial); err != nil {
		return err
	}

	return os.Rename(partial, filepath.Join(dir, name))
}

// lockFile takes an exclusive lock that the kernel drops when this process dies, and returns the function that gives it back.
func lockFile(ctx context.Context, name string) (func(), error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}

	tick := time.NewTicker(lockPoll)
	defer tick.Stop()

	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}

		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("waiting for another process that fetches %s: %w", name, ctx.Err())
		}
	}
}

// checkSum reports an error unless the file has the SHA-256 sum want.
func checkSum(name, want string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()

	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}

	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s has sha256 %s, pinned is %s", filepath.Base(name), got, want)
	}

	return nil
}
