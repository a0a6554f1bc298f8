// Package pg keeps the catalog in PostgreSQL 15 or newer, in the schema
// "shardgate". [Store] is its only important type.
//
// Every change is one transaction. It locks the single row that holds the
// catalog's version, so changes are strictly one after the other; checks what the
// change expects; writes; raises the version; and notifies. Rows carry the version
// that last changed them and removed ones leave a tombstone for a while, so Load
// reads only what is new, in one snapshot. What must always hold (chunks are on
// known shards, collections in known databases) is also said by the schema.
//
// Nothing here outlives a connection: locks and registrations are rows, and a
// router that was cut off, paused or killed leaves nothing behind but those.
// Every wait has a limit, on this side and in the server, where a transaction
// left open by a router that was stopped is ended and so cannot stop the others.
//
// The package must not know what the catalog's content means to routing.
package pg
