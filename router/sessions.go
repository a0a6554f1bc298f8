package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// EndSessions tells every shard that the client's sessions are over and closes their
// cursors here. Shards that cannot be reached end them by themselves.
func (r *Router) EndSessions(ctx context.Context, op *Op, command string, ids []UUID) {
	for _, id := range ids {
		r.CloseCursors(ctx, id)
		if command == "endSessions" {
			r.sessions.forget(Session{ID: id, UID: op.Session.UID})
		}
	}
	b := bsoncore.NewArrayBuilder()
	for _, id := range ids {
		d := bsoncore.AppendBinaryElement(nil, "id", 4, id[:])
		d = bsoncore.AppendBinaryElement(d, "uid", 0, op.Session.UID[:])
		b.AppendDocument(bsoncore.BuildDocument(nil, d))
	}
	elems := bsoncore.AppendArrayElement(nil, command, b.Build())
	for id, shard := range r.Shards() {
		if !shard.HasPrimary() {
			continue
		}
		r.wg.Go(func() {
			ctx, cancel := withTimeout(ctx)
			defer cancel()
			if _, err := shard.Run(ctx, "admin", elems); err != nil {
				r.log.Debug().Err(err).Str("shard", id).Msg(command)
			}
		})
	}
}

// Cut ends on the shards what runs for clients that have gone, where it may be cut.
func (r *Router) Cut() {
	for _, s := range r.Shards() {
		s.Cut()
	}
}

// CloseCursors closes the cursors of a session.
func (r *Router) CloseCursors(ctx context.Context, id UUID) {
	for _, c := range r.cursors.removeSession(id) {
		r.killShardCursors(ctx, c)
	}
}

// backgroundLimit bounds what is done for a client behind its back.
const backgroundLimit = 5 * time.Second

func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), backgroundLimit)
}
