// Command benchmove measures moveCollection: how fast it copies, beside mongodump and mongorestore of the same data in the same run; what a
// workload has left of its throughput meanwhile; and how long writes wait at the switch. `make bench-move` runs it.
package main
