package router

import (
	"bytes"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// announcePatience is how long those are waited for who read the collection and know nothing
// of the copy that is to come. Reads and writes go on meanwhile.
const announcePatience = 30 * time.Second

// announce waits until every router knows that the recipient is about to have documents that
// it does not own, and nothing goes on that began before: no read, no write, no cursor. It
// would take copies for the recipient's own (PROTOCOL.md F4). Open transactions need not be
// waited for: their snapshots are of before, and each of their statements is by a new table.
func (m *mover) announce(ctx context.Context) error {
	return m.r.await(ctx, m.begun, m.row.NS, announcePatience, oldCursors)
}

// newChunks edits the chunk in which what moves lies: that part goes to the recipient, what
// is left of it stays.
func (m *mover) newChunks(e *Entry, at catalog.Timestamp) (catalog.ChunkEdit, error) {
	i, major := 0, uint64(0)
	for j := range e.Table.Len() {
		major = max(major, uint64(e.Table.Chunk(j).LastMod)>>32)
	}
	if m.row.Range != nil {
		i = e.Table.Find(m.row.Range.MinKey)
	}
	c := e.Table.Chunk(i)
	part := m.row.Range
	if part == nil {
		part = &catalog.Range{Min: c.Min, Max: c.Max, MinKey: c.MinKey, MaxKey: c.MaxKey}
	}
	if c.Shard != m.row.From || bytes.Compare(c.MinKey, part.MinKey) > 0 || bytes.Compare(c.MaxKey, part.MaxKey) < 0 {
		return catalog.ChunkEdit{}, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the chunk of %s that moves is another by now", m.row.NS)
	}
	edit := catalog.ChunkEdit{NS: m.row.NS, Remove: []bson.ObjectID{c.ID}}
	minor := uint64(0)
	put := func(lower, upper bson.Raw, lowerKey, upperKey []byte) *catalog.Chunk {
		if bytes.Equal(lowerKey, upperKey) {
			return nil
		}
		n := *c
		n.Min, n.Max, n.MinKey, n.MaxKey = lower, upper, lowerKey, upperKey
		if len(edit.Put) > 0 {
			n.ID = bson.NewObjectID()
		}
		n.LastMod = catalog.Timestamp((major+1)<<32 | minor)
		minor++
		edit.Put = append(edit.Put, n)
		return &edit.Put[len(edit.Put)-1]
	}
	moved := put(part.Min, part.Max, part.MinKey, part.MaxKey)
	moved.Shard, moved.OnShardSince, moved.Jumbo = m.row.To, at, false
	moved.History = append([]catalog.Owner{{Shard: m.row.To, ValidAfter: at}}, c.History...)
	put(c.Min, part.Min, c.MinKey, part.MinKey)
	put(part.Max, c.Max, part.MaxKey, c.MaxKey)
	slices.SortFunc(edit.Put, func(a, b catalog.Chunk) int { return bytes.Compare(a.MinKey, b.MinKey) })
	return edit, nil
}

// command is what began the movement.
func (m *mover) command() string {
	switch l := m.row.Layout; {
	case m.row.Range != nil:
		return "moveChunk"
	case l == nil:
		return "moveCollection"
	case l.Key == nil:
		return "unshardCollection"
	default:
		return "reshardCollection"
	}
}

// log is an entry of the changelog, as sh.status() and others count them.
func (m *mover) log(what string) catalog.LogEntry {
	return m.r.logEntry(m.command()+"."+what, m.row.NS, m.row.From, m.details())
}

// sides are the entries by which donor and recipient of a chunk say how it went.
func (m *mover) sides(note string) []catalog.LogEntry {
	if m.row.Range == nil {
		return nil
	}
	details := append(m.details(), bson.E{Key: "note", Value: "success"})
	if note != "" {
		details = append(m.details(), bson.E{Key: "note", Value: note})
		if m.cause != nil {
			details = append(details, bson.E{Key: "errmsg", Value: m.cause.Error()})
		}
	}
	return []catalog.LogEntry{
		m.r.logEntry("moveChunk.from", m.row.NS, m.row.From, details), m.r.logEntry("moveChunk.to", m.row.NS, m.row.To, details),
	}
}

func (m *mover) details() bson.D {
	d := bson.D{{Key: "from", Value: m.row.From}, {Key: "to", Value: m.row.To}, {Key: "id", Value: m.row.ID.String()}}
	if l := m.row.Layout; l != nil {
		d = bson.D{
			{Key: "shards", Value: l.Shards()},
			{Key: "numChunks", Value: int32(len(l.Chunks))},
			{Key: "uuid", Value: binaryUUID(l.UUID)},
			{Key: "id", Value: m.row.ID.String()},
		}
		if l.Key != nil {
			d = append(bson.D{{Key: "key", Value: l.Key}}, d...)
		}
	}
	if r := m.row.Range; r != nil {
		d = append(bson.D{{Key: "min", Value: r.Min}, {Key: "max", Value: r.Max}}, d...)
	}
	return d
}

// MoveSpec says what to move: a chunk by its bounds or by a key in it, or a part of one.
type MoveSpec struct {
	NS, To string
	Find   bson.Raw // holds the whole shard key
	// Min and Max bound a chunk for moveChunk; for moveRange what moves lies within one.
	Min, Max bson.Raw
	Part     bool // of moveRange
	Wait     bool // until the donor's copy is gone, if that can be within reason
}

// MoveChunk moves a chunk of a sharded collection, or a range within one, to another shard
// while it is in use (docs/movement.md). Where it is already it stays.
func (r *Router) MoveChunk(ctx context.Context, spec *MoveSpec) error {
	if err := r.chunkMovable(r.Latest(ctx), spec); err != nil {
		return err
	}
	return r.withLock(ctx, spec.NS, "moveChunk", func(l catalog.Lock) error {
		s := r.snap.Load()
		if err := r.chunkMovable(s, spec); err != nil {
			return err
		}
		e := s.Entries[spec.NS]
		from, part, err := spec.resolve(e)
		if err != nil || from == spec.To {
			return err
		}
		if !e.Coll.Migrations {
			return mongoerr.New(mongoerr.ConflictingOperationInProgress, "Collection is undergoing changes so moveChunk is not allowed.")
		}
		for _, bound := range []bson.Raw{part.Min, part.Max} {
			if err := owned.Expressible(e.Table.Pattern(), bound); err != nil {
				return err
			}
		}
		if err := r.clearFor(ctx, l, e, spec.To, part); err != nil {
			return err
		}
		m := r.newMover(l, r.snap.Load().Entries[spec.NS], from, spec.To, part)
		if err := m.begin(ctx); err != nil || !spec.Wait {
			return err
		}
		err = r.clear(ctx, l, []catalog.Movement{m.row})
		r.log.Debug().Err(err).Str("ns", spec.NS).Msg("wait for the end of a moved chunk's former copy")
		return nil // it has moved all the same
	})
}

// chunkMovable checks what the commands ask for (MONGOS.md §1.8).
func (r *Router) chunkMovable(s *Snapshot, spec *MoveSpec) error {
	e := s.Entries[spec.NS]
	db, _ := catalog.SplitNS(spec.NS)
	switch _, known := s.Databases[db]; {
	case !known:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "database %s not found", db)
	case e != nil && e.Coll.Kind == catalog.KindView:
		return onView(spec.NS)
	case !e.Sharded():
		return mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded.", spec.NS)
	}
	if _, known := s.Shards[spec.To]; !known {
		if spec.Part {
			return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", spec.To)
		}
		return mongoerr.New(mongoerr.ShardNotFound, "moveChunk destination shard does not exist")
	}
	return nil
}

// clearFor cleans up on a shard what would be in the way of a range that comes there: what
// it has of that range and does not own, and all that it has if it owns nothing, as DDL does
// not go there.
func (r *Router) clearFor(ctx context.Context, l catalog.Lock, e *Entry, shard string, part *catalog.Range) error {
	var rows []catalog.Movement
	owns := slices.Contains(e.Table.Shards(), shard)
	for _, row := range e.unowned {
		if row.Unowned() == shard && (!owns || row.Range.Overlaps(part)) {
			rows = append(rows, row)
		}
	}
	return r.clear(ctx, l, rows)
}
