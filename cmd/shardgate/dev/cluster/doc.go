// Package cluster runs a whole shardgate on one machine: PostgreSQL for the catalog, replica sets for the shards, routers.
//
// `shardgate dev` and the tests start the same thing: [Start] returns a [Cluster] whose [Node] values can be stopped, killed,
// paused and started again, and always keep their ports. Everything listens on the loopback address only and dies with this
// process (package proc). All state is in one folder, which can be started again later; cluster.json in it says what runs
// where, for programs that look from outside.
//
// The package knows the router as a program with a configuration file; nothing of it is imported.
package cluster
