// Package server accepts clients and runs the loop of each connection: read a
// message, hand it to the Handler, write the reply.
//
// It must not know commands beyond the framing, nor shards or the catalog. Central
// types: Server (New builds and binds, Run lives until all is stopped), Conn (one
// client, given to the Handler) and the Handler interface, which this package owns
// and the commands package implements.
package server
