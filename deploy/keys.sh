#!/bin/bash
# Makes the keyfile that the shards' members know each other by, once, in a copy for mongod and one for routers.
set -euo pipefail
dir="${KEYS:-/keys}"

if [ ! -e "$dir/router" ]; then
    (umask 077; head -c 384 /dev/urandom | base64 -w 0 > "$dir/new")
    install -m 400 -o "${MONGOD_USER:-999}" "$dir/new" "$dir/mongod"
    install -m 400 -o "${ROUTER_USER:-65532}" "$dir/new" "$dir/router"
    rm "$dir/new"
fi
