// Package configdb shows the catalog as the documents of MongoDB's config
// database, which mongosh and other tools read. [Documents] makes those of one
// collection out of a [Snapshot]; both are pure data, and nothing is stored.
//
// Two things differ from a real config server, on purpose. Chunks carry ns beside
// uuid, so that readers of either find what they look for. Unsharded collections
// are there too, with unsplittable: true and one chunk, as MongoDB 8.0 has it for
// those that it tracks.
//
// The package must not know where a snapshot comes from, nor how documents are
// queried.
package configdb
