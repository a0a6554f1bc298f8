// Package target says which shards an operation must go to. It is pure: a shard
// key, a routing table and raw BSON go in, a printable value comes out.
//
// # Rules
//
// One rule stands above the others: a shard that could hold a matching document
// is never left out. Where the meaning of a condition is not certain it narrows
// nothing, and a shard that gets a query in vain answers with nothing, or with
// the error a single mongod would give.
//
// A filter is read into boxes. A box is a conjunction: for every field of the key
// a set of intervals of ordered bytes (see package shardkey). $and multiplies
// boxes, $or adds them; above a limit they are joined into one that contains
// them. Conditions that narrow are equality, $eq, $in, $gt, $gte, $lt, $lte (within
// the class of types they compare with), {$exists: false}, an anchored regular
// expression without options, and equality with a whole object above a key field.
// All others ($ne, $nin, $not, $nor, $expr, $elemMatch, $all, $type, $mod, …) do
// not. On a hashed field only points narrow, and a value is searched under its
// own hash, as mongod's hashed index does.
//
// Then each box becomes ranges of whole keys: points of leading fields multiply;
// the first field with a range ends the key. More than maxPoints combinations
// become one range from the least to the greatest value.
//
// Documents never have arrays at the fields of a key, so {a: 1, $and: [{a: 2}]} is a
// contradiction; it is sent to one shard, which has nothing to find.
//
// # Null
//
// Missing and null are one place. A query for null also matches a stored
// undefined (before MongoDB 8.0), which orders just below null and has another
// hash; so a query for null has two points.
//
// # Collation
//
// A collation other than simple makes conditions on strings, symbols, code,
// objects and arrays useless, because keys are placed by their bytes.
//
// # Updates
//
// MayChangeKey looks at what an update could do to the key. Only its "no" is
// certain.
package target
