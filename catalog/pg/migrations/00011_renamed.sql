-- The namespace that a collection gets, while its state says that it is renamed.

-- +goose Up

ALTER TABLE shardgate.collections ADD COLUMN renamed_to text COLLATE "C" NOT NULL DEFAULT '';

-- +goose Down

ALTER TABLE shardgate.collections DROP COLUMN renamed_to;
