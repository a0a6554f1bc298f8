package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// tempPrefix begins the names of temporary folders.
	tempPrefix = "shardgate-dev-"
	// leftoverWait is how long processes of a cluster that was killed may take to end.
	leftoverWait = 15 * time.Second
	// sweepAge keeps a folder that is just being made from being swept.
	sweepAge = time.Minute
)

// errLocked means that another process uses a folder.
var errLocked = errors.New("locked")

// folder is a cluster's folder, locked against other processes.
type folder struct {
	path string
	temp bool     // removed when closed
	lock *os.File // the kernel drops the lock when this process dies
}

// openFolder makes and locks a cluster's folder; path "" makes a temporary one.
func openFolder(path string) (*folder, error) {
	f := &folder{temp: path == ""}

	// PostgreSQL runs as another user than root and passes through here.
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711
	}

	if f.temp {
		sweep()

		dir, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return nil, err
		}

		path = dir

		if err := os.Chmod(dir, mode); err != nil {
			return nil, err
		}
	}

	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(path, mode); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}

	f.path = path

	f.lock, err = tryLock(filepath.Join(path, "lock"))
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%s is in use by another shardgate dev", path)
	}

	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}

	return f, nil
}

// in returns the path of something in the folder.
func (f *folder) in(name ...string) string {
	return filepath.Join(append([]string{f.path}, name...)...)
}

// close gives the folder back, and removes it if it is temporary.
func (f *folder) close() error {
	var err error
	if f.temp {
		err = os.RemoveAll(f.path)
	}

	return errors.Join(err, f.lock.Close())
}

// tryLock takes a lock file at once or fails with errLocked.
func tryLock(path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}

	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return lock, nil
	}

	_ = lock.Close()

	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}

	return nil, err
}

// sweep removes temporary folders of clusters that were killed.
func sweep() {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*", "lock"))
	if err != nil {
		return
	}

	for _, name := range locks {
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < sweepAge {
			continue
		}

		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || int(owner.Uid) != os.Geteuid() {
			continue
		}

		if lock, err := tryLock(name); err == nil {
			_ = os.RemoveAll(filepath.Dir(name))
			_ = lock.Close()
		}
	}
}

// awaitLeftovers waits until the processes of a cluster that was killed a moment ago are gone.
func (f *folder) awaitLeftovers(ctx context.Context) error {
	text, err := os.ReadFile(f.in(manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	m := Manifest{}
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%s: %w", f.in(manifestName), err)
	}

	ctx, cancel := context.WithTimeout(ctx, leftoverWait)
	defer cancel()

	for _, pid := range m.pids() {
		err := poll(ctx, func(context.Context) error {
			if f.uses(pid) {
				return fmt.Errorf("process %d of an earlier run still uses %s", pid, f.path)
			}

			return nil
		})
		if err != nil {
			return err
		}
	}

	return os.Remove(f.in(manifestName))
}

// uses reports whether a process was started for this folder, by its command line.
func (f *folder) uses(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))

	return err == nil && strings.Contains(string(line), f.path+"/")
}
