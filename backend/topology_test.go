package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/tag"
)

func TestParseHost(t *testing.T) {
	t.Parallel()
	set, hosts, err := ParseHost("rs0/a:1,b,[::1]:2")
	require.NoError(t, err)
	require.Equal(t, "rs0", set)
	require.Equal(t, []string{"a:1", "b:27017", "[::1]:2"}, hosts)
	for _, bad := range []string{"", "a:1", "/a:1", "rs0/", "rs0/a:1,", "rs0/,a:1", "rs0/a:1,,b:1"} {
		_, _, err := ParseHost(bad)
		require.Error(t, err, bad)
	}
}

func tags(pairs ...string) tag.Set {
	var s tag.Set
	for i := 0; i < len(pairs); i += 2 {
		s = append(s, tag.Tag{Name: pairs[i], Value: pairs[i+1]})
	}
	return s
}

// chosen is every member that choose returns in many tries; "" where it returns none.
func chosen(topo *topology, p ReadPref) map[string]bool { return chosenOf(topo, p, nil) }

func chosenOf(topo *topology, p ReadPref, l latencies) map[string]bool {
	got := map[string]bool{}
	for range 200 {
		got[topo.choose(&p, l)] = true
	}
	return got
}

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

func TestChoose(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := member{addr: "p", primary: true, tags: tags("dc", "east"), lastWrite: now}
	s1 := member{addr: "s1", secondary: true, tags: tags("dc", "east", "disk", "ssd"), lastWrite: now.Add(-10 * time.Second)}
	s2 := member{addr: "s2", secondary: true, tags: tags("dc", "west"), lastWrite: now.Add(-200 * time.Second)}
	down := member{addr: "down", tags: tags("dc", "east")}
	all := newTopology(nil)
	all.members = []member{down, s1, p, s2}
	headless := newTopology(nil)
	headless.members = []member{down, s1, s2}
	alone := newTopology(nil)
	alone.members = []member{p, down}

	east, west, nowhere := tags("dc", "east"), tags("dc", "west"), tags("dc", "north")
	for _, c := range []struct {
		name                 string
		pref                 ReadPref
		all, headless, alone map[string]bool
	}{
		{"primary", ReadPref{}, set("p"), set(""), set("p")},
		{"primaryPreferred", ReadPref{Mode: PrimaryPreferred}, set("p"), set("s1", "s2"), set("p")},
		{"secondary", ReadPref{Mode: Secondary}, set("s1", "s2"), set("s1", "s2"), set("")},
		{"secondaryPreferred", ReadPref{Mode: SecondaryPreferred}, set("s1", "s2"), set("s1", "s2"), set("p")},
		{"nearest", ReadPref{Mode: Nearest}, set("p", "s1", "s2"), set("s1", "s2"), set("p")},

		{"secondary east", ReadPref{Mode: Secondary, Tags: []tag.Set{east}}, set("s1"), set("s1"), set("")},
		{"secondary of several tags", ReadPref{Mode: Secondary, Tags: []tag.Set{tags("disk", "ssd", "dc", "west")}}, set(""), set(""), set("")},
		{"secondary north, else west", ReadPref{Mode: Secondary, Tags: []tag.Set{nowhere, west}}, set("s2"), set("s2"), set("")},
		{"secondary west, else east", ReadPref{Mode: Secondary, Tags: []tag.Set{west, east}}, set("s2"), set("s2"), set("")},
		{"secondary north, else any", ReadPref{Mode: Secondary, Tags: []tag.Set{nowhere, {}}}, set("s1", "s2"), set("s1", "s2"), set("")},
		{"secondaryPreferred north", ReadPref{Mode: SecondaryPreferred, Tags: []tag.Set{nowhere}}, set("p"), set(""), set("p")},
		{"primaryPreferred west", ReadPref{Mode: PrimaryPreferred, Tags: []tag.Set{west}}, set("p"), set("s2"), set("p")},
		{"nearest east", ReadPref{Mode: Nearest, Tags: []tag.Set{east}}, set("p", "s1"), set("s1"), set("p")},

		{"secondary of the last 90 s", ReadPref{Mode: Secondary, MaxStale: 90 * time.Second}, set("s1"), set("s1", "s2"), set("")},
		{"secondary of the last 189 s", ReadPref{Mode: Secondary, MaxStale: 189 * time.Second}, set("s1"), set("s1"), set("")},
		{"secondary of the last 200 s", ReadPref{Mode: Secondary, MaxStale: 200 * time.Second}, set("s1", "s2"), set("s1", "s2"), set("")},
		{"nearest of the last 90 s", ReadPref{Mode: Nearest, MaxStale: 90 * time.Second}, set("p", "s1"), nil, set("p")},
	} {
		require.Equal(t, c.all, chosen(all, c.pref), "%s, all there", c.name)
		if c.name == "secondary of the last 90 s" || c.headless == nil {
			continue // against the newest secondary: the next cases
		}
		require.Equal(t, c.headless, chosen(headless, c.pref), "%s, no primary", c.name)
		require.Equal(t, c.alone, chosen(alone, c.pref), "%s, primary alone", c.name)
	}
	// Without a primary, staleness is against the newest secondary: s2 is 190 s behind.
	require.Equal(t, set("s1"), chosen(headless, ReadPref{Mode: Secondary, MaxStale: 189 * time.Second}))
	require.Equal(t, set("s1", "s2"), chosen(headless, ReadPref{Mode: Secondary, MaxStale: 190 * time.Second}))
	require.Equal(t, set(""), chosen(newTopology(nil), ReadPref{Mode: Nearest}))
}

