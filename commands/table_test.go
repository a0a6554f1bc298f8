package commands

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestTableRows(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	states := map[string]int{}
	table := Table()
	for i := range table {
		c := &table[i]
		for _, name := range append([]string{c.Name}, c.Aliases...) {
			require.Regexp(t, "^_?[A-Za-z][A-Za-z0-9]+$", name)
			require.False(t, seen[name], "%s is there twice", name)
			seen[name] = true
		}
		states[c.State()]++
		switch c.State() {
		case "works", "refused":
			require.NotNil(t, c.run, c.Name)
			require.Regexp(t, `^[A-Z].*\.$`, c.Help, c.Name)
		case "not yet":
			require.Nil(t, c.run, c.Name)
		default:
			require.Fail(t, "unknown state", "%s: %s", c.Name, c.State())
		}
		require.False(t, c.Committal && !c.Txn, c.Name)
		require.False(t, c.Retryable && !c.Write, c.Name)
	}
	require.Len(t, states, 3)
	require.Greater(t, states["works"], 40)
}

// TestTableIsSorted within each part.
func TestTableIsSorted(t *testing.T) {
	t.Parallel()
	for _, part := range [][]Command{crud(), ddl(), sharding(), sessions(), diagnostics(), refused(), notYet()} {
		var names []string
		for i := range part {
			names = append(names, part[i].Name)
		}
		require.True(t, slices.IsSorted(names), "%v", names)
	}
}

// mongosCommands are the names that a mongos lists (4.4, MONGOS-REPLIES.md).
const mongosCommands = `_isSelf _killOperations _mergeAuthzCollections abortTransaction addShard addShardToZone aggregate
authenticate availableQueryOptions balancerCollectionStatus balancerStart balancerStatus balancerStop buildInfo clearJumboFlag
collMod collStats commitTransaction compact connPoolStats connPoolSync connectionStatus convertToCapped count create
createIndexes createRole createUser currentOp dataSize dbStats delete distinct drop dropAllRolesFromDatabase
dropAllUsersFromDatabase dropConnections dropDatabase dropIndexes dropRole dropUser enableSharding endSessions explain features
filemd5 find findAndModify flushRouterConfig fsync getCmdLineOpts getDefaultRWConcern getDiagnosticData getLastError getLog
getMore getParameter getShardMap getShardVersion getnonce grantPrivilegesToRole grantRolesToRole grantRolesToUser hostInfo
insert invalidateUserCache isMaster isdbgrid killAllSessions killAllSessionsByPattern killCursors killOp killSessions
listCollections listCommands listDatabases listIndexes listShards logRotate logout mapReduce mergeChunks moveChunk movePrimary
netstat ping planCacheClear planCacheClearFilters planCacheListFilters planCacheSetFilter profile refineCollectionShardKey
refreshSessions removeShard removeShardFromZone renameCollection replSetGetStatus resetError revokePrivilegesFromRole
revokeRolesFromRole revokeRolesFromUser rolesInfo saslContinue saslStart serverStatus setDefaultRWConcern
setFeatureCompatibilityVersion setIndexCommitQuorum setParameter shardCollection shardConnPoolStats shutdown split splitVector
startRecordingTraffic startSession stopRecordingTraffic update updateRole updateUser updateZoneKeyRange usersInfo validate
waitForFailPoint whatsmyuri`

// absent are those that shardgate does not know on purpose, and why.
func absent() map[string]string {
	const internal, gone, tool = "internal", "gone by MongoDB 6.0", "a tool of MongoDB's own tests"
	return map[string]string{
		"_isSelf": internal, "_killOperations": internal, "_mergeAuthzCollections": internal,
		"availableQueryOptions": gone, "getLastError": gone, "resetError": gone, "shardConnPoolStats": gone,
		"startRecordingTraffic": tool, "stopRecordingTraffic": tool, "waitForFailPoint": tool,
	}
}

func TestTableKnowsWhatAMongosKnows(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	table := Table()
	for i := range table {
		known[table[i].Name] = true
	}
	names := strings.Fields(mongosCommands)
	require.Len(t, names, 125)
	for _, name := range names {
		require.NotEqual(t, known[name], absent()[name] != "", "%s must be in the table or be absent for a reason", name)
	}
	for name := range absent() {
		require.Contains(t, names, name)
	}
}

// TestListCommandsIsTheTable also asks every command that is not there yet.
func TestListCommandsIsTheTable(t *testing.T) {
	t.Parallel()
	c := connect(t)
	list, err := c.run("admin", e("listCommands", int32(1))).Lookup("commands").Document().Elements()
	require.NoError(t, err)
	table := Table()
	require.Len(t, list, len(table))
	for i := range table {
		row := &table[i]
		require.Equal(t, row.Name, list[i].Key())
		d := list[i].Value().Document()
		require.Equal(t, row.AdminOnly, d.Lookup("adminOnly").Boolean())
		require.NotEmpty(t, d.Lookup("help").StringValue())
		switch row.State() {
		case "not yet":
			require.Equal(t, int32(238), code(t, c.run("admin", e(row.Name, int32(1)))), row.Name)
		case "works":
			d := c.run("admin", e(row.Name, int32(1)), e("help", true))
			require.Zero(t, code(t, d), row.Name)
			require.Contains(t, d.Lookup("help").StringValue(), row.Name)
		}
	}
	require.Equal(t, int32(115), code(t, c.run("d", e("compact", "c"))))
	d := c.run("admin", e("replSetGetStatus", int32(1)))
	require.Equal(t, 0.0, d.Lookup("ok").Double())
	require.Equal(t, "mongos", d.Lookup("info").StringValue())
	_, err = d.LookupErr("code")
	require.Error(t, err, "tools know a router by it")
}

// TestAliases answer like the name.
func TestAliases(t *testing.T) {
	t.Parallel()
	c := connect(t)
	table := Table()
	for i := range table {
		for _, alias := range table[i].Aliases {
			d := c.run("admin", e(alias, int32(1)), e("help", true))
			require.Zero(t, code(t, d), alias)
		}
	}
	require.Equal(t, bson.TypeString, c.run("admin", e("buildinfo", int32(1))).Lookup("version").Type)
}
