// Command bench compares ways to a shard, in turns within one run, so that the machine's own speed cancels out: a direct connection, a plain TCP
// relay, HAProxy, and shardgate with everything switched on; before real mongods, and before shards that answer at once. `make bench` runs it.
package main
