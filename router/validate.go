package router

import (
	"context"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Validate runs validate on every shard that owns the collection.
func (r *Router) Validate(ctx context.Context, op *Op) ([]ShardReplies, error) {
	s, err := r.admit(ctx, op)
	if isOnView(err) {
		return nil, mongoerr.New(mongoerr.CommandNotSupportedOnView, "Cannot validate a view")
	}
	if err != nil {
		return nil, err
	}
	if s.entry == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection '%s' does not exist to validate.", s.ns)
	}
	defer r.leave(s.entry)
	shards := s.entry.Table.Shards()
	answers := r.scatter(ctx, op, shards, func(dst []byte, _ int) []byte { return r.appendMessage(dst, op, &patch{}) })
	defer r.releaseAll(op, answers)
	if err := firstError(answers); err != nil {
		return nil, err
	}
	out := make([]ShardReplies, len(answers))
	for i := range answers {
		out[i] = ShardReplies{Shard: shards[i], Body: append(wire.Doc(nil), answers[i].body...)}
	}
	return out, nil
}
