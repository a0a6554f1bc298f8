package compat

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/cluster"
)

// pidList is the processes that a cluster.json names, and their children.
type pidList struct {
	named    []int
	children []int
}

// leftovers notes what runs now, to look later whether it has ended.
func leftovers() (pidList, error) {
	m, err := manifest()
	if err != nil {
		return pidList{}, err
	}

	var l pidList
	l.named = append(l.named, m.Catalog.PID)

	for _, s := range m.Shards {
		for _, member := range s.Members {
			l.named = append(l.named, member.PID)
		}
	}

	for _, r := range m.Routers {
		l.named = append(l.named, r.PID)
	}

	for _, pid := range l.named {
		l.children = append(l.children, childrenOf(pid)...)
	}

	return l, nil
}

// manifest reads cluster.json.
func manifest() (cluster.Manifest, error) {
	var m cluster.Manifest

	path := filepath.Join(shared.cluster.Dir(), "cluster.json")

	text, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}

	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm() != 0o600 {
		err = fmt.Errorf("%s has mode %o: it holds passwords", path, info.Mode().Perm())
	}

	return m, errors.Join(err, json.Unmarshal(text, &m))
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) []int {
	var pids []int

	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // ended just now
		}

		for f := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}

	return pids
}

// check reports who still runs, or has a folder of the cluster in its command line.
func (l pidList) check(dir string) error {
	limit := time.Now().Add(5 * time.Second)

	for {
		var left []string

		for _, pid := range append(append([]int(nil), l.named...), l.children...) {
			if alive(pid) {
				left = append(left, strconv.Itoa(pid))
			}
		}

		left = append(left, mentioning(dir)...)

		if len(left) == 0 {
			break
		}

		if time.Now().After(limit) {
			return fmt.Errorf("still running after the cluster was closed: %s", strings.Join(left, ", "))
		}

		time.Sleep(50 * time.Millisecond)
	}

	if _, err := os.Stat(dir); err == nil {
		return fmt.Errorf("the temporary folder %s is still there", dir)
	}

	return nil
}

// mentioning lists processes that have dir in their command line.
func mentioning(dir string) []string {
	var found []string

	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(text), dir) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}

	return found
}

// TestManifestNamesWhatRuns also proves that the look at the end would see a process that is left.
func TestManifestNamesWhatRuns(t *testing.T) {
	m, err := manifest()
	require.NoError(t, err)
	require.Len(t, m.Shards, shardCount)
	require.Len(t, m.Routers, routerCount)

	l, err := leftovers()
	require.NoError(t, err)
	require.Len(t, l.named, 1+shardCount+routerCount)
	require.NotEmpty(t, l.children, "PostgreSQL has children")

	for _, pid := range l.named {
		require.True(t, alive(pid), "process %d of cluster.json", pid)
	}

	require.NotEmpty(t, mentioning(shared.cluster.Dir()))
	require.False(t, alive(1<<22+1))
}
