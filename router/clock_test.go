package router

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/wire"
)

func TestClockNeverGoesBack(t *testing.T) {
	t.Parallel()
	c := NewClock([]byte("key"))
	require.Zero(t, c.Now())
	require.Nil(t, c.Signed(), "there is nothing to say yet")
	for _, s := range []struct{ to, want uint64 }{{5 << 32, 5 << 32}, {4<<32 | 9, 5 << 32}, {5<<32 | 1, 5<<32 | 1}, {0, 5<<32 | 1}} {
		c.Advance(s.to)
		require.Equal(t, s.want, c.Now())
		require.Equal(t, s.want, c.Signed().Time)
	}
}

func TestClockManyAtOnce(t *testing.T) {
	t.Parallel()
	c := NewClock([]byte("key"))
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			last := uint64(0)
			for i := range uint64(2000) {
				c.Advance(1<<32 + i*8 + g)
				s := c.Signed().Time
				if s < last || c.Now() < 1<<32+i*8+g {
					t.Error("the clock went back")
					return
				}
				last = c.Now()
			}
		})
	}
	wg.Wait()
	require.Equal(t, uint64(1<<32+1999*8+7), c.Now())
}

func TestClockLearnsWhatIsSigned(t *testing.T) {
	t.Parallel()
	ours, theirs := NewClock([]byte("key")), NewClock([]byte("another key"))
	const now = 1000<<32 | 7
	ours.Advance(now)
	theirs.Advance(now)

	fresh := NewClock([]byte("key"))
	fresh.Learn(*theirs.Signed())
	require.Zero(t, fresh.Now(), "signed by somebody else")
	forged := *ours.Signed()
	forged.Time += 1 << 32
	fresh.Learn(forged)
	require.Zero(t, fresh.Now(), "the proof is for another time")
	fresh.Learn(wire.ClusterTime{Time: now})
	require.Zero(t, fresh.Now(), "no proof at all")

	fresh.Learn(*ours.Signed())
	require.Equal(t, uint64(now), fresh.Now())
	fresh.Learn(wire.ClusterTime{Time: 5, Hash: ours.sign(5)})
	require.Equal(t, uint64(now), fresh.Now(), "an old time changes nothing")
}

// TestClockSharesSignatures: one signature serves a range of ordinals, for giving out
// and for believing.
func TestClockSharesSignatures(t *testing.T) {
	t.Parallel()
	c := NewClock([]byte("key"))
	c.Advance(9<<32 | 1)
	first := *c.Signed()
	require.Same(t, c.Signed(), c.Signed())
	c.Advance(9<<32 | signedRange)
	require.Equal(t, first.Hash, c.Signed().Hash)
	require.NotEqual(t, first.Time, c.Signed().Time)
	c.Advance(9<<32 | signedRange + 1)
	require.NotEqual(t, first.Hash, c.Signed().Hash)
	c.Advance(10 << 32)
	require.NotEqual(t, first.Hash, c.Signed().Hash)

	other := NewClock([]byte("key"))
	other.Learn(wire.ClusterTime{Time: 9<<32 | 500, Hash: first.Hash})
	require.Equal(t, uint64(9<<32|500), other.Now())
	other.Learn(wire.ClusterTime{Time: 9<<32 | signedRange + 1, Hash: first.Hash})
	require.Equal(t, uint64(9<<32|500), other.Now(), "beyond the range")
}
