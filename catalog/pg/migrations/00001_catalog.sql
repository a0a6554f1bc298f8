-- The catalog, first form. Versions are those of catalog.Version: each row of
-- routing metadata carries the one that last changed it. Names compare by bytes.

-- +goose Up

CREATE TABLE shardgate.catalog (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
);
INSERT INTO shardgate.catalog (version) VALUES (0);

CREATE TABLE shardgate.shards (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    weight double precision NOT NULL,
    draining boolean NOT NULL,
    tags text[] NOT NULL,
    topology_time bigint NOT NULL,
    server_version text NOT NULL,
    capabilities text[] NOT NULL,
    added bigint NOT NULL,
    version bigint NOT NULL
);

CREATE TABLE shardgate.databases (
    name text COLLATE "C" PRIMARY KEY,
    primary_shard text COLLATE "C" NOT NULL
        REFERENCES shardgate.shards DEFERRABLE INITIALLY DEFERRED,
    placement text NOT NULL,
    uuid uuid NOT NULL,
    cluster_time bigint NOT NULL,
    last_mod integer NOT NULL,
    version bigint NOT NULL
);
CREATE INDEX databases_version ON shardgate.databases (version);
CREATE INDEX databases_primary ON shardgate.databases (primary_shard);

CREATE TABLE shardgate.collections (
    ns text COLLATE "C" PRIMARY KEY,
    db text COLLATE "C" NOT NULL
        REFERENCES shardgate.databases DEFERRABLE INITIALLY DEFERRED,
    uuid uuid NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    shard_key bytea,
    is_unique boolean NOT NULL,
    options bytea,
    default_collation bytea,
    pinned boolean NOT NULL,
    move_group text NOT NULL,
    epoch bytea NOT NULL,
    cluster_time bigint NOT NULL,
    last_mod timestamptz NOT NULL,
    no_balance boolean NOT NULL,
    migrations boolean NOT NULL,
    version bigint NOT NULL
);
CREATE INDEX collections_version ON shardgate.collections (version);
CREATE INDEX collections_db ON shardgate.collections (db);

-- min_key and max_key are the order-preserving form of min and max. The history
-- (newest first) is two arrays of one length.
CREATE TABLE shardgate.chunks (
    ns text COLLATE "C" NOT NULL REFERENCES shardgate.collections ON DELETE CASCADE,
    id bytea NOT NULL,
    min bytea,
    max bytea,
    min_key bytea NOT NULL,
    max_key bytea NOT NULL CHECK (min_key < max_key),
    shard text COLLATE "C" NOT NULL
        REFERENCES shardgate.shards DEFERRABLE INITIALLY DEFERRED,
    last_mod bigint NOT NULL,
    on_shard_since bigint NOT NULL,
    history_shards text[] NOT NULL,
    history_times bigint[] NOT NULL,
    jumbo boolean NOT NULL,
    PRIMARY KEY (ns, min_key),
    UNIQUE (ns, id)
);
CREATE INDEX chunks_shard ON shardgate.chunks (shard);

CREATE TABLE shardgate.settings (
    id text COLLATE "C" PRIMARY KEY,
    doc bytea NOT NULL,
    version bigint NOT NULL
);

-- What was removed and not put again, so that routers can follow.
CREATE TABLE shardgate.tombstones (
    kind text NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX tombstones_version ON shardgate.tombstones (version);

CREATE TABLE shardgate.routers (
    incarnation text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    number integer NOT NULL UNIQUE CHECK (number BETWEEN 1 AND 32767),
    program_version text NOT NULL,
    started timestamptz NOT NULL,
    ping timestamptz NOT NULL,
    acked bigint NOT NULL,
    user_shards text[] NOT NULL,
    user_names text[] NOT NULL
);

-- db is the database that a lock belongs to, NULL for names that begin with "$".
CREATE SEQUENCE shardgate.lock_token;
CREATE TABLE shardgate.locks (
    name text COLLATE "C" PRIMARY KEY,
    db text COLLATE "C",
    router text COLLATE "C" NOT NULL REFERENCES shardgate.routers ON DELETE CASCADE,
    token bigint NOT NULL DEFAULT nextval('shardgate.lock_token'),
    why text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX locks_db ON shardgate.locks (db);
CREATE INDEX locks_router ON shardgate.locks (router);

CREATE TABLE shardgate.log (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    is_action boolean NOT NULL,
    server text NOT NULL,
    shard text NOT NULL,
    client text NOT NULL,
    logged timestamptz NOT NULL,
    what text NOT NULL,
    ns text NOT NULL,
    details bytea
);
CREATE INDEX log_action_seq ON shardgate.log (is_action, seq);

-- +goose Down

DROP TABLE shardgate.log, shardgate.locks, shardgate.routers, shardgate.tombstones,
    shardgate.settings, shardgate.chunks, shardgate.collections, shardgate.databases,
    shardgate.shards, shardgate.catalog;
DROP SEQUENCE shardgate.lock_token;
