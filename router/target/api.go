// Package target is being written: this file holds its exported signatures and goes away when
// the code is there.
package target

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// Why says how a query was targeted.
type Why string

// The reasons.
const (
	WhyKey           Why = "key"           // full key equality: one chunk
	WhyRanges        Why = "ranges"        // points or ranges of the key
	WhyAll           Why = "all"           // nothing known of the key's first field
	WhyContradiction Why = "contradiction" // nothing can match: one shard, to have an answer
)

// Targets are the shards a query must be sent to.
type Targets struct {
	Shards shardkey.ShardSet // indexes into Table.Shards; never empty
	Exact  bool              // the query pins the whole key, and all of it lies in one chunk
	// Key is the key that the query pins by equality on every field; nil if it does not. It may be
	// set although Exact is false: {k: null} also matches a stored undefined, which may live in
	// another chunk. A write of one document, and an upsert, goes to the chunk of Key.
	Key []byte
	Why Why
}

// Query returns the shards that can hold a match of filter. collated: a collation other than
// simple applies.
func Query(p *shardkey.Pattern, t *shardkey.Table, filter bson.Raw, collated bool) (Targets, error) {
	return Targets{}, nil
}

// ExactKey is the fast path: the key, if the filter names every key field in plain equality.
// Without allocation when dst has room. !ok: ask Query.
func ExactKey(p *shardkey.Pattern, dst []byte, filter []byte, collated bool) (key []byte, ok bool) {
	return dst, false
}

// Update is an update statement, as far as targeting needs it.
type Update struct {
	Filter   bson.Raw
	Collated bool
	Mods     bson.RawValue // operators, replacement, or pipeline
	Upsert   bool
}

// MayChangeKey says whether the update may give a document another shard key value. Only false is
// certain. A replacement is compared with the key that Filter pins.
func MayChangeKey(p *shardkey.Pattern, u Update) bool { return true }

// ReplacementKeepsKey says whether a replacement document has the key given (of the document it
// replaces); a missing _id is kept.
func ReplacementKeepsKey(p *shardkey.Pattern, key []byte, replacement bson.Raw) bool { return false }

// ReplacementKey returns the key that the replacement will have, its _id taken from the filter if
// it has none. !ok: the key is not known (no _id).
func ReplacementKey(p *shardkey.Pattern, dst []byte, u Update) (key []byte, ok bool, err error) {
	return dst, false, nil
}
