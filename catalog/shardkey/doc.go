// Package shardkey knows what a shard key is: its pattern, its order, its hash,
// and which chunk of a routing table a key lies in. It is pure: no I/O, no
// clock, no locks; every exported value is immutable and safe for concurrent use.
//
// # Ordered bytes
//
// Keys are compared as bytes. AppendOrdered encodes any BSON value so that
// bytes.Compare gives BSON's order without collation, and values that compare
// equal (2, 2.0, Long 2, Decimal 2.00) have equal bytes. Every encoding
//   - begins with a byte of the value's class, from 0x01 to 0xFE, in BSON's order
//     of types;
//   - is never a proper prefix of another, so that the encodings of a compound
//     key's fields can simply follow each other.
//
// Two consequences are used everywhere. A byte string that consists of the first
// fields of a key is less than or equal to every key that begins with them. And
// the same string with After behind it is greater than all of those and less
// than everything that follows.
//
// Numbers of all four types share one form: the double that is nearest towards
// zero, as eight order-preserving bytes, and a byte that says whether it is
// exact. If it is not (an int64 beyond 2^53, most Decimal128 fractions), the
// decimal digits follow. NaN is the least number.
//
// A hashed field is encoded as a class of its own and the 64-bit hash; in chunk
// bounds, MinKey and MaxKey stand below and above all hashes.
//
// # Stored form
//
// Chunk bounds are stored in this form (catalog.Chunk.MinKey), so the encoding
// may not change without a migration of the catalog.
package shardkey
