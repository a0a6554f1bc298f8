package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/pg"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// openNull starts shards that answer at once, and a router whose catalog knows them.
func (b *bench) openNull(ctx context.Context) error {
	b.null.name = "null"

	var shards []string

	for i := range 2 {
		addr, err := b.port()
		if err != nil {
			return err
		}

		name := "null_" + strconv.Itoa(i)
		if _, err := b.startSelf(ctx, name, addr, "null", name, addr); err != nil {
			return err
		}

		shards = append(shards, addr)
	}

	b.null.server = shards[0]
	if err := b.startRelay(ctx, &b.null, ""); err != nil {
		return err
	}

	dsn, err := b.nullCatalog(ctx, shards)
	if err != nil {
		return err
	}

	addr, err := b.port()
	if err != nil {
		return err
	}

	probes, err := b.port()
	if err != nil {
		return err
	}

	config := filepath.Join(b.dir, "null-router.yaml")
	text := fmt.Sprintf("listen: %q\ncatalog:\n  dsn: %q\nhttp:\n  listen: %q\n  pprof: true\n", addr, dsn, probes)

	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}

	pid, err := b.start(ctx, "null-router", addr, b.settings.binary, "serve", "--config", config)
	b.null.sides = append(b.null.sides, &side{name: shardgate, addr: addr, pid: pid, probes: probes})

	return err
}

// nullCatalog makes the catalog of the null shards: each collection is hashed and has 10,000 chunks.
func (b *bench) nullCatalog(ctx context.Context, shards []string) (dsn string, err error) {
	conn, err := pgx.Connect(ctx, b.cluster.CatalogDSN())
	if err != nil {
		return "", err
	}

	_, err = conn.Exec(ctx, "CREATE DATABASE shardgate_null")
	_ = conn.Close(ctx)

	if err != nil {
		return "", err
	}

	u, err := url.Parse(b.cluster.CatalogDSN())
	if err != nil {
		return "", err
	}

	u.Path = "/shardgate_null"

	store, err := pg.New(ctx, pg.Options{DSN: u.String()})
	if err != nil {
		return "", err
	}
	defer store.Close()

	key, err := bson.Marshal(bson.D{{Key: "_id", Value: "hashed"}})
	if err != nil {
		return "", err
	}

	pattern, err := shardkey.ParsePattern(key)
	if err != nil {
		return "", err
	}

	change := catalog.Change{Databases: []catalog.Database{{Name: database, Primary: "null_0", Placement: catalog.PlacementSpread}}}

	var ids []string

	for i, addr := range shards {
		id := "null_" + strconv.Itoa(i)
		ids = append(ids, id)
		change.Shards = append(change.Shards, catalog.Shard{ID: id, Host: id + "/" + addr, Weight: 1})
	}

	for coll, on := range map[string][]string{points: ids[:1], scanned: ids[:1], spread: ids} {
		change.Put = append(change.Put, catalog.CollectionChunks{
			Collection: catalog.Collection{
				NS: database + "." + coll, UUID: uuid.New(), Kind: catalog.KindSharded, State: catalog.StateOpen, Key: key, Epoch: bson.NewObjectID(),
			},
			Chunks: shardkey.InitialChunks(pattern, 10_000, on, ids[0], 1),
		})
	}

	_, err = store.Apply(ctx, change)

	return u.String(), err
}
