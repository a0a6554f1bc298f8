// Package router decides where a client's operation goes and carries it there:
// it keeps the routing tables, admits operations through the gate, sends them to
// one shard or to several, merges what comes back, and holds cursors, sessions and
// transactions. DDL that changes routing uses its fence and barrier.
//
// It must not know SQL, client sockets or how a command's reply is spelled beyond
// what merging needs. Central types: Router (everything, New and Run), Snapshot
// (an immutable catalog state), Entry (one collection's table with its in-flight
// count), Op (one client command under way), Clock (the cluster time).
package router
