package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// difference is one that is meant to be, or that waits for its mend.
type difference struct {
	name string
	why  string
	page string // MongoDB's own, or a section of MONGOS.md

	// Example is a command that differs on shape after dataset; TestDifferencesStillDiffer runs it.
	example, shape string
	// Covers tells whether this is why a call differs.
	covers func(c *call) bool
	// Rewrite makes a mongod's reply of a router's, for what differs always.
	rewrite func(c *call, reply bson.D) bson.D
}

// rewrite makes a mongod's reply of a router's.
func (c *call) rewrite(reply bson.D) bson.D {
	for _, d := range slices.Concat(differences, pending) {
		if d.rewrite != nil {
			reply = d.rewrite(c, reply)
		}
	}

	return reply
}

// explain looks whether a difference is an expected one; then it is none.
func (c *call) explain() {
	if c.diff == "" {
		return
	}

	for _, d := range slices.Concat(differences, pending) {
		if d.covers != nil && d.covers(c) {
			c.expected, c.diff = d.name, ""
			return
		}
	}
}

// TestDifferencesStillDiffer fails for an entry whose example is the same on both sides: it is no difference any more.
func TestDifferencesStillDiffer(t *testing.T) {
	p := newPair(t)

	for _, d := range slices.Concat(differences, pending) {
		t.Run(d.name, func(t *testing.T) {
			require.NotEmpty(t, d.why)
			require.NotEmpty(t, d.page)

			at := slices.IndexFunc(shapes, func(s *shape) bool { return s.name == d.shape })
			require.GreaterOrEqual(t, at, 0, "shape %q", d.shape)
			p.refill(t, shapes[at])

			c := p.run(t, shapes[at], parse(t, d.example), false)
			require.Empty(t, c.notYet)
			require.Empty(t, c.diff, "another difference than the one that is described")

			if d.rewrite != nil {
				require.NotEqual(t, c.text(c.router.reply), c.text(d.rewrite(c, c.router.reply)), "it differs no longer: take the entry out")
			} else {
				require.Equal(t, d.name, c.expected, "it differs no longer: take the entry out")
			}
		})
	}
}

// tally counts calls.
type tally struct {
	mu sync.Mutex // guards all of it

	calls, succeeded int
	notYet, expected map[string]int
}

// add counts a call.
func (y *tally) add(c *call) {
	y.mu.Lock()
	defer y.mu.Unlock()

	y.calls++

	if y.notYet == nil {
		y.notYet, y.expected = map[string]int{}, map[string]int{}
	}

	switch {
	case c.notYet != "":
		y.notYet[c.notYet]++
	case c.expected != "":
		y.expected[c.expected]++
	case c.judge != nil && c.judge.code() == 0 && get(c.judge.reply, "writeErrors") == nil:
		y.succeeded++
	}
}

// String is the summary that a run prints.
func (y *tally) String() string {
	y.mu.Lock()
	defer y.mu.Unlock()

	var b strings.Builder

	fmt.Fprintf(&b, "%d calls, of which %d succeeded on both sides\n", y.calls, y.succeeded)

	for _, m := range []struct {
		what string
		of   map[string]int
	}{{"not yet", y.notYet}, {"differs as expected", y.expected}} {
		for _, name := range slices.Sorted(maps.Keys(m.of)) {
			fmt.Fprintf(&b, "  %s, %d times: %s\n", m.what, m.of[name], name)
		}
	}

	return b.String()
}
