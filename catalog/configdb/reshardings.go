package configdb

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
)

// reshardings has those that are under way, with MongoDB's names for how far they are.
func reshardings(s Snapshot) []bson.Raw {
	var out []bson.Raw
	for _, m := range sorted(s.Movements, func(m *catalog.Movement) string { return m.ID.String() }) {
		if m.Layout == nil || m.State != catalog.MovementCopying {
			continue
		}
		i := slices.IndexFunc(s.Collections, func(c catalog.CollectionChunks) bool { return c.NS == m.NS && c.UUID == m.Collection })
		if i < 0 {
			continue
		}
		out = append(out, resharding(&m, &s.Collections[i]))
	}
	return out
}

func resharding(m *catalog.Movement, c *catalog.CollectionChunks) bson.Raw {
	state, donor, recipient := "cloning", "donating-initial-data", "cloning"
	if c.State != catalog.StateOpen {
		state, donor, recipient = "blocking-writes", "blocking-writes", "strict-consistency"
	}
	key, provenance := m.Layout.Key, "reshardCollection"
	if key == nil {
		key, provenance = build(bsoncore.NewDocumentBuilder().AppendInt32("_id", 1)), "unshardCollection"
	}
	return build(bsoncore.NewDocumentBuilder().
		AppendBinary("_id", bson.TypeBinaryUUID, m.ID[:]).
		AppendString("ns", m.NS).
		AppendBinary("ui", bson.TypeBinaryUUID, m.Collection[:]).
		AppendString("tempNs", m.TempNS()).
		AppendDocument("reshardingKey", key).
		AppendDateTime("startTime", m.Since.UnixMilli()).
		AppendString("state", state).
		AppendString("provenance", provenance).
		AppendArray("donorShards", shardStates(owners(c.Chunks), donor)).
		AppendArray("recipientShards", shardStates(m.Layout.Shards(), recipient)).
		AppendBoolean("active", true))
}

func shardStates(ids []string, state string) bsoncore.Array {
	b := bsoncore.NewArrayBuilder()
	for _, id := range ids {
		b.AppendDocument(bsoncore.NewDocumentBuilder().AppendString("id", id).
			AppendDocument("mutableState", bsoncore.NewDocumentBuilder().AppendString("state", state).Build()).Build())
	}
	return b.Build()
}