// TestChooseFast: among those that suit, the ones within 15 ms of the fastest get reads.
func TestChooseFast(t *testing.T) {
	t.Parallel()
	topo := newTopology(nil)
	topo.members = []member{
		{addr: "p", primary: true, tags: tags("dc", "east")}, {addr: "s1", secondary: true, tags: tags("dc", "west")}, {addr: "s2", secondary: true, tags: tags("dc", "west")},
	}
	ms := func(p, s1, s2 int) latencies {
		of := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
		return latencies{"p": of(p), "s1": of(s1), "s2": of(s2)}
	}
	west := []tag.Set{tags("dc", "west")}
	for _, c := range []struct {
		name string
		pref ReadPref
		l    latencies
		want map[string]bool
	}{
		{"all alike", ReadPref{Mode: Nearest}, ms(1, 2, 3), set("p", "s1", "s2")},
		{"at the edge", ReadPref{Mode: Nearest}, ms(1, 16, 17), set("p", "s1")},
		{"a secondary is nearest", ReadPref{Mode: Nearest}, ms(40, 1, 90), set("s1")},
		{"the fastest that suits counts", ReadPref{Mode: Secondary}, ms(1, 30, 40), set("s1", "s2")},
		{"of the secondaries one", ReadPref{Mode: Secondary}, ms(1, 30, 50), set("s1")},
		{"secondaryPreferred", ReadPref{Mode: SecondaryPreferred}, ms(1, 50, 30), set("s2")},
		{"tags come first", ReadPref{Mode: Nearest, Tags: west}, ms(1, 100, 200), set("s1")},
		{"the primary is the primary", ReadPref{Mode: PrimaryPreferred}, ms(90, 1, 1), set("p")},
		{"not measured yet", ReadPref{Mode: Nearest}, latencies{"p": time.Millisecond, "s1": time.Second}, set("p", "s2")},
		{"none measured", ReadPref{Mode: Nearest}, latencies{}, set("p", "s1", "s2")},
	} {
		require.Equal(t, c.want, chosenOf(topo, c.pref, c.l), c.name)
	}
}

// TestLatencyIsAveraged: one slow answer does not take a member out.
func TestLatencyIsAveraged(t *testing.T) {
	t.Parallel()
	l := latencies{}.with("a", 10*time.Millisecond)
	require.Equal(t, 10*time.Millisecond, l["a"])
	l = l.with("b", time.Millisecond)
	next := l.with("a", 60*time.Millisecond)
	require.Equal(t, latencies{"a": 20 * time.Millisecond, "b": time.Millisecond}, next)
	require.Equal(t, 10*time.Millisecond, l["a"], "the old one is as it was")
}

func TestNewTopology(t *testing.T) {
	t.Parallel()
	at := time.Unix(5, 0)
	topo := newTopology(&event.TopologyDescription{Servers: []event.ServerDescription{
		{Addr: address.Address("a:1"), Kind: "RSPrimary", LastWriteTime: at, Tags: tags("x", "y")},
		{Addr: address.Address("b:1"), Kind: "RSSecondary"},
		{Addr: address.Address("c:1"), Kind: "RSArbiter"},
		{Addr: address.Address("d:1"), Kind: "Unknown"},
	}})
	require.Equal(t, []member{
		{addr: "a:1", primary: true, lastWrite: at, tags: tags("x", "y")},
		{addr: "b:1", secondary: true},
		{addr: "c:1"},
		{addr: "d:1"},
	}, topo.members)
}
