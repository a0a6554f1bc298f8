package parts

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Versions of what only tests and lint use.
const (
	mongoshVersion  = "2.12.0"
	pymongoVersion  = "4.20.1"
	golangciVersion = "2.15.0"
	gofumptVersion  = "0.12.0"
)

// mongoshFiles pins mongosh and everything it needs, with checksums that npm verifies.
//
//go:embed mongosh/package.json mongosh/package-lock.json
var mongoshFiles embed.FS

// pymongoPins are the wheels of PyMongo for CPython 3.11 to 3.14 on Linux.
const pymongoPins = `pymongo==` + pymongoVersion + ` \
 --hash=sha256:41464411366fabc8db70212f1a10cd7b5953eae6ee6a6500d9522f37f1a04311 \
 --hash=sha256:f45ce6b54e23d0b2c9f85e4c0f19b6693a0a07ceb4cc935eaf73dfc421dcaafc \
 --hash=sha256:03614740a404a6036290793fc9134758a514f86c02baeeab4c39564fe0b9f36b \
 --hash=sha256:18b92a17642e8c447ead1c6c611f388484932cb4d798cafb759b071070f9de74
dnspython==2.9.2 --hash=sha256:af15f7d385a6ae2fb35a796fde2138004c8c42c7389090e2addc83e3b3340fd8
`

// Mongosh returns the path of the pinned mongosh; it needs Node 20 or newer and npm.
func (f *Finder) Mongosh(ctx context.Context) (string, error) {
	const hint = "install Node 20 or newer with npm"

	version, err := output(ctx, "node", "--version")
	if err != nil {
		return "", &MissingError{Part: "mongosh", Why: "node does not run", Hint: hint, Err: err}
	}

	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		return "", &MissingError{Part: "mongosh", Why: "node is " + version, Hint: hint}
	}

	dir, err := ensure(ctx, f.dir, "mongosh-"+mongoshVersion, func(ctx context.Context, dir string) error {
		f.progress("fetching mongosh " + mongoshVersion + " (npm, 150 MB unpacked)")

		if err := copyMongoshFiles(dir); err != nil {
			return err
		}

		return fetch(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund")
	})
	if err != nil {
		return "", &MissingError{Part: "mongosh", Why: "fetching it by npm failed", Hint: hint, Err: err}
	}

	return filepath.Join(dir, "node_modules", ".bin", "mongosh"), nil
}

// PyMongo returns a folder for PYTHONPATH that holds the pinned PyMongo for the python3 in PATH.
func (f *Finder) PyMongo(ctx context.Context) (string, error) {
	const hint = "install CPython 3.11 to 3.14 with pip (Debian: python3-pip)"

	tag, err := output(ctx, "python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])")
	if err != nil {
		return "", &MissingError{Part: "PyMongo", Why: "python3 does not run", Hint: hint, Err: err}
	}

	dir, err := ensure(ctx, f.dir, "pymongo-"+pymongoVersion+"-"+tag, func(ctx context.Context, dir string) error {
		f.progress("fetching PyMongo " + pymongoVersion + " (pip)")
		return pip(ctx, dir, pymongoPins, "install", "--target", filepath.Join(dir, "site"))
	})
	if err != nil {
		return "", &MissingError{Part: "PyMongo", Why: "fetching it by pip for " + tag + " failed", Hint: hint, Err: err}
	}

	return filepath.Join(dir, "site"), nil
}

// GolangciLint returns the path of the pinned golangci-lint.
func (f *Finder) GolangciLint(ctx context.Context) (string, error) {
	return f.goTool(ctx, "golangci-lint", golangciVersion, "github.com/golangci/golangci-lint/v2/cmd/golangci-lint")
}

// Gofumpt returns the path of the pinned gofumpt.
func (f *Finder) Gofumpt(ctx context.Context) (string, error) {
	return f.goTool(ctx, "gofumpt", gofumptVersion, "mvdan.cc/gofumpt")
}

// goTool builds a Go program with the go command in PATH. A linter must be built by the Go whose code it reads, so the folder
// is named after that too.
func (f *Finder) goTool(ctx context.Context, name, version, path string) (string, error) {
	goVersion, err := output(ctx, "go", "env", "GOVERSION")
	if err != nil {
		return "", &MissingError{Part: name, Why: "go does not run", Hint: "install Go " + strings.TrimPrefix(runtime.Version(), "go"), Err: err}
	}

	folder := fmt.Sprintf("%s-%s-%s", name, version, strings.ReplaceAll(goVersion, " ", "_"))

	dir, err := ensure(ctx, f.dir, folder, func(ctx context.Context, dir string) error {
		f.progress("building " + name + " " + version + " (minutes the first time)")
		return fetch(ctx, dir, []string{"GOBIN=" + dir, "GOWORK=off"}, "go", "install", path+"@v"+version)
	})
	if err != nil {
		return "", &MissingError{Part: name, Why: "go install failed", Hint: "it needs a Go module proxy", Err: err}
	}

	return filepath.Join(dir, name), nil
}

// pip runs a pip command for pinned wheels in dir.
func pip(ctx context.Context, dir, requirements, command string, args ...string) error {
	return pipPinned(ctx, dir, nil, requirements, command, append([]string{"--only-binary=:all:"}, args...)...)
}

// pipPinned runs a pip command for what requirements pin, in dir and with more in the environment.
func pipPinned(ctx context.Context, dir string, env []string, requirements, command string, args ...string) error {
	if _, err := exec.LookPath("python3"); err != nil {
		return err
	}

	file := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(file, []byte(requirements), 0o644); err != nil {
		return err
	}

	args = append([]string{"-m", "pip", command, "--no-deps", "--require-hashes", "-r", file}, args...)
	env = append([]string{"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore"}, env...)

	return fetch(ctx, dir, env, "python3", args...)
}

// copyMongoshFiles writes npm's input.
func copyMongoshFiles(dir string) error {
	files, err := fs.Sub(mongoshFiles, "mongosh")
	if err != nil {
		return err
	}

	return os.CopyFS(dir, files)
}
