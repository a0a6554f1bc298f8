// Package catalog defines what shardgate knows about a cluster: its shards,
// databases, collections and their chunks, its settings, and the routers that
// act by this knowledge.
//
// The central types are [Collection] and [Chunk] (who owns which keys), [Change]
// (one atomic step from a [Version] to the next), [Delta] (what a router must
// load to follow), [Lock] (which keeps operations of different routers apart) and
// [Store] (where all of it is kept). A Store never interprets shard keys; it
// compares their order-preserving bytes and holds to two rules, so that no
// caller's mistake and no race can break them: the chunks of a collection never
// overlap and leave no gap, and what a chunk or a collection refers to exists.
//
// The implementations are catalog/pg, for PostgreSQL, and catalog/mem, for tests;
// catalog/catalogtest is the suite that both pass. catalog/configdb shows the
// catalog as the documents of MongoDB's config database, and catalog/shardkey
// knows keys and their order.
//
// The package must not know sockets, commands or plans: it says what is so, not
// what to do about it. It imports nothing else of this module.
package catalog
