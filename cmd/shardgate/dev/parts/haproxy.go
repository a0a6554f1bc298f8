package parts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// haproxyPackages are Debian's HAProxy and the libraries of it that a machine without it lacks.
func haproxyPackages() []string {
	return []string{"haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"}
}

// HAProxy returns the path of HAProxy, which `make bench` compares with: the one in PATH or /usr/sbin, else, for root, Debian's, taken
// apart into the cache folder: nothing is installed, no service starts. apt checks what it downloads by its own keys.
func (f *Finder) HAProxy(ctx context.Context) (string, error) {
	const hint = "install it (Debian: haproxy)"

	for _, name := range []string{"haproxy", "/usr/sbin/haproxy"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}

	if os.Geteuid() != 0 {
		return "", &MissingError{Part: "HAProxy", Why: "the machine has none, and only root has apt fetch it", Hint: hint}
	}

	dir, err := ensure(ctx, f.dir, "haproxy-debian-"+runtime.GOARCH, func(ctx context.Context, dir string) error {
		f.progress("fetching HAProxy (apt, 2 MB)")
		return fetchHAProxy(ctx, dir)
	})
	if err != nil {
		return "", &MissingError{Part: "HAProxy", Why: "fetching it by apt failed", Hint: hint, Err: err}
	}

	path := filepath.Join(dir, "haproxy")
	if _, err := output(ctx, path, "-v"); err != nil {
		return "", &MissingError{Part: "HAProxy", Why: "the fetched one does not run", Hint: hint, Err: err}
	}

	return path, nil
}

// fetchHAProxy downloads and unpacks the packages, and writes the script that starts the program with its libraries.
func fetchHAProxy(ctx context.Context, dir string) error {
	if err := fetch(ctx, dir, nil, "apt-get", append([]string{"download"}, haproxyPackages()...)...); err != nil {
		// A fresh machine has no lists yet.
		if err := fetch(ctx, dir, nil, "apt-get", "update"); err != nil {
			return err
		}

		if err := fetch(ctx, dir, nil, "apt-get", append([]string{"download"}, haproxyPackages()...)...); err != nil {
			return err
		}
	}

	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}

	for _, file := range files {
		if err := fetch(ctx, dir, nil, "dpkg", "-x", file, dir); err != nil {
			return err
		}

		if err := os.Remove(file); err != nil {
			return err
		}
	}

	libraries, err := filepath.Glob(filepath.Join(dir, "usr/lib/*/liblua5.3.so.0"))
	if err != nil {
		return err
	}

	if len(libraries) != 1 {
		return fmt.Errorf("the packages hold liblua5.3.so.0 %d times, not once", len(libraries))
	}

	// The folder is filled under another name than it has in the end.
	rel, err := filepath.Rel(dir, filepath.Dir(libraries[0]))
	if err != nil {
		return err
	}

	script := "#!/bin/sh\nhere=$(dirname \"$0\")\nLD_LIBRARY_PATH=$here/" + rel + " exec \"$here/usr/sbin/haproxy\" \"$@\"\n"

	return writeProgram(filepath.Join(dir, "haproxy"), strings.NewReader(script))
}
