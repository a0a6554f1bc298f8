package mem

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

// row is a value with the version that last changed it.
type row[T any] struct {
	version catalog.Version
	value   T
}

// collection is a collection with what tells which of its chunks changed.
type collection struct {
	catalog.CollectionChunks

	layout catalog.Version                   // that last put all its chunks anew
	since  map[bson.ObjectID]catalog.Version // of chunks that came later
}

type tombstone struct{ kind, name string }

// Kinds of tombstones.
const (
	goneShard      = "shard"
	goneDatabase   = "database"
	goneCollection = "collection"
	goneSetting    = "setting"
	goneMovement   = "movement"
)

// state is everything that has versions. Values in it are never written to, so
// a clone of the maps is a clone of the state.
type state struct {
	version     catalog.Version
	shards      map[string]row[catalog.Shard]
	databases   map[string]row[catalog.Database]
	collections map[string]row[collection]
	settings    map[string]row[catalog.Setting]
	movements   map[string]row[catalog.Movement] // by id
	gone        map[tombstone]catalog.Version
}

func newState() state {
	return state{
		shards: map[string]row[catalog.Shard]{}, databases: map[string]row[catalog.Database]{},
		collections: map[string]row[collection]{}, settings: map[string]row[catalog.Setting]{},
		movements: map[string]row[catalog.Movement]{},
		gone:      map[tombstone]catalog.Version{},
	}
}

func (s *state) clone() state {
	return state{
		version: s.version, shards: maps.Clone(s.shards), databases: maps.Clone(s.databases),
		collections: maps.Clone(s.collections), settings: maps.Clone(s.settings),
		movements: maps.Clone(s.movements), gone: maps.Clone(s.gone),
	}
}

// delta lists what is newer than after.
func (s *state) delta(after catalog.Version, full bool) *catalog.Delta {
	d := &catalog.Delta{Version: s.version, Full: full, Cluster: catalog.ClusterID(s.settings[catalog.ClusterIDSetting].value.Doc)}
	d.Shards = newer(s.shards, after, cloneShard)
	d.Databases = newer(s.databases, after, func(v catalog.Database) catalog.Database { return v })
	d.Collections = newer(s.collections, after, func(c collection) catalog.CollectionDelta { return c.delta(after) })
	d.Settings = newer(s.settings, after, cloneSetting)
	d.Movements = newer(s.movements, after, cloneMovement)
	if full {
		return d
	}
	lists := map[string]*[]string{
		goneShard: &d.ShardsGone, goneDatabase: &d.DatabasesGone,
		goneCollection: &d.CollectionsGone, goneSetting: &d.SettingsGone, goneMovement: &d.MovementsGone,
	}
	for t, v := range s.gone {
		if v > after {
			*lists[t.kind] = append(*lists[t.kind], t.name)
		}
	}
	for _, l := range lists {
		slices.Sort(*l)
	}
	return d
}

// delta lists the chunks that are newer than a version.
func (c *collection) delta(after catalog.Version) catalog.CollectionDelta {
	if c.layout > after {
		return catalog.CollectionDelta{CollectionChunks: cloneCollectionChunks(c.CollectionChunks)}
	}
	part := c.CollectionChunks
	part.Chunks = nil
	for i := range c.Chunks {
		if c.since[c.Chunks[i].ID] > after {
			part.Chunks = append(part.Chunks, c.Chunks[i])
		}
	}
	return catalog.CollectionDelta{CollectionChunks: cloneCollectionChunks(part), Part: true}
}

func newer[T, U any](rows map[string]row[T], after catalog.Version, clone func(T) U) []U {
	var out []U
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		if r := rows[k]; r.version > after {
			out = append(out, clone(r.value))
		}
	}
	return out
}

