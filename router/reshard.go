package router

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/router/movement"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ReshardSpec is what reshardCollection asks for, options already checked for themselves.
type ReshardSpec struct {
	NS           string
	Key          *shardkey.Pattern // nil: it is to become an unsharded collection
	To           string            // for that, its shard; "": the least loaded one
	NumChunks    int               // 0: the default
	HasCollation bool              // {locale: "simple"} was given
	UUID         *UUID             // collectionUUID, nil: any
	Force        bool              // even if the key is the same
	Shares       []Share           // shardDistribution; nil: all shards alike
	Chunks       []Share           // _presetReshardedChunks
}

// Share is a range of the new key that a shard is to get; of a shard alone, without bounds,
// it is whatever falls to it.
type Share struct {
	Shard    string
	Min, Max bson.Raw
}

// Reshard gives a sharded collection another shard key, or none, while it is in use
// (docs/movement.md).
func (r *Router) Reshard(ctx context.Context, spec *ReshardSpec) error {
	if err := r.reshardable(r.Latest(ctx), spec); err != nil {
		return err
	}
	if joined, err := r.joinResharding(ctx, spec); joined {
		return err
	}
	err := r.reshardLocked(ctx, spec)
	if mongoerr.CodeOf(err) == mongoerr.ReshardCollectionInProgress { // somebody was first
		if joined, jerr := r.joinResharding(ctx, spec); joined {
			return jerr
		}
	}
	return err
}

// reshardLocked is Reshard, where no other is under way.
func (r *Router) reshardLocked(ctx context.Context, spec *ReshardSpec) error {
	return r.withLock(ctx, spec.NS, "reshardCollection", func(l catalog.Lock) error {
		s := r.snap.Load()
		e := s.Entries[spec.NS]
		if err := r.reshardable(s, spec); err != nil {
			return err
		}
		if spec.isDone(e) {
			return nil
		}
		if err := r.layoutFits(ctx, e, spec); err != nil {
			return err
		}
		layout, err := r.makeLayout(ctx, e, spec)
		if err != nil {
			return err
		}
		m := &mover{r: r, lock: l, row: catalog.Movement{
			ID: uuid.New(), NS: spec.NS, Collection: e.Coll.UUID, From: e.Table.Shards()[0], To: layout.Chunks[0].Shard,
			Layout: layout, State: catalog.MovementCopying, Since: time.Now(),
		}}
		m.facts = movement.Facts{State: m.row.State, Mine: true, Known: true} // no router goes to the copies
		if err := m.ready(ctx); err != nil {
			return err
		}
		return m.begin(ctx)
	})
}

// isDone reports whether the collection is as it is to be already.
func (spec *ReshardSpec) isDone(e *Entry) bool {
	if spec.Key == nil {
		return !e.Sharded()
	}
	return !spec.Force && sameKey(spec.Key, e.Table.Pattern())
}

// reshardable checks what the command asks for (MONGOS.md §7).
func (r *Router) reshardable(s *Snapshot, spec *ReshardSpec) error {
	e := s.Entries[spec.NS]
	switch {
	case e == nil:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Namespace %s does not exist", spec.NS)
	case e.Coll.Kind == catalog.KindView:
		return onView(spec.NS)
	case !e.Sharded() && (spec.Key != nil || spec.To != e.Home()):
		return mongoerr.Newf(mongoerr.NamespaceNotSharded, "Namespace %s is not sharded", spec.NS)
	case spec.UUID != nil && UUID(e.Coll.UUID) != *spec.UUID:
		return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified")
	case spec.Key != nil && len(e.Coll.Collation) > 0 && !spec.HasCollation:
		return mongoerr.New(mongoerr.BadValue, "If no collation was specified, the collection collation must be {locale: 'simple'}, but found: "+shardkey.Format(e.Coll.Collation))
	}
	shards := []string{spec.To}
	for _, part := range slices.Concat(spec.Shares, spec.Chunks) {
		shards = append(shards, part.Shard)
	}
	for _, id := range shards {
		if _, known := s.Shards[id]; !known && id != "" {
			return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", id)
		}
	}
	return nil
}

// layoutFits checks that unique indexes agree with the new key. An array in it is found by
// the copy.
func (r *Router) layoutFits(ctx context.Context, e *Entry, spec *ReshardSpec) error {
	if spec.Key == nil {
		return nil
	}
	indexes, err := r.indexesOf(ctx, e)
	if err != nil {
		return err
	}
	for i := range indexes {
		x := &indexes[i]
		if x.Unique && !x.isID() && !keyPrefixes(spec.Key, x.Key) {
			return mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key %s. Uniqueness can't be maintained unless shard key is a prefix", spec.NS, shardkey.Format(x.Key), spec.Key)
		}
	}
	return nil
}

