package catalogtest

import (
	"testing"

	"github.com/shardgate/shardgate/catalog"
)

// Run tests the Stores that newStore makes. Each must be a new, empty catalog;
// the suite closes it.
func Run(t *testing.T, newStore func(t *testing.T) catalog.Store) {
	tests := []struct {
		name string
		run  func(f *fixture)
	}{
		{"New", testNew},
		{"ApplyRoundTrip", testRoundTrip},
		{"ApplyReplaces", testReplaces},
		{"ApplyRaisesVersionByOne", testVersions},
		{"ApplyRowOnly", testRows},
		{"ApplyExpect", testExpect},
		{"ApplyExpectDatabase", testExpectDatabase},
		{"ApplyReferences", testReferences},
		{"ApplyInvalid", testInvalid},
		{"ApplyNotShared", testNotShared},
		{"ApplyDropAndPut", testDropAndPut},
		{"Movements", testMovements},
		{"MovementsRefused", testMovementsRefused},
		{"ChunkEdit", testChunkEdit},
		{"ChunkEditRefused", testChunkEditRefused},
		{"DeltaOnlyChanges", testDeltaOnlyChanges},
		{"DeltaDrops", testDeltaDrops},
		{"DeltaDropRecreate", testDeltaDropRecreate},
		{"DeltaDropDatabase", testDeltaDropDatabase},
		{"DeltaAfterEdit", testDeltaAfterEdit},
		{"DeltaAhead", testDeltaAhead},
		{"Log", testLog},
		{"RegisterNumbers", testRegisterNumbers},
		{"RegisterReplaces", testRegisterReplaces},
		{"Heartbeat", testHeartbeat},
		{"Deregister", testDeregister},
		{"Evict", testEvict},
		{"EvictedJoinsAgain", testEvictedJoinsAgain},
		{"LockBreak", testBreak},
		{"LockConflicts", testLockConflicts},
		{"LockTokens", testLockTokens},
		{"LockNeedsRouter", testLockNeedsRouter},
		{"LockGuardsApply", testLockGuardsApply},
		{"LockGoesWithRouter", testLockGoesWithRouter},
		{"WatchHints", testWatchHints},
		{"WatchEnds", testWatchEnds},
		{"RaceLock", testRaceLock},
		{"RaceDatabaseLock", testRaceDatabaseLock},
		{"RaceExpect", testRaceExpect},
		{"RaceVersions", testRaceVersions},
		{"RaceRegister", testRaceRegister},
		{"RaceLoad", testRaceLoad},
		{"ContextEnded", testContextEnded},
		{"Closed", testClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(newFixture(t, newStore)) })
	}
}
