package commands

import (
	"context"
	"sync/atomic"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/router/relay"
)

// Command is a row of the table.
type Command struct {
	Name    string
	Aliases []string
	Help    string // one sentence, for help, listCommands and the README

	AdminOnly    bool // only on the admin database
	Anonymous    bool // before login, and on any database
	OpQuery      bool // also as OP_QUERY
	Write        bool // writes: never on secondaries, not repeated without a txnNumber
	WriteConcern bool // takes a writeConcern though it is no write of documents
	AnyLevel     bool // takes read concerns of other levels than local; which, its shards say
	Txn          bool // allowed in a transaction
	Retryable    bool // may carry a txnNumber outside transactions
	Committal    bool // commitTransaction and abortTransaction
	KeepsMaxTime bool // maxTimeMS is not the operation's limit (getMore)
	APIv1        bool // in API version 1
	// EndsWithClient: is of no use when the client's connection has ended.
	EndsWithClient bool
	Refused        bool // answers with the error that a mongos answers

	// run answers the command; nil: 238 NotImplemented.
	run func(context.Context, *request) error

	calls, failed atomic.Int64
	observed      observed
}

type counters struct{ commands, failed atomic.Int64 }

func (c *counters) add(row *Command, err error) {
	c.commands.Add(1)
	if row != nil {
		row.calls.Add(1)
	}
	if err != nil {
		c.failed.Add(1)
		if row != nil {
			row.failed.Add(1)
		}
	}
}

// State says how far a command is: "works", "refused" or "not yet".
func (c *Command) State() string {
	switch {
	case c.Refused:
		return "refused"
	case c.run == nil:
		return "not yet"
	default:
		return "works"
	}
}

// Table returns the whole table, a fresh copy; please keep it sorted by name within
// its parts. A command that is not here answers 59 CommandNotFound.
func Table() []Command {
	var all []Command
	for _, part := range [][]Command{crud(), ddl(), sharding(), sessions(), diagnostics(), refused(), notYet()} {
		for i := range part {
			all = append(all, Command{})
			copyRow(&all[len(all)-1], &part[i])
		}
	}
	return all
}

func copyRow(to, from *Command) {
	to.Name, to.Aliases, to.Help = from.Name, from.Aliases, from.Help
	to.AdminOnly, to.Anonymous, to.OpQuery = from.AdminOnly, from.Anonymous, from.OpQuery
	to.Write, to.WriteConcern, to.AnyLevel, to.Txn = from.Write, from.WriteConcern, from.AnyLevel, from.Txn
	to.Retryable, to.Committal, to.KeepsMaxTime = from.Retryable, from.Committal, from.KeepsMaxTime
	to.APIv1, to.EndsWithClient, to.Refused, to.run = from.APIv1, from.EndsWithClient, from.Refused, from.run
}

func crud() []Command {
	return []Command{
		{Name: "aggregate", Help: "Runs an aggregation pipeline.", Txn: true, APIv1: true, WriteConcern: true, AnyLevel: true, EndsWithClient: true, run: aggregate},
		{Name: "count", Help: "Counts documents.", APIv1: true, AnyLevel: true, EndsWithClient: true, run: count},
		{Name: "delete", Help: "Deletes documents.", Write: true, Txn: true, Retryable: true, APIv1: true, run: write},
		{Name: "distinct", Help: "Lists the distinct values of a field.", Txn: true, APIv1: true, AnyLevel: true, EndsWithClient: true, run: distinct},
		{Name: "explain", Help: "Says how a command would run, and on which shards.", APIv1: true, EndsWithClient: true, run: explain},
		{Name: "find", Help: "Queries documents.", Txn: true, APIv1: true, AnyLevel: true, EndsWithClient: true, run: find},
		{Name: "findAndModify", Aliases: []string{"findandmodify"}, Help: "Changes one document and returns it.", Write: true, Txn: true, Retryable: true, APIv1: true, run: findAndModify},
		{Name: "getMore", Help: "Returns the next batch of a cursor.", Txn: true, APIv1: true, KeepsMaxTime: true, AnyLevel: true, EndsWithClient: true, run: getMore},
		{Name: "insert", Help: "Inserts documents.", Write: true, Txn: true, Retryable: true, APIv1: true, run: write},
		{Name: "killCursors", Help: "Closes cursors.", Txn: true, APIv1: true, AnyLevel: true, run: killCursors},
		{Name: "update", Help: "Updates documents.", Write: true, Txn: true, Retryable: true, APIv1: true, run: write},
	}
}

