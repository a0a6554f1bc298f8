// Package nullshard is a shard without data: it answers every command at once, so that what a router in front of it costs is the router's own.
//
// It speaks enough of the protocol to be taken for the primary of a replica set without authentication: hello, point finds and scans,
// sorted scans as a router asks for them, inserts, updates and deletes; everything else is answered with ok. It keeps nothing and checks
// nothing.
package nullshard
