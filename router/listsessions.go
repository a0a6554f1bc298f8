package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// AllSessions returns the sessions that this router has seen and those that the shards
// have, each once; a shard that cannot be reached is an error. The routers' own are left
// out. (Where shards run without auth, those of routers' administrative connections look
// like a client's.)
func (r *Router) AllSessions(ctx context.Context) ([]UsedSession, error) {
	last := map[sessionKey]time.Time{}
	note := func(s *UsedSession) {
		key := sessionKey{id: s.ID, uid: s.UID}
		if s.LastUse.After(last[key]) {
			last[key] = s.LastUse
		}
	}
	local := r.LocalSessions()
	for i := range local {
		note(&local[i])
	}
	for _, shard := range r.snap.Load().shardIDs() {
		stage := bson.D{{Key: "$listSessions", Value: bson.D{{Key: "allUsers", Value: true}}}}
		err := r.drain(ctx, shard, "config", bson.D{
			{Key: "aggregate", Value: "system.sessions"}, {Key: "pipeline", Value: bson.A{stage}}, {Key: "cursor", Value: bson.D{}},
		}, func(doc bson.Raw) error {
			var s UsedSession
			_, id, _ := doc.Lookup("_id", "id").BinaryOK()
			_, uid, _ := doc.Lookup("_id", "uid").BinaryOK()
			copy(s.ID[:], id)
			copy(s.UID[:], uid)
			s.LastUse, _ = doc.Lookup("lastUse").TimeOK()
			if !s.ID.Reserved() {
				note(&s)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	out := make([]UsedSession, 0, len(last))
	for key, used := range last {
		out = append(out, UsedSession{Session: Session{ID: key.id, UID: key.uid}, LastUse: used})
	}
	return out, nil
}