func ddl() []Command {
	return []Command{
		{Name: "collMod", Help: "Changes a collection's options and indexes.", WriteConcern: true, APIv1: true, run: collMod},
		{Name: "create", Help: "Makes a collection.", WriteConcern: true, APIv1: true, run: create},
		{Name: "createIndexes", Help: "Builds indexes on all shards that own the collection.", WriteConcern: true, APIv1: true, run: createIndexes},
		{Name: "drop", Help: "Drops a collection.", WriteConcern: true, APIv1: true, run: drop},
		{Name: "dropDatabase", Help: "Drops a database with all its collections.", WriteConcern: true, APIv1: true, run: dropDatabase},
		{Name: "dropIndexes", Aliases: []string{"deleteIndexes"}, Help: "Drops indexes.", WriteConcern: true, APIv1: true, run: dropIndexes},
		{Name: "listCollections", Help: "Lists a database's collections.", APIv1: true, run: listCollections},
		{Name: "listDatabases", Help: "Lists databases with their sizes over all shards.", AdminOnly: true, APIv1: true, run: listDatabases},
		{Name: "listIndexes", Help: "Lists a collection's indexes.", APIv1: true, run: listIndexes},
		{Name: "renameCollection", Help: "Gives a collection another name in its database.", AdminOnly: true, WriteConcern: true, run: renameCollection},
	}
}

