package router

import (
	"slices"
	"time"

	"github.com/shardgate/shardgate/router/target"
)

// Trace is what an operation did on its way, for the log.
type Trace struct {
	Asked []Asked    // in the order of the answers
	Why   target.Why // the shards of a sharded collection were chosen
}

// Cleared returns an empty Trace that goes on in the memory of this one.
func (t *Trace) Cleared() Trace { return Trace{Asked: t.Asked[:0]} }

// Asked is one round trip to a shard.
type Asked struct {
	Shard string
	Took  time.Duration
}

// Width is how many different shards were asked.
func (t *Trace) Width() int {
	var room [8]string
	seen := room[:0]
	for i := range t.Asked {
		if !slices.Contains(seen, t.Asked[i].Shard) {
			seen = append(seen, t.Asked[i].Shard)
		}
	}
	return len(seen)
}

// Scattered reports whether more than one shard was asked.
func (t *Trace) Scattered() bool {
	for i := range t.Asked {
		if t.Asked[i].Shard != t.Asked[0].Shard {
			return true
		}
	}
	return false
}
