package router

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/binary"
	"sync/atomic"

	"github.com/shardgate/shardgate/wire"
)

// Clock is the router's own cluster time: the greatest time any shard has
// reported. It never goes back. Times given to clients are signed with a key that
// all routers share through the catalog, so a time is believed when another router
// gave it out and ignored when a client made it up: a client's time is never
// forwarded to a shard (CASES.md, "facts of the same kind").
type Clock struct {
	now  atomic.Uint64
	key  []byte
	last atomic.Pointer[wire.ClusterTime] // newest signed time
}

// signedRange is how many ordinals share one signature: it covers the time with
// its low bits set, so that one serves for a whole range, as mongos does it too.
const signedRange = 1<<16 - 1

// NewClock returns a clock that signs with key.
func NewClock(key []byte) *Clock { return &Clock{key: key} }

// setKey sets the key before the clock is first used.
func (c *Clock) setKey(key []byte) { c.key = key }

// Now returns the cluster time, 0 before any shard answered.
func (c *Clock) Now() uint64 { return c.now.Load() }

// Advance raises the clock to t.
func (c *Clock) Advance(t uint64) {
	for {
		now := c.now.Load()
		if t <= now || c.now.CompareAndSwap(now, t) {
			return
		}
	}
}

// Signed returns the cluster time with its proof, nil before any shard answered.
// The value is shared and must not be changed.
func (c *Clock) Signed() *wire.ClusterTime {
	now := c.now.Load()
	if now == 0 {
		return nil
	}
	last := c.last.Load()
	if last != nil && last.Time == now {
		return last
	}
	next := &wire.ClusterTime{Time: now, KeyID: 1}
	if last != nil && last.Time|signedRange == now|signedRange {
		next.Hash = last.Hash
	} else {
		next.Hash = c.sign(now)
	}
	c.last.Store(next)
	return next
}

// Learn raises the clock to a time that a client brings, if a router of this
// cluster signed it.
func (c *Clock) Learn(t wire.ClusterTime) {
	if t.Time <= c.now.Load() {
		return
	}
	want := c.sign(t.Time)
	if hmac.Equal(want[:], t.Hash[:]) {
		c.Advance(t.Time)
	}
}

func (c *Clock) sign(t uint64) (sum [20]byte) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], t|signedRange)
	m := hmac.New(sha1.New, c.key)
	m.Write(b[:])
	m.Sum(sum[:0])
	return sum
}
