package catalog

import (
	"bytes"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
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

// Range is [Min, Max) of a collection's shard-key values.
type Range struct {
	Min, Max bson.Raw // bound documents, with the key's field names
	// MinKey and MaxKey are the bounds in shardkey's order-preserving form.
	MinKey, MaxKey []byte
}

// Overlaps reports whether two ranges have values in common.
func (r *Range) Overlaps(o *Range) bool {
	return bytes.Compare(r.MinKey, o.MaxKey) < 0 && bytes.Compare(o.MinKey, r.MaxKey) < 0
}

// Movement is a collection, or a range of a sharded one, on its way from one shard to
// another, or that has lately been.
type Movement struct {
	ID         uuid.UUID // of this attempt alone
	NS         string
	Collection uuid.UUID
	From, To   string // shard ids: donor and recipient
	Range      *Range // of a sharded collection; nil: the whole of one
	// Layout: the collection is resharded. From is then the donor that keeps the outcome, and To
	// one of the layout's shards; they may be the same. When it is done there is a row of
	// MovementGone for each donor, without chunks.
	//
	// Without a layout both are the same where the collection has left its name: it was renamed,
	// and the shard knows writes that clients may repeat under that.
	Layout *Layout
	State  MovementState
	At     Timestamp // cluster time of the switch, 0 before
	Since  time.Time // when it was switched, before that when it began
}

// Unowned returns the shard that may have documents of the movement which it does not own:
// the recipient until the switch, then the donor, until its copy is gone ("").
func (m *Movement) Unowned() string {
	switch m.State {
	case MovementCopying:
		return m.To
	case MovementSwitched, MovementLeaving:
		return m.From
	default:
		return ""
	}
}

// Renamed reports whether it says that the collection has another name now.
func (m *Movement) Renamed() bool { return m.From == m.To && m.Layout == nil }

func (m *Movement) validate() error {
	if db, coll := SplitNS(m.NS); db == "" || coll == "" || m.ID == uuid.Nil || m.From == "" || m.To == "" || m.From == m.To && m.Layout == nil && m.State != MovementGone {
		return invalid(m.NS, "has a movement without id, name or two shards")
	}
	if l := m.Layout; l != nil && (l.UUID == uuid.Nil || len(l.Chunks) == 0 && m.State == MovementCopying || m.Range != nil) {
		return invalid(m.NS, "has a resharding without id or chunks, or of a range")
	}
	if r := m.Range; r != nil && (bytes.Compare(r.MinKey, r.MaxKey) >= 0 || r.Min.Validate() != nil || r.Max.Validate() != nil) {
		return invalid(m.NS, "has a movement of no range")
	}
	switch m.State {
	case MovementCopying, MovementSwitched, MovementLeaving, MovementGone:
		return nil
	default:
		return invalid(m.NS, "has a movement without state")
	}
}
