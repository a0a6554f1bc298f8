-- Each chunk carries the version that put it there, and each collection the one that last
-- put all its chunks anew, so that routers load the chunks that changed and no others. What
-- a router of before writes names neither: the default is the version that its change makes,
-- as the row of the version is locked and raised last.

-- +goose Up

-- +goose StatementBegin
CREATE FUNCTION shardgate.next_version() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT version + 1 FROM shardgate.catalog';
-- +goose StatementEnd

ALTER TABLE shardgate.chunks ADD COLUMN version bigint NOT NULL DEFAULT 0;
ALTER TABLE shardgate.chunks ALTER COLUMN version SET DEFAULT shardgate.next_version();
CREATE INDEX chunks_version ON shardgate.chunks (version);

ALTER TABLE shardgate.collections ADD COLUMN layout bigint NOT NULL DEFAULT 0;
ALTER TABLE shardgate.collections ALTER COLUMN layout SET DEFAULT shardgate.next_version();

-- +goose Down

ALTER TABLE shardgate.collections DROP COLUMN layout;
ALTER TABLE shardgate.chunks DROP COLUMN version;
DROP FUNCTION shardgate.next_version();
