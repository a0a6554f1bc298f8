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
	if m.ranged {
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

// check returns what is wrong with a state.
func (w *world) check() error {
	owner := shardA
	if w.outcome == OutcomeSwitched != w.moved {
		owner = shardB
	}
	if w.data[owner] < w.acked {
		return fmt.Errorf("a write is lost: the owner has %d of %d", w.data[owner], w.acked)
	}
	for i := range w.servers {
		if s := &w.servers[i]; w.data[s.owner] < w.acked {
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
		if other := 1 - s.manyView.owner; s.manyView.unowned != other && w.data[other] > 0 {
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

// serve lists what a router can do: load the catalog, begin a write, end one.
func (m *model) serve(w world, i int) (out []world) {
	s := &w.servers[i]
	if s.view != w.catalog {
		n := w
		n.servers[i].view = w.catalog
		out = append(out, n)
	}
	if m.ranged && i == 0 {
		n := w
		if n.servers[i].many = !s.many; n.servers[i].many {
			n.servers[i].manyView, n.servers[i].seen = s.view, w.acked
		} else {
			n.servers[i].manyView, n.servers[i].seen = view{}, 0
		}
		out = append(out, n)
	}
	if !s.writing && !s.held && w.begun < m.writes() && (!m.ranged || i == 1) {
		n := w
		n.begun++
		n.servers[i].writing, n.servers[i].to, n.servers[i].old = true, s.owner, s.view
		out = append(out, n)
	}
	if s.writing {
		n := w
		n.data[s.to]++
		n.acked++
		n.servers[i].writing = false
		out = append(out, n)
	}
	return out
}

// acknowledged reports whether all routers act by the catalog, with no older write in flight.
func (w *world) acknowledged() bool {
	for i := range w.servers {
		if s := &w.servers[i]; s.view != w.catalog || s.writing && s.old != w.catalog {
			return false
		}
	}
	return true
}

// unread reports whether besides nothing older reads any more.
func (w *world) unread() bool {
	for i := range w.servers {
		if s := &w.servers[i]; s.many && s.manyView != w.catalog {
			return false
		}
	}
	return w.acknowledged()
}

// step lets a runner do its next action, or a part of it after which it may die. Who has
// lost the lock changes nothing in the catalog.
func (m *model) step(w world, i int) []world {
	f := w.runners[i].facts
	if m.noAwait {
		f.Acknowledged = true
	}
	if m.noDrain && f.Held {
		f.Drained = true
	}
	if m.earlyEnd && f.Copied {
		f.Equal = true
	}
	if m.noAnnounce {
		f.Known = true
	}
	if m.cleanAtOnce {
		f.Unread = true
	}
	a := Next(f)
	n := w
	r := &n.runners[i]
	mine := w.lock == i
	switch a {
	case Announce:
		if !w.unread() {
			return nil
		}
		r.facts.Known = true
	case Keep:
		if !mine || !w.unread() {
			return nil
		}
		r.facts.Unread = true
	case Clean:
		return m.clean(n, i, mine)
	case Shape:
		if w.closed && !m.reopens {
			r.facts.Failed = true
			return []world{n}
		}
		n.token, n.exists, r.facts.Shaped = true, true, true
	case Copy, CatchUp:
		if !r.buffered {
			r.buffered, r.buffer = true, w.data[shardA]
			return []world{n}
		}
		r.buffered = false
		if !w.token || !w.exists {
			r.facts.Failed = true
			return []world{n}
		}
		n.data[shardB] = r.buffer
		if a == Copy {
			r.facts.Copied = true
		} else {
			r.facts.Equal = true
		}
	case Record:
		if n.outcome == OutcomeNone {
			n.outcome = OutcomeSwitched
		}
		r.facts.Recorded = n.outcome
	case Hold, Drain, Switch, Await, Release:
		if !mine {
			r.alive = false // the catalog refuses it
			return []world{n}
		}
		return m.change(n, i, a)
	case Undo:
		return m.undo(n, i, mine)
	default:
		return nil
	}
	return []world{n}
}

// change does an action that changes the catalog, or waits for routers.
func (m *model) change(w world, i int, a Action) []world {
	r := &w.runners[i]
	switch a { //nolint:exhaustive // step has the others
	case Hold:
		w.catalog.held, r.facts.Held = true, true
	case Drain:
		if !w.acknowledged() {
			put := w // it takes too long: writes flow again
			put.catalog.held = false
			p := &put.runners[i]
			p.facts.Held, p.facts.Drained, p.facts.Copied = false, false, false
			return []world{put}
		}
		r.facts.Drained = true
	case Switch:
		if !r.recording {
			w.token, w.closed, r.recording = false, true, true
			w.ended[shardB] = true
			return []world{w}
		}
		w.state, w.catalog = catalog.MovementSwitched, view{held: true, owner: shardB, unowned: nowhere}
		if m.ranged {
			w.catalog.unowned = shardA
		}
		r.facts.State = w.state
	case Await:
		if !w.acknowledged() {
			return nil
		}
		r.facts.Acknowledged = true
	case Release:
		w.state, w.catalog.held = catalog.MovementLeaving, false
		if m.ranged {
			r.facts.State = w.state
			return []world{w}
		}
		w.done, r.alive = true, false
	}
	return []world{w}
}

// sweep deletes what a shard does not own, by a permission, as one that may come late, though
// another has the lock by now; over says that the runner has done so and holds the lock.
func (m *model) sweep(w world, i, shard int, mine bool) (next []world, over bool) {
	r := &w.runners[i]
	switch {
	case !r.sweeping:
		r.sweeping = true
		if w.ended[shard] && !m.noEnd {
			r.swept = true // by another one
		} else {
			w.permit[shard] = i
		}
	case !r.swept:
		if w.permit[shard] == i || m.noPermit {
			r.swept, w.data[shard] = true, 0
		} else {
			r.sweeping, r.alive = false, mine
		}
	default:
		w.permit[shard], w.ended[shard] = nowhere, true
		r.alive = mine
		return []world{w}, mine
	}
	return []world{w}, false
}

// clean does a part of Clean of a range.
func (m *model) clean(w world, i int, mine bool) []world {
	next, over := m.sweep(w, i, shardA, mine)
	if over {
		n := &next[0]
		n.state, n.catalog.unowned, n.done, n.runners[i].alive = catalog.MovementGone, nowhere, true, false
	}
	return next
}

// undo does a part of Undo.
func (m *model) undo(w world, i int, mine bool) []world {
	r := &w.runners[i]
	switch {
	case !r.undone && !m.noRecord:
		if w.outcome == OutcomeNone {
			w.outcome = OutcomeUndone
		}
		r.facts.Recorded = w.outcome
		r.undone = w.outcome == OutcomeUndone
	case !mine && !r.sweeping:
		r.alive = false
	case !r.opened:
		w.catalog.held, r.opened = false, true
	case m.ranged:
		w.token, w.closed = false, true
		next, over := m.sweep(w, i, shardB, mine)
		if over {
			n := &next[0]
			n.state, n.catalog.unowned, n.done, n.runners[i].alive = catalog.MovementGone, nowhere, true, false
		}
		return next
	default:
		w.token, w.closed, w.exists, w.data[shardB] = false, true, false, 0
		w.state, w.done = "", true
		r.alive = false
	}
	return []world{w}
}

// explore visits every state and returns the first that is wrong, with the number of states
// and whether each of them can still come to an end.
func (m *model) explore() (states int, stuck bool, wrong error) {
	seen := map[world]bool{}
	before := map[world][]world{}
	var ends []world
	queue := []world{m.start()}
	seen[queue[0]] = true
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		if err := w.check(); err != nil {
			return len(seen), false, fmt.Errorf("%w in %+v", err, w)
		}
		if w.done {
			ends = append(ends, w)
		}
		for _, n := range m.next(w) {
			before[n] = append(before[n], w)
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	// Backwards from the ends: who is not met cannot come to one. Those that have used up
	// the takeovers of the bounds and lost their last mover do not count.
	reached := map[world]bool{}
	for len(ends) > 0 {
		w := ends[0]
		ends = ends[1:]
		if reached[w] {
			continue
		}
		reached[w] = true
		ends = append(ends, before[w]...)
	}
	for w := range seen {
		if !reached[w] && w.takeovers < m.takeovers() {
			return len(seen), true, nil
		}
	}
	return len(seen), false, nil
}

// TestModel explores all orders of two routers' writes and loads, a mover and those who take
// over from it at any point, dead or paused.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, m := range []*model{{}, {ranged: true}} {
		n, stuck, err := m.explore()
		t.Logf("%d states: 2 routers, %d writes, %d takeovers, of a range: %t", n, m.writes(), m.takeovers(), m.ranged)
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
