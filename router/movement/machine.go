package movement

import "github.com/shardgate/shardgate/catalog"

// Outcome is what the shards have on record of a movement. The first record on the donor
// decides for ever: a second one is refused there.
type Outcome int

// The outcomes.
const (
	OutcomeNone     Outcome = iota // nothing is on record, as far as is known
	OutcomeSwitched                // the recipient owns the collection from now on
	OutcomeUndone                  // the donor stays the owner
)

// Facts are what a router knows of a movement whose lock it holds.
type Facts struct {
	State    catalog.MovementState // in the catalog
	Held     bool                  // in the catalog: writes to the collection are held back
	Recorded Outcome

	// What the router that began the movement has done itself. Another one that finds it
	// left behind knows nothing of it: before the switch it can only undo.
	Mine    bool
	Failed  bool // a step has failed: there is no use in going on
	Known   bool // nothing that knows nothing of the copy can meet it on the recipient
	Shaped  bool // the recipient has the empty collection
	Copied  bool // it has all documents, but for the latest changes
	Drained bool // writes are held, and none is in flight, in an open transaction or lost
	Equal   bool // both copies are equal, and stay so while writes are held

	Acknowledged bool // every router acts by the catalog's present version
	Unread       bool // nothing reads the donor's copy any more, or it has been kept long enough
	Forgotten    bool // no client repeats a write of before the switch any more
}

// Action is what is to be done next.
type Action int

// The actions, in the order of an undisturbed movement.
const (
	Announce Action = iota // wait until nothing reads or writes the recipient that would take the copy for its own
	Shape                  // make the recipient's collection
	Copy                   // copy, and follow the changes, until little is left
	Hold                   // have writes held back by all routers
	Drain                  // wait until no write is in flight
	CatchUp                // follow the changes to their end, and compare
	Record                 // record the switch on the shards: the point of no return
	Switch                 // make the recipient the owner in the catalog
	Await                  // wait until every router acts by the catalog's version
	Release                // let writes flow
	Keep                   // nothing yet: the donor's copy is still read
	Clean                  // drop the donor's copy
	Recall                 // nothing yet: the donor may be asked about repeated writes
	Forget                 // take the row away
	Undo                   // record that it is undone, drop the recipient's copy, let writes flow
)

// Next decides what a movement does next.
func Next(f Facts) Action {
	switch f.State {
	case catalog.MovementCopying:
		return f.copying()
	case catalog.MovementSwitched:
		if !f.Acknowledged {
			return Await
		}
		return Release
	case catalog.MovementLeaving:
		if !f.Unread {
			return Keep
		}
		return Clean
	default:
		if !f.Forgotten {
			return Recall
		}
		return Forget
	}
}

// copying is Next before the catalog knows of a switch.
func (f *Facts) copying() Action {
	switch {
	case f.Recorded == OutcomeSwitched:
		return Switch // whatever the catalog has forgotten, or not learnt yet
	case f.Recorded == OutcomeUndone, !f.Mine, f.Failed:
		return Undo
	case !f.Known:
		return Announce
	case !f.Shaped:
		return Shape
	case !f.Copied:
		return Copy
	case !f.Held:
		return Hold
	case !f.Drained:
		return Drain
	case !f.Equal:
		return CatchUp
	default:
		return Record
	}
}

// String names the action in logs.
func (a Action) String() string {
	return [...]string{
		"announce", "shape", "copy", "hold", "drain", "catchUp", "record", "switch", "await", "release", "keep", "clean",
		"recall", "forget", "undo",
	}[a]
}
