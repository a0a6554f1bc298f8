package catalog

import (
	"time"

	"github.com/google/uuid"
)

// MovementState says how far a movement is.
type MovementState string

// The states of a movement. Until it is switched, the donor owns the collection and the
// movement can be undone; from then on it can only be finished.
const (
	MovementCopying  MovementState = "copying"  // the recipient's copy is being made
	MovementSwitched MovementState = "switched" // the recipient owns it, writes are still held back
	MovementLeaving  MovementState = "leaving"  // writes flow; the donor's copy is to be dropped
	MovementGone     MovementState = "gone"     // it is dropped; the donor may know results of retryable writes
)

// Movement is an unsharded collection on its way from one shard to another, or that has
// lately been.
type Movement struct {
	ID         uuid.UUID // of this attempt alone
	NS         string
	Collection uuid.UUID
	From, To   string // shard ids: donor and recipient
	State      MovementState
	At         Timestamp // cluster time of the switch, 0 before
	Since      time.Time // when it was switched, before that when it began
}

func (m *Movement) validate() error {
	if db, coll := SplitNS(m.NS); db == "" || coll == "" || m.ID == uuid.Nil || m.From == "" || m.To == "" || m.From == m.To {
		return invalid(m.NS, "has a movement without id, name or two shards")
	}
	switch m.State {
	case MovementCopying, MovementSwitched, MovementLeaving, MovementGone:
		return nil
	default:
		return invalid(m.NS, "has a movement without state")
	}
}
