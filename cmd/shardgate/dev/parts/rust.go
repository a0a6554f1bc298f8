package parts

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// rustDriverFolder is named after the driver's version; changed when any of what is pinned does.
const rustDriverFolder = "rust-driver-3.9.1-1"

// rustFiles pins the Rust driver and everything it needs, with checksums that cargo verifies. The lines are left out that say where cargo has it
// from; see pinRust.
//
//go:embed rust/Cargo.toml.pinned rust/Cargo.lock.pinned
var rustFiles embed.FS

// HasRust reports whether this machine has cargo: without it, nobody misses the Rust driver.
func HasRust() bool {
	_, err := exec.LookPath("cargo")
	return err == nil
}

// RustDriver returns a folder with the pinned Rust driver and all it needs as compiled libraries, for rustc.
func (f *Finder) RustDriver(ctx context.Context) (string, error) {
	const hint = "install a recent Rust with cargo"

	// What one version of rustc has compiled no other can use.
	version, err := output(ctx, "rustc", "--version")
	if err != nil {
		return "", &MissingError{Part: "Rust driver", Why: "rustc does not run", Hint: hint, Err: err}
	}

	words := strings.Fields(version)
	if len(words) < 2 {
		return "", &MissingError{Part: "Rust driver", Why: "rustc says that it is " + version, Hint: hint}
	}

	dir, err := ensure(ctx, f.dir, rustDriverFolder+"-rust"+words[1], func(ctx context.Context, dir string) error {
		f.progress("building the Rust driver (minutes the first time)")

		return buildRust(ctx, dir)
	})
	if err != nil {
		return "", &MissingError{Part: "Rust driver", Why: "building it by cargo failed", Hint: hint, Err: err}
	}

	return filepath.Join(dir, "deps"), nil
}

// buildRust fills a folder with the compiled libraries.
func buildRust(ctx context.Context, dir string) error {
	manifest, err := rustFiles.ReadFile("rust/Cargo.toml.pinned")
	if err != nil {
		return err
	}

	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		return err
	}

	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "Cargo.toml"), manifest, 0o644),
		os.WriteFile(filepath.Join(dir, "src", "main.rs"), []byte("fn main() {}\n"), 0o644),
	)
	if err != nil {
		return err
	}

	if err := pinRust(ctx, dir); err != nil {
		return err
	}

	target := filepath.Join(dir, "target")
	if err := fetch(ctx, dir, []string{"CARGO_TARGET_DIR=" + target}, "cargo", "build", "--quiet", "--locked"); err != nil {
		return err
	}

	if err := os.Rename(filepath.Join(target, "debug", "deps"), filepath.Join(dir, "deps")); err != nil {
		return err
	}

	// The libraries hold what these do.
	extra, err := filepath.Glob(filepath.Join(dir, "deps", "*.rmeta"))
	if err != nil {
		return err
	}

	for _, name := range append(extra, target) {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}

	return nil
}

// pinRust writes the lock file: what is pinned, each from where cargo has it on this machine. Cargo says where that is in a lock file of its own
// making, of which nothing else is used.
func pinRust(ctx context.Context, dir string) error {
	if err := fetch(ctx, dir, nil, "cargo", "generate-lockfile", "--quiet"); err != nil {
		return err
	}

	lock := filepath.Join(dir, "Cargo.lock")

	made, err := os.ReadFile(lock)
	if err != nil {
		return err
	}

	_, rest, found := bytes.Cut(made, []byte("\nsource = "))
	where, _, ended := bytes.Cut(rest, []byte("\n"))

	if !found || !ended {
		return errors.New("cargo's lock file names no source")
	}

	pinned, err := rustFiles.ReadFile("rust/Cargo.lock.pinned")
	if err != nil {
		return err
	}

	source := append([]byte("source = "), where...)
	pinned = bytes.ReplaceAll(pinned, []byte("\nchecksum = "), append(append([]byte("\n"), source...), "\nchecksum = "...))

	return os.WriteFile(lock, pinned, 0o644)
}
