#!/bin/bash
# Adds replica sets of one member, host or host:port, as shards to the router that is named first; what is there already stays.
set -euo pipefail
router="$1"
shift

for host in "$@"; do
    name="${host%%:*}"
    [ "$host" != "$name" ] || host="$host:27017"
    mongosh --quiet --norc "$router" --eval 'print(EJSON.stringify(sh.addShard("'"${SET:-$name}/$host"'")))'
done