// reshardingOf is the resharding of a collection that is under way, nil if there is none.
func (s *Snapshot) reshardingOf(ns string) *catalog.Movement {
	for _, m := range s.Movements {
		if m.NS == ns && m.Layout != nil && m.State == catalog.MovementCopying {
			return &m
		}
	}
	return nil
}

// joinResharding waits for one that somebody has begun with the same aim; one with another
// is 338.
func (r *Router) joinResharding(ctx context.Context, spec *ReshardSpec) (joined bool, err error) {
	m := r.snap.Load().reshardingOf(spec.NS)
	if m == nil {
		return false, nil
	}
	same := spec.Key == nil && m.Layout.Key == nil && (spec.To == "" || spec.To == m.To)
	if spec.Key != nil && m.Layout.Key != nil {
		p, perr := shardkey.ParsePattern(m.Layout.Key)
		same = perr == nil && sameKey(p, spec.Key)
	}
	if !same {
		return true, errResharding(spec.NS)
	}
	if err := r.awaitResharding(ctx, m.ID); err != nil {
		return true, err
	}
	e := r.snap.Load().Entries[spec.NS]
	if e == nil || e.Coll.UUID != m.Layout.UUID {
		return true, mongoerr.Newf(mongoerr.ReshardCollectionAborted, "the resharding of %s was undone", spec.NS)
	}
	return true, nil
}

func errResharding(ns string) error {
	return mongoerr.Newf(mongoerr.ReshardCollectionInProgress, "%s is being resharded", ns)
}

// awaitResharding waits until a resharding is over.
func (r *Router) awaitResharding(ctx context.Context, id uuid.UUID) error {
	for {
		if _, there := r.snap.Load().Movements[id.String()]; !there {
			return nil
		}
		r.reload.signal()
		if r.isStopped() {
			return mongoerr.New(mongoerr.InterruptedAtShutdown, "the router stops")
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return expired(ctx.Err())
		}
	}
}

// ReshardKind says which command of the family is meant.
type ReshardKind int

// The kinds.
const (
	Resharding ReshardKind = iota
	Unsharding
)

// underWay finds what abort and commit are about: none is 339, one of the other kind 20.
func (r *Router) underWay(ctx context.Context, ns string, kind ReshardKind) (*catalog.Movement, error) {
	m := r.Latest(ctx).reshardingOf(ns)
	switch {
	case m == nil:
		return nil, mongoerr.Newf(mongoerr.NoSuchReshardCollection, "Could not find in-progress resharding operation for collection %s", ns)
	case (m.Layout.Key == nil) != (kind == Unsharding):
		return nil, mongoerr.Newf(mongoerr.IllegalOperation, "the operation under way on %s is of another kind", ns)
	}
	return m, nil
}

// AbortResharding has a resharding undone, whichever router runs it: it puts the outcome on
// record, of which the first decides, and takes away the right to copy. If it is decided
// already it is 340.
func (r *Router) AbortResharding(ctx context.Context, ns string, kind ReshardKind) error {
	row, err := r.underWay(ctx, ns, kind)
	if err != nil {
		return err
	}
	m := &mover{r: r, row: *row}
	out, err := m.decide(ctx, movement.OutcomeUndone)
	if err != nil {
		return err
	}
	if out == movement.OutcomeSwitched {
		return mongoerr.Newf(mongoerr.ReshardCollectionCommitted, "the resharding of %s is decided already", ns)
	}
	for _, shard := range m.recipients() {
		if _, err := m.closeAt(ctx, shard, out); err != nil {
			return err
		}
	}
	return r.awaitResharding(ctx, row.ID)
}

// CommitResharding waits for a resharding to end. There is nothing that it could hasten: the
// switch comes as soon as little is left to copy.
func (r *Router) CommitResharding(ctx context.Context, ns string, kind ReshardKind) error {
	row, err := r.underWay(ctx, ns, kind)
	if err != nil {
		return err
	}
	if err := r.awaitResharding(ctx, row.ID); err != nil {
		return err
	}
	if e := r.snap.Load().Entries[ns]; e == nil || e.Coll.UUID != row.Layout.UUID {
		return mongoerr.Newf(mongoerr.ReshardCollectionAborted, "the resharding of %s was undone", ns)
	}
	return nil
}

// errNothingToClean is what cleanupReshardCollection answers where nothing is left behind.
const errNothingToClean mongoerr.Code = 5403504

// CleanUpResharding undoes or finishes what a dead router has left of a resharding, as any
// DDL of the collection does.
func (r *Router) CleanUpResharding(ctx context.Context, ns string) error {
	s := r.Latest(ctx)
	e := s.Entries[ns]
	switch {
	case e == nil:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Namespace %s does not exist", ns)
	case s.reshardingOf(ns) == nil:
		return mongoerr.Newf(errNothingToClean, "nothing of a resharding is left of %s", ns)
	}
	return r.withLock(ctx, ns, "cleanupReshardCollection", func(catalog.Lock) error { return nil })
}
