package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// part is something that can be asked for by name.
type part struct {
	name string
	find func(*Finder, context.Context) (string, error)
}

// allParts is the table of parts.
func allParts() []part {
	all := []part{
		{"mongod", (*Finder).Mongod},
		{"postgres", func(f *Finder, ctx context.Context) (string, error) {
			p, err := f.Postgres(ctx, 0)
			return p.Bin, err
		}},
		{"postgres-fetched", func(f *Finder, ctx context.Context) (string, error) {
			p, err := f.fetchedPostgres(ctx, 0)
			return p.Bin, err
		}},
		{"mongosh", (*Finder).Mongosh},
		{"pymongo", (*Finder).PyMongo},
		{"pymongo-suite", (*Finder).PyMongoSuite},
		{"pymongo-compressors", (*Finder).PyMongoCompressors},
		{"node-drivers", (*Finder).NodeDrivers},
		{"java-driver", (*Finder).JavaDriver},
		{"golangci-lint", (*Finder).GolangciLint},
		{"gofumpt", (*Finder).Gofumpt},
		{"haproxy", (*Finder).HAProxy},
	}

	if HasRust() {
		all = append(all, part{"rust-driver", (*Finder).RustDriver})
	}

	return all
}

// Names lists the parts that [Finder.All] knows.
func Names() []string {
	var names []string
	for _, p := range allParts() {
		names = append(names, p.name)
	}

	return names
}

// All finds or fetches parts at the same time and returns their paths by name. What is missing is in the error, the rest is
// returned all the same.
func (f *Finder) All(ctx context.Context, names []string) (map[string]string, error) {
	var (
		mu    sync.Mutex
		paths = map[string]string{}
		errs  []error
		wait  sync.WaitGroup
	)

	for _, name := range names {
		i := slices.IndexFunc(allParts(), func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no part is called %q", name)
		}

		wait.Go(func() {
			path, err := allParts()[i].find(f, ctx)

			mu.Lock()
			defer mu.Unlock()

			if err != nil {
				errs = append(errs, err)
				return
			}

			paths[name] = path
		})
	}

	wait.Wait()

	return paths, errors.Join(errs...)
}

// Required reports whether a missing part is a failure, not a reason to skip: where CI=true.
func Required() bool {
	return os.Getenv("CI") == "true"
}
