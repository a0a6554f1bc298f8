package parts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldestPostgres is the oldest major version the catalog runs on.
const oldestPostgres = 15

// Postgres is a folder of PostgreSQL programs.
type Postgres struct {
	Bin   string // holds postgres and initdb
	Major int
}

// Postgres returns PostgreSQL's programs: SHARDGATE_PG_BIN, else the ones in PATH, else the newest below /usr/lib/postgresql, else
// fetched ones. With major other than 0 only that version will do: a data folder is bound to one.
func (f *Finder) Postgres(ctx context.Context, major int) (Postgres, error) {
	switch f.postgres {
	case "":
	case Fetched:
		return f.fetchedPostgres(ctx, major)
	default:
		p, err := probePostgres(ctx, f.postgres)
		if err == nil {
			err = fits(p, major)
		}

		if err != nil {
			return p, &MissingError{Part: "PostgreSQL", Why: EnvPostgres + " does not serve", Hint: "change or unset it", Err: err}
		}

		return p, nil
	}

	for _, dir := range postgresFolders() {
		if p, err := probePostgres(ctx, dir); err == nil && fits(p, major) == nil {
			return p, nil
		}
	}

	return f.fetchedPostgres(ctx, major)
}

// postgresFolders lists where the machine may have PostgreSQL, best first.
func postgresFolders() []string {
	var dirs []string

	if path, err := exec.LookPath("postgres"); err == nil {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}

		dirs = append(dirs, filepath.Dir(path))
	}

	debian, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return dirs
	}

	version := func(dir string) int {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err != nil {
			return 0
		}

		return n
	}

	slices.SortFunc(debian, func(a, b string) int { return version(b) - version(a) })

	return append(dirs, debian...)
}

// probePostgres reads the version of the programs in dir.
func probePostgres(ctx context.Context, dir string) (Postgres, error) {
	p := Postgres{Bin: dir}

	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return p, err
	}

	text, err := output(ctx, filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return p, err
	}

	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "postgres (PostgreSQL) 19beta1"
	_, version, _ := strings.Cut(text, "(PostgreSQL) ")

	digits := regexp.MustCompile(`^\d+`).FindString(version)

	p.Major, err = strconv.Atoi(digits)
	if err != nil {
		return p, fmt.Errorf("version of %s: %q", dir, text)
	}

	return p, nil
}

// fits reports why p is not the version that is needed.
func fits(p Postgres, major int) error {
	switch {
	case p.Major < oldestPostgres:
		return fmt.Errorf("%s is version %d, the catalog needs %d or newer", p.Bin, p.Major, oldestPostgres)
	case major != 0 && p.Major != major:
		return fmt.Errorf("%s is version %d, the data folder was made by %d", p.Bin, p.Major, major)
	default:
		return nil
	}
}