func sharding() []Command {
	return []Command{
		{Name: "abortReshardCollection", Help: "Ends a resharding and leaves the collection as it was.", AdminOnly: true, WriteConcern: true, run: abortResharding(router.Resharding)},
		{Name: "abortUnshardCollection", Help: "Ends what unshardCollection does and leaves the collection as it was.", AdminOnly: true, WriteConcern: true, run: abortResharding(router.Unsharding)},
		{Name: "addShard", Help: "Adds a replica set as a shard.", AdminOnly: true, WriteConcern: true, run: addShard},
		{Name: "balancerCollectionStatus", Help: "Says whether a collection lies as a balancer would have it.", AdminOnly: true, run: balancerCollectionStatus},
		{Name: "balancerStart", Help: "Allows the balancer, which does not exist yet.", AdminOnly: true, WriteConcern: true, run: setBalancer},
		{Name: "balancerStatus", Help: "Says whether the balancer runs: it does not exist yet.", AdminOnly: true, run: balancerStatus},
		{Name: "balancerStop", Help: "Forbids the balancer, which does not exist yet.", AdminOnly: true, WriteConcern: true, run: setBalancer},
		{Name: "cleanupReshardCollection", Help: "Clears up what a dead router has left of a resharding.", AdminOnly: true, WriteConcern: true, run: cleanUpResharding},
		{Name: "clearJumboFlag", Help: "Takes the mark from a chunk that says that it is too large to move.", AdminOnly: true, WriteConcern: true, run: clearJumboFlag},
		{Name: "commitReshardCollection", Help: "Waits for a resharding to end.", AdminOnly: true, WriteConcern: true, run: commitResharding},
		{Name: "enableSharding", Help: "Makes a database.", AdminOnly: true, WriteConcern: true, run: enableSharding},
		{Name: "flushRouterConfig", Help: "Loads the routing tables anew.", AdminOnly: true, run: flushRouterConfig},
		{Name: "getShardMap", Help: "Lists the shards' connection strings.", AdminOnly: true, run: getShardMap},
		{Name: "getShardVersion", Help: "Says which version of a collection's routing table this router has.", AdminOnly: true, run: getShardVersion},
		{Name: "isdbgrid", Help: "Says that this is a router.", run: isdbgrid},
		{Name: "listShards", Help: "Lists the shards.", AdminOnly: true, run: listShards},
		{Name: "mergeAllChunksOnShard", Help: "Merges all neighbouring chunks of a collection on a shard.", AdminOnly: true, WriteConcern: true, run: mergeAllChunksOnShard},
		{Name: "mergeChunks", Help: "Makes one chunk of neighbours.", AdminOnly: true, WriteConcern: true, run: mergeChunks},
		{Name: "moveChunk", Help: "Moves a chunk of a sharded collection to another shard while it is in use.", AdminOnly: true, WriteConcern: true, run: moveChunk},
		{Name: "moveCollection", Help: "Moves an unsharded collection to another shard while it is in use.", AdminOnly: true, WriteConcern: true, run: moveCollection},
		{Name: "movePrimary", Aliases: []string{"moveprimary"}, Help: "Moves a database's unsharded collections off its primary shard, and makes another shard the primary.", AdminOnly: true, WriteConcern: true, run: movePrimary},
		{Name: "moveRange", Help: "Moves a range of shard-key values to another shard, cutting it off its chunk.", AdminOnly: true, WriteConcern: true, run: moveRange},
		{Name: "refineCollectionShardKey", Help: "Adds fields to a collection's shard key.", AdminOnly: true, WriteConcern: true, run: refineCollectionShardKey},
		{Name: "reshardCollection", Help: "Gives a sharded collection another shard key while it is in use.", AdminOnly: true, WriteConcern: true, run: reshardCollection},
		{Name: "setAllowMigrations", Help: "Allows or forbids moving a collection's chunks.", AdminOnly: true, WriteConcern: true, run: setAllowMigrations},
		{Name: "shardCollection", Help: "Shards a collection.", AdminOnly: true, WriteConcern: true, run: shardCollection},
		{Name: "split", Help: "Cuts a chunk in two.", AdminOnly: true, WriteConcern: true, run: split},
		{Name: "unshardCollection", Help: "Puts a sharded collection whole on one shard while it is in use.", AdminOnly: true, WriteConcern: true, run: unshardCollection},
	}
}

func sessions() []Command {
	return []Command{
		{Name: "abortTransaction", Help: "Aborts a transaction.", AdminOnly: true, WriteConcern: true, Txn: true, Committal: true, APIv1: true, run: endTransaction},
		{Name: "commitTransaction", Help: "Commits a transaction.", AdminOnly: true, WriteConcern: true, Txn: true, Committal: true, APIv1: true, run: endTransaction},
		{Name: "endSessions", Help: "Ends sessions.", APIv1: true, WriteConcern: true, run: sessionsCommand("endSessions")},
		{Name: "killSessions", Help: "Kills sessions and what they run.", run: sessionsCommand("killSessions")},
		{Name: "refreshSessions", Help: "Keeps sessions alive.", APIv1: true, run: sessionsCommand("refreshSessions")},
		{Name: "startSession", Help: "Gives out a session id.", run: startSession},
	}
}

