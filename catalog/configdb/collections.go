package configdb

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
)

// stored is all collections but views, by namespace.
func stored(all []catalog.CollectionChunks) []catalog.CollectionChunks {
	return slices.DeleteFunc(sorted(all, func(c *catalog.CollectionChunks) string { return c.NS }),
		func(c catalog.CollectionChunks) bool { return c.Kind == catalog.KindView })
}

func collections(all []catalog.CollectionChunks) []bson.Raw {
	return each(stored(all), func(c *catalog.CollectionChunks) bson.Raw {
		b := bsoncore.NewDocumentBuilder().
			AppendString("_id", c.NS).
			AppendObjectID("lastmodEpoch", c.Epoch).
			AppendDateTime("lastmod", c.LastMod.UnixMilli())
		appendTime(b, "timestamp", c.Timestamp)
		b.AppendBinary("uuid", bson.TypeBinaryUUID, c.UUID[:])
		if c.Kind == catalog.KindSharded {
			b.AppendDocument("key", c.Key)
		} else {
			b.AppendDocument("key", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build())
		}
		b.AppendBoolean("unique", c.Unique).AppendBoolean("noBalance", c.NoBalance)
		if len(c.Collation) > 0 {
			b.AppendDocument("defaultCollation", c.Collation)
		}
		if !c.Migrations {
			b.AppendBoolean("permitMigrations", false)
		}
		if c.Kind == catalog.KindUnsharded {
			b.AppendBoolean("unsplittable", true)
		}
		return build(b)
	})
}

func chunks(all []catalog.CollectionChunks) []bson.Raw {
	var out []bson.Raw
	for _, c := range stored(all) {
		for i := range c.Chunks {
			out = append(out, chunk(&c.Collection, &c.Chunks[i]))
		}
	}
	return out
}

func chunk(c *catalog.Collection, k *catalog.Chunk) bson.Raw {
	least, greatest := k.Min, k.Max
	if c.Kind == catalog.KindUnsharded { // whatever the bounds are kept as
		least = build(bsoncore.NewDocumentBuilder().AppendMinKey("_id"))
		greatest = build(bsoncore.NewDocumentBuilder().AppendMaxKey("_id"))
	}
	b := bsoncore.NewDocumentBuilder().
		AppendObjectID("_id", k.ID).
		AppendBinary("uuid", bson.TypeBinaryUUID, c.UUID[:]).
		AppendString("ns", c.NS).
		AppendDocument("min", least).
		AppendDocument("max", greatest).
		AppendString("shard", k.Shard)
	appendTime(b, "lastmod", k.LastMod)
	appendTime(b, "onCurrentShardSince", k.OnShardSince)
	history := bsoncore.NewArrayBuilder()
	for _, o := range k.History {
		h := bsoncore.NewDocumentBuilder()
		appendTime(h, "validAfter", o.ValidAfter)
		history.AppendDocument(h.AppendString("shard", o.Shard).Build())
	}
	b.AppendArray("history", history.Build())
	if k.Jumbo {
		b.AppendBoolean("jumbo", true)
	}
	return build(b)
}

// placements has the present placement of each database and collection. Past
// ones are not kept in this form; those of chunks are in their history.
func placements(s Snapshot) []bson.Raw {
	out := each(shown(s.Databases), func(d *catalog.Database) bson.Raw {
		b := bsoncore.NewDocumentBuilder().
			AppendObjectID("_id", bson.ObjectID(d.UUID[:12])).
			AppendString("nss", d.Name)
		appendTime(b, "timestamp", d.Timestamp)
		return build(b.AppendArray("shards", stringArray([]string{d.Primary})))
	})
	return append(out, each(stored(s.Collections), func(c *catalog.CollectionChunks) bson.Raw {
		b := bsoncore.NewDocumentBuilder().
			AppendObjectID("_id", bson.ObjectID(c.UUID[:12])).
			AppendString("nss", c.NS).
			AppendBinary("uuid", bson.TypeBinaryUUID, c.UUID[:])
		appendTime(b, "timestamp", c.Timestamp)
		return build(b.AppendArray("shards", stringArray(owners(c.Chunks))))
	})...)
}

func owners(chunks []catalog.Chunk) []string {
	var out []string
	for i := range chunks {
		out = append(out, chunks[i].Shard)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