// apply makes a change. After an error the state is of no use.
func (s *state) apply(c *catalog.Change) error {
	for _, e := range c.Expect {
		found := s.collections[e.NS].version
		if _, coll := catalog.SplitNS(e.NS); coll == "" {
			found = s.databases[e.NS].version
		}
		if found != e.Version {
			return fmt.Errorf("%w: %q is at version %d, not %d", catalog.ErrConflict, e.NS, found, e.Version)
		}
	}
	s.version++
	s.drop(c)
	s.put(c)
	for i := range c.Chunks {
		if err := s.edit(&c.Chunks[i]); err != nil {
			return err
		}
	}
	return s.check(c)
}

func (s *state) drop(c *catalog.Change) {
	for _, db := range c.DropDatabases {
		for ns := range s.collections {
			if of, _ := catalog.SplitNS(ns); of == db {
				remove(s, s.collections, goneCollection, ns)
			}
		}
		remove(s, s.databases, goneDatabase, db)
	}
	for _, ns := range c.Drop {
		remove(s, s.collections, goneCollection, ns)
	}
	for _, id := range c.DropSettings {
		remove(s, s.settings, goneSetting, id)
	}
	for _, id := range c.DropMovements {
		remove(s, s.movements, goneMovement, id.String())
	}
	for _, id := range c.DropShards {
		remove(s, s.shards, goneShard, id)
	}
}

func remove[T any](s *state, rows map[string]row[T], kind, name string) {
	if _, ok := rows[name]; ok {
		delete(rows, name)
		s.gone[tombstone{kind, name}] = s.version
	}
}

func (s *state) put(c *catalog.Change) {
	for _, v := range c.Shards {
		v = cloneShard(v)
		v.Added = s.version
		if old, ok := s.shards[v.ID]; ok {
			v.Added = old.value.Added
		}
		set(s, s.shards, goneShard, v.ID, v)
	}
	for _, v := range c.Databases {
		set(s, s.databases, goneDatabase, v.Name, v)
	}
	for i := range c.Put {
		s.putCollection(collection{CollectionChunks: cloneCollectionChunks(c.Put[i]), layout: s.version})
	}
	for i := range c.Rows {
		r := cloneCollectionChunks(catalog.CollectionChunks{Collection: c.Rows[i]})
		old, known := s.collections[r.NS]
		if !known {
			old.value.layout = s.version
		}
		r.Chunks = old.value.Chunks
		s.putCollection(collection{CollectionChunks: r, layout: old.value.layout, since: old.value.since})
	}
	for _, v := range c.Settings {
		set(s, s.settings, goneSetting, v.ID, cloneSetting(v))
	}
	for _, v := range c.Movements {
		v.Since = millis(v.Since)
		set(s, s.movements, goneMovement, v.ID.String(), cloneMovement(v))
	}
}

func (s *state) putCollection(c collection) {
	c.LastMod = millis(c.LastMod)
	c.Version = s.version
	set(s, s.collections, goneCollection, c.NS, c)
}

func set[T any](s *state, rows map[string]row[T], kind, name string, v T) {
	rows[name] = row[T]{s.version, v}
	delete(s.gone, tombstone{kind, name})
}

func (s *state) edit(e *catalog.ChunkEdit) error {
	c := s.collections[e.NS].value
	var kept, removed []catalog.Chunk
	for _, k := range c.Chunks {
		if slices.Contains(e.Remove, k.ID) {
			removed = append(removed, k)
		} else {
			kept = append(kept, k)
		}
	}
	if err := e.CheckCover(removed); err != nil {
		return err
	}
	c.since = maps.Clone(c.since)
	if c.since == nil {
		c.since = map[bson.ObjectID]catalog.Version{}
	}
	for i := range removed {
		delete(c.since, removed[i].ID)
	}
	for _, k := range e.Put {
		c.since[k.ID] = s.version
		if slices.ContainsFunc(kept, func(o catalog.Chunk) bool { return o.ID == k.ID }) {
			return fmt.Errorf("%w: %q has a chunk %s already", catalog.ErrConflict, e.NS, k.ID.Hex())
		}
		kept = append(kept, cloneChunk(k))
	}
	slices.SortFunc(kept, func(a, b catalog.Chunk) int { return bytes.Compare(a.MinKey, b.MinKey) })
	c.Chunks = kept
	s.putCollection(c)
	return nil
}

