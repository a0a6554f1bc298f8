package configdb

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/catalog"
)

// internalPrefix marks settings that are shardgate's own and not shown.
const internalPrefix = "shardgate."

// Snapshot is what the documents are made of. What Documents is not asked for may
// be left out.
type Snapshot struct {
	ClusterID   bson.ObjectID
	Shards      []catalog.Shard
	Databases   []catalog.Database
	Collections []catalog.CollectionChunks
	Movements   []catalog.Movement
	Routers     []catalog.Router
	Settings    []catalog.Setting
	Changes     []catalog.LogEntry // of the changelog
	Actions     []catalog.LogEntry // of the actionlog
}

// ClusterID finds the cluster's id among the catalog's settings; it is the zero
// id where there is none.
func ClusterID(settings []catalog.Setting) bson.ObjectID {
	for i := range settings {
		if settings[i].ID == catalog.ClusterIDSetting {
			id, _ := settings[i].Doc.Lookup("value").ObjectIDOK()
			return id
		}
	}
	return bson.ObjectID{}
}

// Names lists the collections of the config database, ascending.
func Names() []string {
	return []string{ // please keep sorted, and in step with Documents
		"actionlog", "changelog", "chunks", "collections", "databases", "lockpings", "locks",
		"migrations", "mongos", "placementHistory", "reshardingOperations", "settings", "shards",
		"tags", "version",
	}
}

// Documents returns the documents of one collection of the config database, in
// the order of their _id (chunks: of their collection and min; logs: oldest
// first). It reports false where there is no such collection.
func Documents(name string, s Snapshot) ([]bson.Raw, bool) {
	switch name {
	case "actionlog":
		return logEntries(s.Actions), true
	case "changelog":
		return logEntries(s.Changes), true
	case "chunks":
		return chunks(s.Collections), true
	case "collections":
		return collections(s.Collections), true
	case "databases":
		return databases(s.Databases), true
	case "mongos":
		return routers(s.Routers), true
	case "placementHistory":
		return placements(s), true
	case "reshardingOperations":
		return reshardings(s), true
	case "settings":
		return settings(s.Settings), true
	case "shards":
		return shards(s.Shards), true
	case "version":
		return []bson.Raw{version(s.ClusterID)}, true
	case "lockpings", "locks", "migrations", "tags":
		return nil, true
	default:
		return nil, false
	}
}

func version(cluster bson.ObjectID) bson.Raw {
	return build(bsoncore.NewDocumentBuilder().
		AppendInt32("_id", 1).
		AppendObjectID("clusterId", cluster).
		AppendInt32("minCompatibleVersion", 5).
		AppendInt32("currentVersion", 6))
}

func shards(all []catalog.Shard) []bson.Raw {
	return each(sorted(all, func(s *catalog.Shard) string { return s.ID }), func(s *catalog.Shard) bson.Raw {
		const stateAware = 1
		b := bsoncore.NewDocumentBuilder().
			AppendString("_id", s.ID).
			AppendString("host", s.Host).
			AppendInt32("state", stateAware)
		appendTime(b, "topologyTime", s.TopologyTime)
		if len(s.Tags) > 0 {
			b.AppendArray("tags", stringArray(s.Tags))
		}
		if s.Draining {
			b.AppendBoolean("draining", true)
		}
		return build(b)
	})
}

// databases leaves out admin and config, which a real one has not either:
// mongosh adds config itself.
func databases(all []catalog.Database) []bson.Raw {
	return each(shown(all), func(d *catalog.Database) bson.Raw {
		b := bsoncore.NewDocumentBuilder().
			AppendString("_id", d.Name).
			AppendString("primary", d.Primary).
			AppendBoolean("partitioned", true)
		v := bsoncore.NewDocumentBuilder().AppendBinary("uuid", bson.TypeBinaryUUID, d.UUID[:])
		appendTime(v, "timestamp", d.Timestamp)
		v.AppendInt32("lastMod", d.LastMod)
		return build(b.AppendDocument("version", v.Build()))
	})
}

func shown(all []catalog.Database) []catalog.Database {
	return slices.DeleteFunc(sorted(all, func(d *catalog.Database) string { return d.Name }),
		func(d catalog.Database) bool { return d.Name == "admin" || d.Name == "config" })
}

// routers counts up to the last heartbeat, as mongos does when it writes it.
func routers(all []catalog.Router) []bson.Raw {
	return each(sorted(all, func(r *catalog.Router) string { return r.Name }), func(r *catalog.Router) bson.Raw {
		return build(bsoncore.NewDocumentBuilder().
			AppendString("_id", r.Name).
			AppendArray("advisoryHostFQDNs", stringArray(nil)).
			AppendDateTime("created", r.Started.UnixMilli()).
			AppendString("mongoVersion", r.Version).
			AppendDateTime("ping", r.Ping.UnixMilli()).
			AppendInt64("up", max(int64(r.Ping.Sub(r.Started).Seconds()), 0)).
			AppendBoolean("waiting", true))
	})
}

func settings(all []catalog.Setting) []bson.Raw {
	var out []bson.Raw
	for _, s := range sorted(all, func(s *catalog.Setting) string { return s.ID }) {
		if !strings.HasPrefix(s.ID, internalPrefix) {
			out = append(out, s.Doc)
		}
	}
	return out
}

func logEntries(all []catalog.LogEntry) []bson.Raw {
	return each(all, func(e *catalog.LogEntry) bson.Raw {
		return build(bsoncore.NewDocumentBuilder().
			AppendString("_id", e.ID).
			AppendString("server", e.Server).
			AppendString("shard", e.Shard).
			AppendString("clientAddr", e.Client).
			AppendDateTime("time", e.Time.UnixMilli()).
			AppendString("what", e.What).
			AppendString("ns", e.NS).
			AppendDocument("details", orEmpty(e.Details)))
	})
}
