-- What a router acknowledges is a version, and the namespaces on which it still runs
-- something older: two arrays of one length, names and the oldest versions.

-- +goose Up

ALTER TABLE shardgate.routers
    ADD COLUMN held_ns text[] NOT NULL DEFAULT '{}',
    ADD COLUMN held_versions bigint[] NOT NULL DEFAULT '{}';

-- +goose Down

ALTER TABLE shardgate.routers DROP COLUMN held_ns, DROP COLUMN held_versions;
