-- A movement may give a collection another shard key: the layout that it is to have, null for
-- any other movement.

-- +goose Up

ALTER TABLE shardgate.movements ADD COLUMN layout bytea;

-- +goose Down

ALTER TABLE shardgate.movements DROP COLUMN layout;
