package movement

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/catalog"
)

// The bounds of the model: two routers that serve, two that move (the second takes over
// while the first is dead or merely paused), so many writes and takeovers.
const (
	maxWrites    = 2
	maxTakeovers = 2
)

// shardA is the donor, shardB the recipient.
const (
	shardA = iota
	shardB
)

// nowhere is no shard.
const nowhere = -1

// view is what a router acts by.
type view struct {
	held    bool
	owner   int
	unowned int // the shard of a ranged movement whose copy reads and writes of many leave out
}

// server is a router with at most one write in flight, and a read or write of many.
type server struct {
	view
	writing bool
	to      int  // where that goes
	old     view // by which it began

	many     bool // an operation on all shards is under way, or a cursor open
	manyView view // by which it began
	seen     int  // what was acknowledged before
}

// runner is a mover: what it remembers, and what it has read and not yet written.
type runner struct {
	alive     bool
	facts     Facts
	buffered  bool // it has read the donor for its next write
	buffer    int
	undone    bool // of Undo: the outcome is on record
	opened    bool // of Undo: writes flow
	recording bool // of Switch: the recipient's token is closed
	swapped   bool // of Switch that reshards: the original is gone
	sweeping  bool // of Clean and Undo of a range: it has the permission to delete
	swept     bool
}

// world is a state of everything. It can be compared.
type world struct {
	state   catalog.MovementState
	catalog view
	lock    int // the runner that holds it; -1: nobody

	outcome Outcome // on the donor
	token   bool    // the recipient takes the copy
	exists  bool    // the recipient's copy
	data    [2]int  // acknowledged and other writes in each copy

	acked, begun int
	servers      [2]server
	runners      [2]runner
	takeovers    int
	done         bool    // released or undone
	closed       bool    // the recipient's token was taken away, and cannot be made again
	permit       [2]int  // by shard: the runner that may delete what is not owned there
	ended        [2]bool // by shard: nobody gets that permission any more
	moved        bool    // the range has moved again, by another movement, since this one ended
}

// model has the faults that a test plants, to see that the properties find them.
type model struct {
	noAwait, noDrain, earlyEnd, noRecord bool

	ranged                      bool // a range moves, between shards that have more of the collection
	noAnnounce, noPermit, noEnd bool
	cleanAtOnce, reopens        bool

	// A collection is resharded: reads are held back, too, and the copy takes the original's
	// place on the shards before the catalog knows. Donors and recipients are one each here:
	// each copy is its donor's alone.
	reshards             bool
	noReaders, swapFirst bool
}

func (m *model) start() world {
	w := world{state: catalog.MovementCopying, token: false, permit: [2]int{nowhere, nowhere}}
	before := view{unowned: nowhere}
	w.servers[0].view, w.servers[1].view, w.catalog = before, before, before
	if m.ranged {
		w.catalog.unowned = shardB
	}
	w.runners[0] = runner{alive: true, facts: Facts{State: w.state, Mine: true, Known: !m.ranged}}
	w.lock = 0
	return w
}

// writes bounds how many there are.
func (m *model) writes() int {
	if m.ranged || m.reshards {
		return 1
	}
	return maxWrites
}

// takeovers bounds how many there are.
func (m *model) takeovers() int {
	if m.ranged {
		return 1
	}
	return maxTakeovers
}

// many reports whether there are operations on all shards.
func (m *model) many() bool { return m.ranged || m.reshards }

// check returns what is wrong with a state.
func (w *world) check(m *model) error {
	owner := shardA
	if w.outcome == OutcomeSwitched != w.moved {
		owner = shardB
	}
	if w.data[owner] < w.acked {
		return fmt.Errorf("a write is lost: the owner has %d of %d", w.data[owner], w.acked)
	}
	for i := range w.servers {
		if s := &w.servers[i]; !(m.reshards && s.held) && w.data[s.owner] < w.acked {
			return fmt.Errorf("router %d reads at %d, which has %d of %d", i, s.owner, w.data[s.owner], w.acked)
		}
	}
	for i := range w.servers {
		s := &w.servers[i]
		if !s.many {
			continue
		}
		if w.data[s.manyView.owner] < s.seen {
			return fmt.Errorf("what router %d still reads at %d is gone", i, s.manyView.owner)
		}
		if other := 1 - s.manyView.owner; m.ranged && s.manyView.unowned != other && w.data[other] > 0 {
			return fmt.Errorf("an operation of router %d meets the copy on %d", i, other)
		}
	}
	if w.done && w.data[w.catalog.owner] != w.acked {
		return fmt.Errorf("the copy of the owner has %d, %d were acknowledged", w.data[w.catalog.owner], w.acked)
	}
	return nil
}

// next lists the states that can follow.
func (m *model) next(w world) []world {
	var out []world
	for i := range w.servers {
		out = append(out, m.serve(w, i)...)
	}
	if m.ranged && w.state == catalog.MovementGone && !w.moved && w.idle() {
		out = append(out, w.moveAgain())
	}
	for i := range w.runners {
		r := &w.runners[i]
		if !r.alive {
			continue
		}
		out = append(out, m.step(w, i)...)
		dead := w
		dead.runners[i] = runner{} // its lock stays until somebody takes over
		out = append(out, dead)
		if r.facts.State == catalog.MovementCopying && !r.facts.Failed && w.lock == i {
			failed := w
			failed.runners[i].facts.Failed = true
			out = append(out, failed)
		}
	}
	if !w.done && w.takeovers < m.takeovers() {
		out = append(out, w.takeOver())
	}
	return out
}

