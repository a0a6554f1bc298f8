// Package dev holds the commands of `shardgate dev`: a whole cluster on one machine, for people and for tests.
//
// The work is done by its subpackages: parts finds or fetches programs, proc runs them so that they cannot outlive us, cluster
// puts them together, clustertest gives clusters to tests.
package dev
