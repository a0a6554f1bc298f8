package compat

import (
	"reflect"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// differences are those that MongoDB's own mongos has, too.
var differences = []difference{
	{
		name: "count tells the shards' counts",
		why:  "a router tells how many documents each shard counted",
		page: "MONGOS.md §1.5 count", shape: "unsharded", example: `{"count": "c"}`,
		rewrite: func(c *call, reply bson.D) bson.D {
			if c.name != "count" {
				return reply
			}

			return without(reply, "shards")
		},
	},
	{
		name: "index commands tell the shards' replies",
		why:  "the reply of each shard is in raw; here they must all be what the judge answers",
		page: "MONGOS.md §1.5", shape: "ranged", example: `{"createIndexes": "c", "indexes": [{"key": {"i": 1}, "name": "i_1"}]}`,
		rewrite: func(_ *call, reply bson.D) bson.D { return fromRaw(reply) },
	},
	{
		name: "_id is unique within a shard only",
		why:  "no index spans shards; _id is unique everywhere only where it is the shard key",
		page: "https://www.mongodb.com/docs/manual/core/sharding-shard-key/#unique-indexes", shape: "field_hashed",
		example: `{"insert": "c", "documents": [{"_id": 0, "k": "some"}, {"_id": 0, "k": "thing"}, {"_id": 0, "k": "else"}, {"_id": 0, "k": 77}], "ordered": false}`,
		covers: func(c *call) bool {
			return c.shape.key != nil && c.shape.key[0].Key != "_id" && c.writes() && slices.Contains(c.judge.codes(), 11000)
		},
	},
	{
		name: "a unique index must begin with the shard key",
		why:  "a shard can only see to the uniqueness of what it holds",
		page: "https://www.mongodb.com/docs/manual/core/sharding-shard-key/#unique-indexes", shape: "ranged",
		example: `{"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u_1", "unique": true, "sparse": true}]}`,
		covers:  func(c *call) bool { return c.sharded("createIndexes") && c.router.has(67) },
	},
	{
		name: "the shard key's index stays",
		why:  "without it a shard could not tell what is in a chunk",
		page: "https://www.mongodb.com/docs/manual/core/sharding-shard-key/#shard-key-indexes", shape: "field_hashed",
		example: `{"dropIndexes": "c", "index": "k_hashed"}`,
		covers:  func(c *call) bool { return c.sharded("dropIndexes") && c.router.has(370) },
	},
	{
		name: "a field that is set to nothing has no place",
		why: "within one mongod a pipeline keeps the place of a field that a stage sets to what is missing; where the shards' half ends it is gone, and " +
			"a stage of the merging half that sets it adds it at the end",
		page: "https://www.mongodb.com/docs/manual/core/aggregation-pipeline-sharded-collections/", shape: "compound",
		example: `{"aggregate": "c", "pipeline": [{"$set": {"y": "$nosuch"}}, {"$set": {"x": 1}}, {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"y": {"$max": "$_id"}}}}], "cursor": {}}`,
		covers: func(c *call) bool {
			return c.sharded("aggregate") && slices.Equal(withoutOrder(c.router.docs), withoutOrder(c.judge.docs)) && strings.Contains(text(c.cmd, false), "$setWindowFields")
		},
	},
	{
		name: "all indexes but that of the shard key",
		why:  "shards are told which ones to drop, and say nothing of all",
		page: "https://www.mongodb.com/docs/manual/core/sharding-shard-key/#shard-key-indexes", shape: "field_hashed",
		example: `{"dropIndexes": "c", "index": "*"}`,
		covers: func(c *call) bool {
			return c.sharded("dropIndexes") && get(c.cmd, "index") == "*" && c.router.code() == 0
		},
	},
	{
		name: "a shard key holds no array",
		why:  "a document has one place",
		page: "https://www.mongodb.com/docs/manual/reference/limits/#mongodb-limit-Shard-Key-Size", shape: "ranged",
		example: `{"insert": "c", "documents": [{"_id": 100, "r": [1, 2]}]}`,
		covers:  func(c *call) bool { return c.sharded("insert") && c.router.has(61) },
	},
	{
		name: "an upsert of many documents must hold the shard key",
		why:  "else there is no one shard to insert on",
		page: "https://www.mongodb.com/docs/manual/reference/command/update/#sharded-collections", shape: "id_hashed",
		example: `{"update": "c", "updates": [{"q": {"z": 5}, "u": {"$set": {"z": 1}}, "upsert": true, "multi": true}]}`,
		covers:  func(c *call) bool { return c.sharded("update") && c.router.has(61) },
	},
	{
		name: "many documents do not change their shard keys at once",
		why:  "each might have to move to another shard",
		page: "https://www.mongodb.com/docs/manual/core/sharding-change-shard-key-value/", shape: "ranged",
		example: `{"update": "c", "updates": [{"q": {"i": 1}, "u": {"$set": {"r": 4}}, "multi": true}]}`,
		covers:  func(c *call) bool { return c.sharded("update") && c.router.has(72) && !c.judge.has(52) },
	},
	{
		name: "an update of many documents that fails on one shard",
		why:  "the other shards do not know of it and go on; a mongod stops at the document that fails",
		page: "https://www.mongodb.com/docs/manual/reference/method/db.collection.updateMany/#behaviors", shape: "id_hashed",
		example: `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"n": {"$numberLong": "1"}}}, "multi": true}]}`,
		covers: func(c *call) bool {
			errs, _ := get(c.judge.reply, "writeErrors").(bson.A)
			return c.sharded("update") && len(errs) > 0 && slices.Equal(c.router.codes(), c.judge.codes()) && c.updatesMany(errs[0].(bson.D))
		},
	},
	{
		name: "an unacknowledged write is acknowledged to the router",
		why:  "shards get w: 1 instead of w: 0; no client reads the reply",
		page: "MONGOS.md §2.8", shape: "unsharded", example: `{"insert": "c", "documents": [{"_id": 100}], "writeConcern": {"w": 0}}`,
		covers: func(c *call) bool {
			wc, _ := get(c.cmd, "writeConcern").(bson.D)
			return c.writes() && reflect.DeepEqual(get(wc, "w"), int32(0)) && c.router.code() == 0
		},
	},
}

// pending are faults of shardgate that are known and not mended yet.
var pending []difference

// fromRaw makes a mongod's reply of a router's to an index command.
func fromRaw(reply bson.D) bson.D {
	raw, _ := get(reply, "raw").(bson.D)
	if len(raw) == 0 {
		return reply
	}

	if get(reply, "ok") != 1.0 {
		return without(reply, "raw")
	}

	first, _ := raw[0].Value.(bson.D)
	for _, e := range raw {
		if text(e.Value, false) != text(first, false) {
			return reply
		}
	}

	return append(without(reply, "raw", "ok"), first...)
}

// codes lists the codes of an answer's errors, of each statement's too.
func (a *answer) codes() []int {
	list := []int{a.code()}

	errs, _ := get(a.reply, "writeErrors").(bson.A)
	for _, e := range errs {
		d, _ := e.(bson.D)
		n, _ := get(d, "code").(int32)
		list = append(list, int(n))
	}

	return list
}

// refusal is the text of the first error of an answer.
func (a *answer) refusal() string {
	errmsg, _ := get(a.reply, "errmsg").(string)
	if errs, _ := get(a.reply, "writeErrors").(bson.A); errmsg == "" && len(errs) > 0 {
		d, _ := errs[0].(bson.D)
		errmsg, _ = get(d, "errmsg").(string)
	}

	return errmsg
}

// has reports whether a code is among an answer's.
func (a *answer) has(code int) bool { return slices.Contains(a.codes(), code) }

// updatesMany reports whether the statement of a write error is an update of many documents.
func (c *call) updatesMany(writeError bson.D) bool {
	updates, _ := get(c.cmd, "updates").(bson.A)
	at, _ := get(writeError, "index").(int32)
	statement, _ := updates[at].(bson.D)

	return get(statement, "multi") == true
}

// sharded reports whether a call is one of these commands on a sharded collection.
func (c *call) sharded(names ...string) bool {
	return c.shape.key != nil && slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, c.name) })
}

// withoutOrder is texts of documents, sorted, whatever the order of their fields.
func withoutOrder(docs []bson.Raw) []string {
	list := make([]string, len(docs))

	for i, raw := range docs {
		var d bson.D
		if bson.Unmarshal(raw, &d) != nil {
			return nil
		}

		slices.SortFunc(d, func(a, b bson.E) int { return strings.Compare(a.Key, b.Key) })
		list[i] = text(d, false)
	}

	slices.Sort(list)

	return list
}