// idle reports whether all routers act by the catalog, and nothing is under way at them.
func (w *world) idle() bool {
	return w.acknowledged() && !w.servers[0].many && !w.servers[1].many && !w.servers[0].writing && !w.servers[1].writing
}

// moveAgain is what another movement does later: the range comes to the other shard.
func (w world) moveAgain() world {
	from := w.catalog.owner
	w.moved, w.catalog.owner = true, 1-from
	w.data[1-from], w.data[from] = w.data[from], 0
	for i := range w.servers {
		w.servers[i].view = w.catalog
	}
	return w
}

// takeOver gives the lock to the other runner, whether the first is dead or paused.
func (w world) takeOver() world {
	next := 1 - max(w.lock, 0)
	w.lock = next
	w.takeovers++
	w.runners[next] = runner{alive: true, facts: Facts{State: w.state, Held: w.catalog.held}}
	return w
}

// explore visits every state and returns the first that is wrong, with the number of states
// and whether each of them can still come to an end.
func (m *model) explore() (states int, stuck bool, wrong error) {
	start := m.start()
	number := map[world]int32{start: 0}
	worlds := []world{start}
	before := [][]int32{nil}
	var ends []int32
	for at := int32(0); int(at) < len(worlds); at++ {
		w := worlds[at]
		if err := w.check(m); err != nil {
			return len(worlds), false, fmt.Errorf("%w in %+v", err, w)
		}
		if w.done {
			ends = append(ends, at)
		}
		for _, n := range m.next(w) {
			id, seen := number[n]
			if !seen {
				id = int32(len(worlds))
				number[n] = id
				worlds, before = append(worlds, n), append(before, nil)
			}
			before[id] = append(before[id], at)
		}
	}
	// Backwards from the ends: who is not met cannot come to one. Those that have used up
	// the takeovers of the bounds and lost their last mover do not count.
	reached := make([]bool, len(worlds))
	for len(ends) > 0 {
		at := ends[0]
		ends = ends[1:]
		if !reached[at] {
			reached[at] = true
			ends = append(ends, before[at]...)
		}
	}
	for at, w := range worlds {
		if !reached[at] && w.takeovers < m.takeovers() {
			return len(worlds), true, nil
		}
	}
	return len(worlds), false, nil
}

// TestModel explores all orders of two routers' writes and loads, a mover and those who take
// over from it at any point, dead or paused.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, m := range []*model{{}, {ranged: true}, {reshards: true}} {
		n, stuck, err := m.explore()
		t.Logf("%d states: 2 routers, %d writes, %d takeovers, of a range: %t, resharding: %t", n, m.writes(), m.takeovers(), m.ranged, m.reshards)
		require.NoError(t, err)
		require.False(t, stuck, "a movement that can come to no end")
	}
}

// TestModelFindsFaults: the properties see each fault of the protocol that the model can have.
func TestModelFindsFaults(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*model{
		"released before all routers know":       {noAwait: true},
		"the copy ends before writes are held":   {noDrain: true},
		"the copies are not compared at the end": {earlyEnd: true},
		"undone although it is on record":        {noRecord: true},
		"a range: released before all know":      {ranged: true, noAwait: true},
		"a range is copied before all know":      {ranged: true, noAnnounce: true},
		"a late deletion needs no permission":    {ranged: true, noPermit: true},
		"a late sweep gets a permission":         {ranged: true, noEnd: true},
		"a late mover makes its token again":     {ranged: true, reopens: true},
		"a copy is deleted while it is read":     {ranged: true, cleanAtOnce: true},
		"resharded before writes are at rest":    {reshards: true, noDrain: true},
		"resharded while it is read":             {reshards: true, noReaders: true},
		"resharded, and undone":                  {reshards: true, noRecord: true},
		"swapped before that is on record":       {reshards: true, swapFirst: true},
	} {
		_, _, err := m.explore()
		require.Error(t, err, name)
	}
}

// TestNext: the order of an undisturbed movement, and what others do who find it.
func TestNext(t *testing.T) {
	t.Parallel()
	f := Facts{State: catalog.MovementCopying, Mine: true}
	expect := func(a Action) {
		t.Helper()
		require.Equal(t, a, Next(f), "%s", Next(f))
	}
	expect(Announce)
	f.Known = true
	expect(Shape)
	f.Shaped = true
	expect(Copy)
	f.Copied = true
	expect(Hold)
	f.Held = true
	expect(Drain)
	f.Drained = true
	expect(CatchUp)
	f.Equal = true
	expect(Record)
	f.Failed = true
	expect(Undo)
	f.Recorded = OutcomeSwitched
	expect(Switch)
	f.Mine = false
	expect(Switch)
	f.Recorded = OutcomeNone
	expect(Undo)
	f.State = catalog.MovementSwitched
	expect(Await)
	f.Acknowledged = true
	expect(Release)
	f.State = catalog.MovementLeaving
	expect(Keep)
	f.Unread = true
	expect(Clean)
	f.State = catalog.MovementGone
	expect(Recall)
	f.Forgotten = true
	expect(Forget)
}
