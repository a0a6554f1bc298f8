-- The shard that keeps the choices of a database's single writes. It stays when the
-- database's primary shard changes; empty: the primary shard.

-- +goose Up

ALTER TABLE shardgate.databases ADD COLUMN claims_shard text NOT NULL DEFAULT '';

-- +goose Down

ALTER TABLE shardgate.databases DROP COLUMN claims_shard;
