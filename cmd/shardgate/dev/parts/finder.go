package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// Environment variables that name programs.
const (
	EnvMongod   = "MONGOD"           // path of mongod
	EnvPostgres = "SHARDGATE_PG_BIN" // folder of PostgreSQL's programs, or Fetched
)

// Fetched as the value of [EnvPostgres] means: the pinned download, whatever the machine has.
const Fetched = "fetched"

// MissingError says which part is not to be had, why, and what a person can do.
type MissingError struct {
	Part string // what is missing
	Why  string // what stood in the way
	Hint string // how to get it
	Err  error  // the cause, may be nil
}

// Error implements error.
func (e *MissingError) Error() string {
	text := e.Part + " is missing: " + e.Why
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}

	return text + " (" + e.Hint + ")"
}

// Unwrap returns the cause.
func (e *MissingError) Unwrap() error {
	return e.Err
}

// Options of [New].
type Options struct {
	Dir      string            // cache folder, "" for the user's
	Postgres string            // as the environment variable SHARDGATE_PG_BIN, which it overrides
	Progress func(line string) // told before something slow begins, may be nil
}

// Finder finds and fetches programs. Its methods may be called from several goroutines and processes at once.
type Finder struct {
	dir      string
	mongod   string // from the environment
	postgres string // from the options or the environment
	progress func(string)
}

// New returns a Finder that reads the environment now and the machine when asked.
func New(o Options) (*Finder, error) {
	f := &Finder{
		dir:      o.Dir,
		mongod:   os.Getenv(EnvMongod),
		postgres: o.Postgres,
		progress: o.Progress,
	}

	if f.dir == "" {
		dir, err := DefaultDir()
		if err != nil {
			return nil, err
		}

		f.dir = dir
	}

	if f.postgres == "" {
		f.postgres = os.Getenv(EnvPostgres)
	}

	if f.progress == nil {
		f.progress = func(string) {}
	}

	return f, nil
}

// DefaultDir returns the user's cache folder for parts; it need not exist.
func DefaultDir() (string, error) {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no cache folder: set XDG_CACHE_HOME or HOME: %w", err)
		}

		base = filepath.Join(home, ".cache")
	}

	if !filepath.IsAbs(base) {
		return "", fmt.Errorf("XDG_CACHE_HOME is not an absolute path: %q", base)
	}

	return filepath.Join(base, "shardgate"), nil
}

// Dir returns the cache folder.
func (f *Finder) Dir() string {
	return f.dir
}

// output runs a short command and returns what it printed on standard output.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)

	var stderr bytes.Buffer
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		return "", withText(err, stderr.String())
	}

	return strings.TrimSpace(string(out)), nil
}

// fetch runs a long command in dir that ends when this process does; its output is shown only when it fails.
func fetch(ctx context.Context, dir string, env []string, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}

	logDir, err := os.MkdirTemp("", "shardgate-fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(logDir)

	log := filepath.Join(logDir, "log")
	g := proc.NewGroup()

	defer g.Close()

	err = g.Run(ctx, proc.Spec{Name: name, Path: path, Args: args, Env: env, Dir: dir, Log: log})

	return withText(err, proc.Tail(log, 2000))
}

// withText adds what a program said to how it ended.
func withText(err error, text string) error {
	var exit *exec.ExitError
	if text = strings.TrimSpace(text); errors.As(err, &exit) && text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}

	return err
}
