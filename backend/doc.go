// Package backend makes a replica set one thing to talk to: it follows the set's
// topology, keeps bounded pools of authenticated connections to its members,
// chooses a member by read preference, and says what kind of failure an attempt
// met and whether it may be repeated.
//
// It must not know routing, chunks, clients or the catalog. Central types: Shard (one
// set), Request (one message for it) and Error (a failure that answers questions).
//
// Discovery, monitoring and administration use the MongoDB driver; data travels
// over connections of our own, which carry raw messages (docs/architecture.md says
// why).
package backend
