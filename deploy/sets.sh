#!/bin/bash
# Makes a replica set of one member of each mongod that is named, host or host:port, where it is none yet.
set -euo pipefail
key="$(cat "${KEYS:-/keys}/mongod")"

for host in "$@"; do
    name="${host%%:*}"
    [ "$host" != "$name" ] || host="$host:27017"
    mongosh --quiet --norc "mongodb://$host/?directConnection=true" --username __system --password "$key" --authenticationDatabase local --eval '
        try { rs.status() } catch (e) {
            if (e.code !== 94) throw e
            rs.initiate({ _id: "'"${SET:-$name}"'", members: [{ _id: 0, host: "'"$host"'" }] })
        }
        while (!db.hello().isWritablePrimary) sleep(200)
        print("'"$host"' is a primary")'
done
