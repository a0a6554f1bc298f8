-- Collections on their way from one shard to another; and the oldest version by which a
-- router still runs a write, beside that of any operation. A router of before says nothing
-- of its writes, so the default is the oldest.

-- +goose Up

CREATE TABLE shardgate.movements (
    id text COLLATE "C" PRIMARY KEY,
    ns text COLLATE "C" NOT NULL,
    collection uuid NOT NULL,
    donor text COLLATE "C" NOT NULL REFERENCES shardgate.shards DEFERRABLE INITIALLY DEFERRED,
    recipient text COLLATE "C" NOT NULL REFERENCES shardgate.shards DEFERRABLE INITIALLY DEFERRED,
    state text NOT NULL,
    switched_at bigint NOT NULL,
    since timestamptz NOT NULL,
    version bigint NOT NULL
);
CREATE INDEX movements_version ON shardgate.movements (version);

ALTER TABLE shardgate.routers ADD COLUMN held_writes bigint[] NOT NULL DEFAULT '{}';
UPDATE shardgate.routers SET held_writes = held_versions;

-- +goose Down

ALTER TABLE shardgate.routers DROP COLUMN held_writes;
DROP TABLE shardgate.movements;
