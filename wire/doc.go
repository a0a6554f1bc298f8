// Package wire reads and writes MongoDB's wire protocol: message headers, OP_MSG,
// the OP_QUERY and OP_REPLY of old handshakes, and raw documents read shallowly.
//
// It must not know shards, routing, configuration or SQL; of shardgate it imports
// wire/mongoerr alone. Central types: Header, Msg (an OP_MSG whose parts are
// slices of the buffer it was read into), Doc and Elem (a raw document and one of
// its elements), Command (an OP_MSG body walked once) and the Append functions
// that build messages.
//
// Buffers: everything parsed aliases the message's buffer and is valid until that
// buffer is used again; nothing here keeps a reference.
package wire
