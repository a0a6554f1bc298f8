package parts

import (
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
)

// pymongoSource is PyMongo's sdist, which carries its test suite.
const (
	pymongoSource = "pymongo==" + pymongoVersion + " --hash=sha256:" + pymongoSum + "\n"
	pymongoSum    = "1ac112b3ffa3d010cfc2fc54e3ae677a12c63d18c6115db4451df64f1a1175eb"
)

// pytestPins are the wheels of what runs the suite.
const pytestPins = `pytest==9.2.0 --hash=sha256:07acdcf88ec174f907dc01af70bf52d49b014bbab03faeeade31c96b18c2e588
iniconfig==2.3.1 --hash=sha256:9121e2c1fdb355232495be3194c8dfe87ccc2d5dee45947b78e68f499790d7a7
packaging==26.4 --hash=sha256:81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2
pluggy==1.7.0 --hash=sha256:7dd7b0d8832ba3cb632c306926ded123429211b83641b35dc5c41ad2d34f9bec
pygments==2.21.0 --hash=sha256:2363c69b61c4a97c838da3b130dcd6468f4848992b21a82f2a63ec34377137d9
`

// backend stands in for the sdist's build backend (hatchling.build). Before pip hands an sdist over it asks for the metadata, for
// which the real one would compile the package.
const backend = `import os

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    os.mkdir(os.path.join(directory, "pymongo.dist-info"))
    with open(os.path.join(directory, "pymongo.dist-info", "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: pymongo\nVersion: ` + pymongoVersion + `\n")
    return "pymongo.dist-info"
`

// PyMongoSuite returns a folder that holds the test suite of the pinned PyMongo (test, and its settings in pyproject.toml) and,
// for PYTHONPATH, pytest (site).
func (f *Finder) PyMongoSuite(ctx context.Context) (string, error) {
	dir, err := ensure(ctx, f.dir, "pymongo-suite-"+pymongoVersion, func(ctx context.Context, dir string) error {
		f.progress("fetching PyMongo's test suite " + pymongoVersion + " (pip)")
		return fetchSuite(ctx, dir)
	})
	if err != nil {
		return "", &MissingError{
			Part: "PyMongo's test suite", Why: "fetching it by pip failed", Hint: "install CPython 3.11 to 3.14 with pip (Debian: python3-pip)", Err: err,
		}
	}

	return dir, nil
}

// fetchSuite downloads the sdist and takes the tests out of it.
func fetchSuite(ctx context.Context, dir string) error {
	if err := pip(ctx, dir, pytestPins, "install", "--target", filepath.Join(dir, "site")); err != nil {
		return err
	}

	stand, source := filepath.Join(dir, "backend"), filepath.Join(dir, "source")
	if err := os.MkdirAll(filepath.Join(stand, "hatchling"), 0o755); err != nil {
		return err
	}

	if err := os.WriteFile(filepath.Join(stand, "hatchling", "build.py"), []byte(backend), 0o644); err != nil {
		return err
	}

	err := pipPinned(ctx, dir, []string{"PYTHONPATH=" + stand}, pymongoSource, "download",
		"--no-binary=:all:", "--no-build-isolation", "--dest", source)
	if err != nil {
		return err
	}

	archive := filepath.Join(source, "pymongo-"+pymongoVersion+".tar.gz")
	if err := checkSum(archive, pymongoSum); err != nil {
		return err
	}

	if err := unpackGZ(archive, source); err != nil {
		return err
	}

	for _, name := range []string{"test", "pyproject.toml"} {
		if err := os.Rename(filepath.Join(source, "pymongo-"+pymongoVersion, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}

	return errors.Join(os.RemoveAll(source), os.RemoveAll(stand))
}

// unpackGZ extracts a tar.gz archive into dir.
func unpackGZ(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()

	plain, err := gzip.NewReader(f)
	if err != nil {
		return err
	}

	return unpack(plain, dir)
}
