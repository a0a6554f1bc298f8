// Package compat holds tests that drive a real cluster from outside, as its users do: mongosh, PyMongo, the Go driver and bare
// sockets talk to several routers in front of real mongods and a real PostgreSQL, and each shard is asked directly what it
// holds. One cluster is started for all tests of a run and its end is a test too. Nobody imports this package, and it uses
// nothing of shardgate but what starts a cluster, and the shard key functions and error names that it compares with mongod's own.
package compat
