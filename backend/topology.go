package backend

import (
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/tag"
)

// member is one node of a replica set as the monitor last saw it.
type member struct {
	addr      string
	primary   bool
	secondary bool
	tags      tag.Set
	lastWrite time.Time
}

// topology is an immutable view of a replica set.
type topology struct {
	members []member
	changed chan struct{} // closed when a newer view has replaced this one
}

func newTopology(d *event.TopologyDescription) *topology {
	t := &topology{changed: make(chan struct{})}
	if d == nil {
		return t
	}
	for i := range d.Servers {
		s := &d.Servers[i]
		t.members = append(t.members, member{
			addr: string(s.Addr), primary: s.Kind == "RSPrimary", secondary: s.Kind == "RSSecondary",
			tags: s.Tags, lastWrite: s.LastWriteTime,
		})
	}
	return t
}

// Mode is a read preference's mode.
type Mode uint8

// The modes of $readPreference.
const (
	Primary Mode = iota
	PrimaryPreferred
	Secondary
	SecondaryPreferred
	Nearest
)

// ReadPref chooses a member. The zero value is the primary.
type ReadPref struct {
	Mode     Mode
	Tags     []tag.Set     // tried in order; empty: any
	MaxStale time.Duration // 0: any
}

// choose returns the address of a member that suits, or "". Of several it is one of those
// that are about as fast as the fastest.
func (t *topology) choose(p *ReadPref, l latencies) string {
	if p.Mode == Primary || p.Mode == PrimaryPreferred {
		for i := range t.members {
			if t.members[i].primary {
				return t.members[i].addr
			}
		}
		if p.Mode == Primary {
			return ""
		}
	}
	if addr := t.chooseTagged(p, l); addr != "" {
		return addr
	}
	if p.Mode == SecondaryPreferred {
		return t.choose(&ReadPref{}, l)
	}
	return ""
}

func (t *topology) chooseTagged(p *ReadPref, l latencies) string {
	sets := p.Tags
	if len(sets) == 0 {
		sets = []tag.Set{nil}
	}
	newest := t.newestWrite()
	for _, set := range sets {
		var fits []string
		for i := range t.members {
			m := &t.members[i]
			ok := m.secondary || (p.Mode == Nearest && m.primary)
			if ok && m.tags.ContainsAll(set) && !m.stale(newest, p.MaxStale) {
				fits = append(fits, m.addr)
			}
		}
		if fits = l.near(fits); len(fits) > 0 {
			return fits[rand.IntN(len(fits))]
		}
	}
	return ""
}

func (t *topology) newestWrite() time.Time {
	var newest time.Time
	for i := range t.members {
		if t.members[i].lastWrite.After(newest) {
			newest = t.members[i].lastWrite
		}
	}
	return newest
}

func (m *member) stale(newest time.Time, limit time.Duration) bool {
	return limit > 0 && newest.Sub(m.lastWrite) > limit
}
