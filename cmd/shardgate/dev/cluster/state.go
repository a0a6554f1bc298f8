package cluster

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFormat is raised when a folder of an older program cannot be started by a newer one.
const stateFormat = 1

// state is what a cluster's folder remembers about how it was made: state.json.
type state struct {
	Format   int     `json:"format"`
	Key      string  `json:"key"`      // of the keyfile, which is also the password of __system
	Password string  `json:"password"` // of PostgreSQL's user
	Members  int     `json:"members"`  // of each shard
	Shards   [][]int `json:"shards"`   // ports of the members; replica set configurations hold them, so they never change
	Routers  []int   `json:"routers"`  // ports; the catalog waits for a router that was killed until it is back under its name
}

// readState returns what the folder remembers, or a new state for an empty folder.
func readState(dir string) (*state, error) {
	text, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		// Hexadecimal digits are what a keyfile may hold and what no URI needs to escape.
		return &state{Format: stateFormat, Key: randomHex(32), Password: randomHex(16)}, nil
	}

	if err != nil {
		return nil, err
	}

	s := &state{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "state.json"), err)
	}

	if s.Format != stateFormat {
		return nil, fmt.Errorf("%s was made by another version of shardgate (format %d, not %d): start with an empty folder", dir, s.Format, stateFormat)
	}

	return s, nil
}

// write saves the state.
func (s *state) write(dir string) error {
	return writeJSON(filepath.Join(dir, "state.json"), s)
}

// grow fits the state to the options: shards may be added to a folder, nothing else changes.
func (s *state) grow(o Options) error {
	if s.Members == 0 {
		s.Members = cmp.Or(o.Members, DefaultMembers)
	}

	if o.Members != 0 && o.Members != s.Members {
		return fmt.Errorf("the data folder holds shards of %d members, not %d: leave the number out or use another folder", s.Members, o.Members)
	}

	want := cmp.Or(o.Shards, len(s.Shards), DefaultShards)

	if want < len(s.Shards) {
		return fmt.Errorf("the data folder holds %d shards, not %d: leave the number out or use another folder", len(s.Shards), want)
	}

	for len(s.Shards) < want {
		s.Shards = append(s.Shards, make([]int, s.Members))
	}

	return nil
}

// randomHex returns n random bytes as hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails

	return hex.EncodeToString(b)
}

// writeJSON writes v to a file that only its owner reads, whole or not at all.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}

	return writeFile(path, append(text, '\n'))
}

// writeFile writes a file that only its owner reads, whole or not at all.
func writeFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())

	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}

	return os.Rename(f.Name(), path)
}
