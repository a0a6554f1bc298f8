// Package shardkey is being written: this file holds its exported signatures
// and goes away when the code is there.
package shardkey

import (
	"errors"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

var errTODO = errors.New("shardkey: not written yet")

// ErrArray: a document has an array on the path of, or at, a shard key field (code 61).
var ErrArray = errors.New("Shard key cannot contain array values or array descendants.")

// ErrMalformed: the BSON is broken.
var ErrMalformed = errors.New("shardkey: malformed BSON")

// Pattern is a shard key: immutable, safe for concurrent use.
type Pattern struct{}

// Field is one field of a pattern.
type Field struct {
	Name   string
	Hashed bool
}

// ParsePattern reads {a: 1, b: "hashed"}; the error's text is for the client (code 2).
func ParsePattern(raw bson.Raw) (*Pattern, error) { return nil, errTODO }

// Raw returns the key document.
func (p *Pattern) Raw() bson.Raw { return nil }

// String is the key as MongoDB prints it.
func (p *Pattern) String() string { return "" }

// Len is the number of fields.
func (p *Pattern) Len() int { return 0 }

// Field returns field i.
func (p *Pattern) Field(i int) Field { return Field{} }

// HashedField is the index of the hashed field, or -1.
func (p *Pattern) HashedField() int { return -1 }

// AppendBound encodes a chunk bound with all fields of the key.
func (p *Pattern) AppendBound(dst []byte, bound bson.Raw) ([]byte, error) { return dst, errTODO }

// AppendKey encodes the key of a document; ErrArray, ErrMalformed.
func (p *Pattern) AppendKey(dst []byte, doc []byte) ([]byte, error) { return dst, errTODO }

// AppendField encodes a value as field i of a key does (hashed if it is hashed).
func (p *Pattern) AppendField(dst []byte, i int, t bson.Type, value []byte) []byte { return dst }

// KeyDocument returns the key's values as {field: value}; hashed true: with the hash in place of
// the hashed field's value, so that it can be a chunk bound.
func (p *Pattern) KeyDocument(doc bson.Raw, hashed bool) (bson.Raw, error) { return nil, errTODO }

// ExtendBound completes a bound that has only the first fields with MinKey (zones).
func (p *Pattern) ExtendBound(bound bson.Raw) (bson.Raw, error) { return nil, errTODO }

// MinBound is {a: MinKey, …}.
func (p *Pattern) MinBound() bson.Raw { return nil }

// MaxBound is {a: MaxKey, …}.
func (p *Pattern) MaxBound() bson.Raw { return nil }

// Hash is mongod's hashed-index key of a value.
func Hash(t bson.Type, value []byte) int64 { return 0 }

// AppendOrdered appends order-preserving bytes of a value.
func AppendOrdered(dst []byte, t bson.Type, value []byte) []byte { return dst }

// Compare orders two values as BSON does, without collation.
func Compare(t1 bson.Type, v1 []byte, t2 bson.Type, v2 []byte) int { return 0 }

// Format prints a document as MongoDB's messages do: { x: 50 }.
func Format(doc bson.Raw) string { return "" }

// HashedSplitPoints returns the n-1 cuts of n chunks.
func HashedSplitPoints(n int) []int64 { return nil }

// InitialChunks makes the chunks of a new sharded collection: n if the key begins with a hashed
// field, otherwise one, on the primary. at is the history's first time.
func InitialChunks(p *Pattern, n int, shardIDs []string, primary string, at catalog.Timestamp) []catalog.Chunk {
	return nil
}

// SingleChunk makes the one chunk of an unsharded collection, {_id: MinKey} to {_id: MaxKey}.
func SingleChunk(shard string, at catalog.Timestamp) []catalog.Chunk { return nil }

// FillBounds sets MinKey and MaxKey of chunks from Min and Max.
func FillBounds(p *Pattern, chunks []catalog.Chunk) error { return errTODO }

// Table is an immutable routing table of one collection.
type Table struct{}

// NewTable checks that the chunks cover the key space without gap or overlap.
func NewTable(c catalog.CollectionChunks) (*Table, error) { return nil, errTODO }

// Pattern is the collection's key; {_id: 1} if it is unsharded.
func (t *Table) Pattern() *Pattern { return nil }

// Collection returns the collection's row.
func (t *Table) Collection() *catalog.Collection { return nil }

// Len is the number of chunks.
func (t *Table) Len() int { return 0 }

// Chunk returns chunk i, which must not be changed.
func (t *Table) Chunk(i int) *catalog.Chunk { return nil }

// Find returns the index of the chunk that holds the key.
func (t *Table) Find(key []byte) int { return 0 }

// ShardOf returns the owner of chunk i as an index into Shards.
func (t *Table) ShardOf(i int) int { return 0 }

// Shards are the ids of the shards that own chunks, ascending.
func (t *Table) Shards() []string { return nil }

// Overlap adds the owners of chunks that meet [lo, hi) or [lo, hi].
func (t *Table) Overlap(lo, hi []byte, hiInclusive bool, set *ShardSet) {}

// ShardSet is a set of indexes into Table.Shards; the zero value is empty.
type ShardSet struct{}

// Add puts i into the set.
func (s *ShardSet) Add(i int) {}

// Has says whether i is in the set.
func (s *ShardSet) Has(i int) bool { return false }

// Len is the number of members.
func (s *ShardSet) Len() int { return 0 }

// First is the least member, or -1.
func (s *ShardSet) First() int { return -1 }

// All yields the members, ascending.
func (s *ShardSet) All() iter.Seq[int] { return nil }
