// Package relay carries a command from the router that a client has come to, to the one
// that can answer it.
//
// Both prove to each other that they know the cluster's key, which routers share through
// the catalog and nobody else has, before anything is relayed: the router that is asked
// believes what it is told of the client's user. The proof holds for one connection, and
// where that is encrypted for the two ends of its encryption, so that nobody can stand
// between them.
//
// It must not know what is relayed, nor the catalog. Central types: Peers (the
// connections to other routers), Door (the other end of one), Secret.
package relay