func diagnostics() []Command {
	return []Command{
		{Name: relay.Command, Help: "Carries getMore and killCursors to the router that has the cursor. For routers alone.", AdminOnly: true, EndsWithClient: true, run: relayed},
		{Name: "buildInfo", Aliases: []string{"buildinfo"}, Help: "Says which version this is.", Anonymous: true, OpQuery: true, run: buildInfo},
		{Name: "connectionStatus", Help: "Says who is logged in.", Anonymous: true, run: connectionStatus},
		{Name: "dbStats", Aliases: []string{"dbstats"}, Help: "Adds up what all shards hold of a database.", run: dbStats},
		{Name: "fsync", Help: "Has all shards write what they hold to their disks.", AdminOnly: true, run: fsync},
		{Name: "getCmdLineOpts", Help: "Says how the program was started.", AdminOnly: true, run: getCmdLineOpts},
		{Name: "getLog", Help: "Returns recent warnings.", AdminOnly: true, run: getLog},
		{Name: "getParameter", Help: "Returns parameters.", AdminOnly: true, run: getParameter},
		{Name: "getnonce", Help: "Returns a random number, for a way of logging in that is gone.", Anonymous: true, run: getNonce},
		{Name: "hello", Help: "Introduces the router to a client.", Anonymous: true, OpQuery: true, APIv1: true, KeepsMaxTime: true, run: hello},
		{Name: "hostInfo", Help: "Describes the machine.", run: hostInfo},
		{Name: "isMaster", Aliases: []string{"ismaster"}, Help: "The old name of hello.", Anonymous: true, OpQuery: true, KeepsMaxTime: true, run: hello},
		{Name: "listCommands", Help: "Lists the commands.", run: listCommands},
		{Name: "ping", Help: "Answers.", Anonymous: true, APIv1: true, run: ping},
		{Name: "serverStatus", Help: "Returns the router's counters.", run: serverStatus},
		{Name: "usersInfo", Help: "Lists the users: there are none yet.", run: usersInfo},
		{Name: "validate", Help: "Checks a collection on all shards that own it.", run: validate},
		{Name: "whatsmyuri", Help: "Returns the client's address.", Anonymous: true, run: whatsmyuri},
	}
}

// refused are the commands that a mongos knows and refuses (MONGOS.md §1.2).
func refused() []Command {
	return []Command{
		{Name: "compact", Help: "Refused, as by mongos: run it on a shard.", Refused: true, run: refuseCompact},
		{Name: "replSetGetStatus", Help: "Refused, as by mongos.", AdminOnly: true, Refused: true, run: refuseReplSetGetStatus},
	}
}

// notYet are the commands that a mongos has and shardgate does not have yet: 238.
func notYet() []Command {
	names := []string{
		"abortMoveCollection", "addShardToZone", "analyzeShardKey", "appendOplogNote", "authenticate",
		"bulkWrite", "checkMetadataConsistency", "collStats", "configureCollectionBalancing",
		"configureQueryAnalyzer", "connPoolStats", "connPoolSync", "convertToCapped",
		"createRole", "createUser", "currentOp", "dataSize", "dropAllRolesFromDatabase",
		"dropAllUsersFromDatabase", "dropConnections", "dropRole", "dropUser", "features",
		"filemd5", "fsyncUnlock", "getClusterParameter", "getDefaultRWConcern",
		"getDiagnosticData", "grantPrivilegesToRole", "grantRolesToRole", "grantRolesToUser",
		"invalidateUserCache", "killAllSessions", "killAllSessionsByPattern", "killOp", "logRotate",
		"logout", "mapReduce", "netstat", "planCacheClear", "planCacheClearFilters",
		"planCacheListFilters", "planCacheSetFilter", "profile",
		"removeShard", "removeShardFromZone", "repairShardedCollectionChunksHistory",
		"revokePrivilegesFromRole", "revokeRolesFromRole", "revokeRolesFromUser",
		"rolesInfo", "rotateCertificates", "saslContinue", "saslStart",
		"setClusterParameter", "setDefaultRWConcern", "setFeatureCompatibilityVersion",
		"setIndexCommitQuorum", "setParameter", "setProfilingFilterGlobally", "setUserWriteBlockMode",
		"shutdown", "splitVector", "transitionFromDedicatedConfigServer",
		"transitionToDedicatedConfigServer", "updateRole", "updateUser",
		"updateZoneKeyRange", "validateDBMetadata",
	}
	rows := make([]Command, len(names))
	for i, n := range names {
		rows[i] = Command{Name: n, Write: true, AnyLevel: true, OpQuery: n == "saslStart" || n == "saslContinue"}
	}
	return rows
}