// check looks at the state as a whole, where the change may have broken it.
func (s *state) check(c *catalog.Change) error {
	for _, d := range s.databases {
		if _, ok := s.shards[d.value.Primary]; !ok {
			return fmt.Errorf("%w: shard %q of database %q is not there", catalog.ErrConflict, d.value.Primary, d.value.Name)
		}
	}
	for _, m := range s.movements {
		for _, id := range []string{m.value.From, m.value.To} {
			if _, ok := s.shards[id]; !ok {
				return fmt.Errorf("%w: shard %q of a movement of %q is not there", catalog.ErrConflict, id, m.value.NS)
			}
		}
	}
	for ns, r := range s.collections {
		db, _ := catalog.SplitNS(ns)
		if _, ok := s.databases[db]; !ok {
			return fmt.Errorf("%w: database of %q is not there", catalog.ErrConflict, ns)
		}
		for i := range r.value.Chunks {
			if _, ok := s.shards[r.value.Chunks[i].Shard]; !ok {
				return fmt.Errorf("%w: shard %q of %q is not there", catalog.ErrConflict, r.value.Chunks[i].Shard, ns)
			}
		}
	}
	for i := range c.Rows {
		if v := s.collections[c.Rows[i].NS].value; !v.Kind.Admits(len(v.Chunks)) {
			return fmt.Errorf("%w: %q is %q and cannot have its present chunks", catalog.ErrInvalid, v.NS, v.Kind)
		}
	}
	return nil
}

func cloneShard(v catalog.Shard) catalog.Shard {
	v.Tags, v.Capabilities = cloneSlice(v.Tags), cloneSlice(v.Capabilities)
	return v
}

func cloneSetting(v catalog.Setting) catalog.Setting {
	v.Doc = cloneSlice(v.Doc)
	return v
}

func cloneLog(v catalog.LogEntry) catalog.LogEntry {
	v.Details, v.Time = cloneSlice(v.Details), millis(v.Time)
	return v
}

func cloneCollectionChunks(v catalog.CollectionChunks) catalog.CollectionChunks {
	v.Key, v.Options, v.Collation = cloneSlice(v.Key), cloneSlice(v.Options), cloneSlice(v.Collation)
	chunks := make([]catalog.Chunk, len(v.Chunks))
	for i := range v.Chunks {
		chunks[i] = cloneChunk(v.Chunks[i])
	}
	v.Chunks = cloneSlice(chunks)
	return v
}

func cloneChunk(v catalog.Chunk) catalog.Chunk {
	v.Min, v.Max = cloneSlice(v.Min), cloneSlice(v.Max)
	v.MinKey, v.MaxKey = bytes.Clone(v.MinKey), bytes.Clone(v.MaxKey)
	if v.MinKey == nil {
		v.MinKey = []byte{} // the least key may be empty, and is a key
	}
	v.History = cloneSlice(v.History)
	return v
}

// cloneSlice copies a slice; what is empty comes out nil.
func cloneSlice[S ~[]T, T any](s S) S {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}

func cloneMovement(v catalog.Movement) catalog.Movement {
	if v.Range != nil {
		v.Range = &catalog.Range{
			Min: cloneSlice(v.Range.Min), Max: cloneSlice(v.Range.Max),
			MinKey: append([]byte{}, v.Range.MinKey...), MaxKey: bytes.Clone(v.Range.MaxKey),
		}
	}
	if v.Layout != nil {
		v.Layout = &catalog.Layout{UUID: v.Layout.UUID, Key: cloneSlice(v.Layout.Key), Chunks: slices.Clone(v.Layout.Chunks)}
	}
	return v
}

// millis is what is left of a time in BSON.
func millis(t time.Time) time.Time {
	return t.UTC().Truncate(time.Millisecond)
}
