package compat

// The differential tests: the same call to shardgate and to one plain mongod, the judge, with the same data and indexes. What comes
// back must be the same: values and their BSON types, errors with code, codeName and labels (and the text where clients read it),
// order where a sort defines it, and the data after each write. They go through bare sockets: nothing of a driver is in between.
//
// # Cases
//
// testdata/differential/*.txt holds one command a line, in MongoDB's extended JSON with the collection called "c":
//
//	{"find": "c", "filter": {"n": {"$gt": 2}}, "sort": {"_id": 1}}
//
// Every line runs on each shape of collection (see shapes) over the documents of dataset. A line that begins with two spaces goes
// on where the line before it ended; any other line begins with the dataset as it was. "#" begins a comment. "~" before a command:
// which of several equal values (1, 1.0, NumberLong(1)) is given is nobody's promise, so only what compares equal is compared.
//
//	go test ./compat -run 'TestDifferentialCases/ranged/update'
//
// # Random calls
//
// TestDifferentialRandom composes calls. When one differs, what led to it is made smaller and printed with a seed:
//
//	go test ./compat -run TestDifferentialRandom -differential.seed=SEED
//
// plays the same calls again; -differential.calls=N makes more or fewer. A found difference belongs into a case, too.
//
// # Differences that are meant to be
//
// differences (differential_expected_test.go) lists them, each with its reason and where MongoDB says so. pending lists faults that
// wait for their mend. An entry of either whose example no longer differs fails: take it out. What shardgate does not do yet (238)
// is no difference; it is counted and printed.

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// line is a command of a file of cases.
type line struct {
	where string // file:line
	text  string
	goes  bool // on with what the line before left
	loose bool
}

// caseLines reads a file of cases.
func caseLines(t *testing.T, path string) []line {
	t.Helper()

	f, err := os.Open(path)
	require.NoError(t, err)

	defer f.Close()

	var lines []line

	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		text := in.Text()
		if s := strings.TrimSpace(text); s == "" || s[0] == '#' {
			continue
		}

		l := line{where: fmt.Sprintf("%s:%d", filepath.Base(path), n), goes: strings.HasPrefix(text, "  ")}
		l.text, l.loose = strings.CutPrefix(strings.TrimSpace(text), "~")
		lines = append(lines, l)
	}

	require.NoError(t, in.Err())

	return lines
}

// TestDifferentialCases runs the readable cases on all shapes.
func TestDifferentialCases(t *testing.T) {
	p := newPair(t)
	t.Cleanup(func() { t.Log(p.tally.String()) })

	files, err := filepath.Glob("testdata/differential/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)

	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()

			p := p.again(t)

			for _, path := range files {
				t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
					for _, l := range caseLines(t, path) {
						if !l.goes {
							p.refill(t, s)
						}

						c := p.run(t, s, parse(t, l.text), l.loose)
						if c.diff != "" {
							t.Errorf("%s on %s: %s\n%s", l.where, s.name, l.text, c.diff)
						}
					}
				})
			}
		})
	}
}
