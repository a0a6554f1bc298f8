package catalog

import (
	"slices"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Layout is what a resharding makes of a collection.
type Layout struct {
	UUID   uuid.UUID // of the collection from then on
	Key    bson.Raw  // the new shard key; nil: it becomes an unsharded collection
	Chunks []Chunk   // ascending; of each only ID, bounds and Shard are told
}

// TempNS is the collection, on each of the layout's shards, into which a resharding copies.
// (mongod refuses transactions on system.resharding.*.)
func (m *Movement) TempNS() string {
	db, _ := SplitNS(m.NS)
	return db + ".shardgate.reshard." + m.Layout.UUID.String()
}

// Shards lists the shards that get documents, ascending.
func (l *Layout) Shards() []string {
	var list []string
	for i := range l.Chunks {
		list = append(list, l.Chunks[i].Shard)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// storedLayout is the form in which a Layout is stored.
type storedLayout struct {
	UUID   bson.Binary   `bson:"uuid"`
	Key    bson.Raw      `bson:"key,omitempty"`
	Chunks []storedChunk `bson:"chunks"`
}

// storedChunk is one of its chunks.
type storedChunk struct {
	ID     bson.ObjectID `bson:"id"`
	Min    bson.Raw      `bson:"min"`
	Max    bson.Raw      `bson:"max"`
	MinKey []byte        `bson:"minKey"`
	MaxKey []byte        `bson:"maxKey"`
	Shard  string        `bson:"shard"`
}

// EncodeLayout makes the bytes by which a Store keeps a layout; nil of none.
func EncodeLayout(l *Layout) ([]byte, error) {
	if l == nil {
		return nil, nil
	}
	s := storedLayout{UUID: bson.Binary{Subtype: 4, Data: l.UUID[:]}, Key: l.Key}
	for i := range l.Chunks {
		c := &l.Chunks[i]
		s.Chunks = append(s.Chunks, storedChunk{c.ID, c.Min, c.Max, c.MinKey, c.MaxKey, c.Shard})
	}
	return bson.Marshal(s)
}

// DecodeLayout is the inverse of EncodeLayout.
func DecodeLayout(b []byte) (*Layout, error) {
	if b == nil {
		return nil, nil
	}
	var s storedLayout
	if err := bson.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	id, err := uuid.FromBytes(s.UUID.Data)
	if err != nil {
		return nil, err
	}
	l := &Layout{UUID: id, Key: s.Key}
	for _, c := range s.Chunks {
		l.Chunks = append(l.Chunks, Chunk{ID: c.ID, Min: c.Min, Max: c.Max, MinKey: c.MinKey, MaxKey: c.MaxKey, Shard: c.Shard})
	}
	return l, nil
}
