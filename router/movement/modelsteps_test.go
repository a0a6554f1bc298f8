package movement

import "github.com/shardgate/shardgate/catalog"

// serve lists what a router can do: load the catalog, begin a write, end one.
func (m *model) serve(w world, i int) (out []world) {
	s := &w.servers[i]
	if s.view != w.catalog {
		n := w
		n.servers[i].view = w.catalog
		out = append(out, n)
	}
	if m.many() && i == 0 && (s.many || m.ranged || !s.held) {
		n := w
		if n.servers[i].many = !s.many; n.servers[i].many {
			n.servers[i].manyView, n.servers[i].seen = s.view, w.acked
		} else {
			n.servers[i].manyView, n.servers[i].seen = view{}, 0
		}
		out = append(out, n)
	}
	if !s.writing && !s.held && w.begun < m.writes() && (!m.many() || i == 1) {
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
		if m.swapFirst && !r.swapped {
			r.swapped, n.data[shardA] = true, 0
			return []world{n}
		}
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
		if !w.acknowledged() || m.reshards && !m.noReaders && !w.unread() {
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
		if m.reshards {
			return []world{swap(w, i)}
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

// swap does a part of Switch of a resharding: the copy takes the original's place, then the
// catalog knows, and all is open again.
func swap(w world, i int) world {
	r := &w.runners[i]
	if !r.swapped {
		r.swapped, w.data[shardA] = true, 0
		return w
	}
	w.state, w.catalog = catalog.MovementGone, view{owner: shardB, unowned: nowhere}
	w.done, r.alive = true, false
	return w
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
