// Package owned writes the condition, in MongoDB's query language, that a document's shard
// key lies in given ranges. A shard that has documents which it does not own (incoming
// copies, leftovers of a movement) leaves them out by it (PROTOCOL.md F14). It is pure.
//
// It is an $expr. Of a hashed field it compares $toHashedIndexKey of the value; of others
// the values, whole keys as arrays, which mongod compares field by field in BSON's order, a
// missing one as null.
//
// # Collations
//
// Strings in an $expr compare by the collation of the query or else of the collection, while
// keys lie in ranges by their bytes. Two things compare by bytes under every collation: the
// names of objects' fields, and symbols. So a string is compared with a string bound as the
// name of a field: {<string>: 1} with {<bound>: 1}. A name cannot hold NUL; it becomes 01 01,
// and 01 becomes 01 02, which keeps the order. All else is compared with the bound as a
// symbol, which has a string's place among the types. Where the bound is no string, strings
// and it compare by type alone.
//
// A bound that is an object, an array or a code with scope, with a string or symbol inside,
// would be bent, and a DBPointer orders differently in an $expr: there is no condition for
// these, and such a range must not move (ErrBound).
//
// # Edges
//
// MinKey at the end of a bound is left away: the fields before say it all. The upper bound
// of the last chunk, MaxKey in every field, is no bound: a key of MaxKey lies in that chunk.
package owned
