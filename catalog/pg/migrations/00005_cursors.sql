-- The oldest version by which a cursor of a router still reads a namespace; 0: none.

-- +goose Up

ALTER TABLE shardgate.routers ADD COLUMN held_cursors bigint[] NOT NULL DEFAULT '{}';

-- +goose Down

ALTER TABLE shardgate.routers DROP COLUMN held_cursors;
