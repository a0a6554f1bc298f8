-- A movement may be of a range of shard-key values: null for a whole collection.

-- +goose Up

ALTER TABLE shardgate.movements
    ADD COLUMN min bytea,
    ADD COLUMN max bytea,
    ADD COLUMN min_key bytea,
    ADD COLUMN max_key bytea;

-- +goose Down

ALTER TABLE shardgate.movements DROP COLUMN min, DROP COLUMN max, DROP COLUMN min_key, DROP COLUMN max_key;
