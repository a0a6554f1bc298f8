-- Whether others shut a router out. While they do, its users are those by which it may
-- still act on shards.

-- +goose Up

ALTER TABLE shardgate.routers ADD COLUMN evicted boolean NOT NULL DEFAULT false;

-- +goose Down

ALTER TABLE shardgate.routers DROP COLUMN evicted;
