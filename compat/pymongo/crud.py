"""What a newcomer does with PyMongo, on a collection that is sharded and on one that is not.

Usage: crud.py URI OTHER_URI DATABASE. Every step is checked; the last line printed is "crud done".
"""

import sys

import pymongo
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

TOTAL = 10_000


def step(name):
    print("==", name, flush=True)


def equal(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what} got {got!r}, want {want!r}")


def code_of(call):
    """Returns the code with which a call fails."""
    try:
        call()
    except OperationFailure as e:
        return e.code
    raise AssertionError("no error")


def reads(coll):
    equal(coll.count_documents({}), TOTAL)
    equal(coll.estimated_document_count(), TOTAL)
    equal(coll.count_documents({"group": 3}), TOTAL // 10)
    equal(coll.count_documents({}, skip=9_990, limit=50), 10)
    equal(coll.find_one({"k": "key77"})["_id"], 77)
    equal(coll.find_one({"_id": 77})["k"], "key77")
    equal(coll.find_one({"k": "nobody"}), None)

    for size in (None, 2, 7, 1_000, 20_000):
        cursor = coll.find({"_id": {"$lt": 2_500}})
        if size:
            cursor = cursor.batch_size(size)
        equal(sorted(d["_id"] for d in cursor), list(range(2_500)), f"batch size {size}")

    equal(len(list(coll.find().limit(37))), 37)
    equal(len(list(coll.find({}, {"_id": 1}).skip(9_990))), 10)
    equal(list(coll.find({"k": "key5"}, {"k": 1, "_id": 0})), [{"k": "key5"}])

    wanted = [f"key{i}" for i in range(0, 300, 7)]
    equal({d["k"] for d in coll.find({"k": {"$in": wanted}})}, set(wanted))
    equal({d["k"] for d in coll.find({"k": {"$in": wanted[:2]}, "_id": 7})}, {"key7"})
    equal(sorted(coll.distinct("group")), list(range(10)))
    equal(coll.distinct("nothing"), [])
    equal(coll.distinct("group", {"k": "key3"}), [3])
    equal(list(coll.aggregate([{"$match": {"k": "key42"}}, {"$project": {"double": {"$multiply": ["$n", 2]}}}])), [{"_id": 42, "double": 0}])

    cursor = coll.find().batch_size(5)
    next(cursor)
    cursor.close()


def writes(coll):
    equal(coll.update_one({"k": "key9"}, {"$inc": {"n": 1}}).modified_count, 1)
    equal(coll.update_one({"k": "key9"}, {"$set": {"n": 1}}).matched_count, 1)
    equal(coll.update_many({"group": 4}, {"$inc": {"n": 5}}).modified_count, TOTAL // 10)
    equal(coll.count_documents({"n": 5}), TOTAL // 10)
    equal(coll.replace_one({"k": "key9"}, {"k": "key9", "replaced": True}).modified_count, 1)
    equal(coll.find_one({"k": "key9"}), {"_id": 9, "k": "key9", "replaced": True})

    result = coll.update_one({"k": "fresh"}, {"$set": {"n": 1}}, upsert=True)
    equal(coll.find_one({"k": "fresh"})["_id"], result.upserted_id)
    equal(coll.delete_one({"k": "fresh"}).deleted_count, 1)

    equal(coll.find_one_and_update({"k": "key10"}, {"$set": {"n": 7}}, return_document=True)["n"], 7)
    equal(coll.find_one_and_delete({"k": "key10"})["_id"], 10)
    equal(coll.find_one_and_replace({"k": "key11"}, {"k": "key11", "new": 1})["n"], 0)

    equal(coll.delete_many({"group": 6}).deleted_count, TOTAL // 10)
    equal(coll.delete_many({"group": 6}).deleted_count, 0)
    equal(coll.count_documents({}), TOTAL - TOTAL // 10 - 1)
    try:
        coll.insert_one({"_id": 1, "k": "key1"})
    except DuplicateKeyError as e:
        equal(e.code, 11000)
    else:
        raise AssertionError("a duplicate was inserted")


def bulk(coll):
    coll.delete_many({})
    coll.insert_many({"_id": i, "k": f"key{i}"} for i in range(40))
    requests = [
        InsertOne({"_id": 100, "k": "key100"}),
        InsertOne({"_id": 3, "k": "key3"}),  # 1: a duplicate
        UpdateOne({"k": "key5"}, {"$set": {"a": 1}}),
        UpdateMany({"_id": {"$gte": 20}}, {"$set": {"b": 1}}),
        UpdateOne({"k": "key6"}, {"$badOperator": 1}),  # 4: not an operator
        ReplaceOne({"k": "key7"}, {"k": "key7", "c": 1}),
        DeleteOne({"k": "key8"}),
        InsertOne({"_id": 9, "k": "key9"}),  # 7: a duplicate
        UpdateOne({"k": "key200"}, {"$set": {"a": 1}}, upsert=True),
        DeleteMany({"_id": {"$in": [30, 31, 32]}}),
    ]
    try:
        coll.bulk_write(requests, ordered=False)
    except BulkWriteError as e:
        d = e.details
        equal(sorted((w["index"], w["code"]) for w in d["writeErrors"]), [(1, 11000), (4, 9), (7, 11000)])
        equal((d["nInserted"], d["nMatched"], d["nRemoved"], d["nUpserted"]), (1, 23, 4, 1), d)
        equal(d["upserted"][0]["index"], 8)
    else:
        raise AssertionError("no error")
    equal(coll.count_documents({}), 38)

    try:
        coll.bulk_write(requests[2:], ordered=True)
    except BulkWriteError as e:
        equal([(w["index"], w["code"]) for w in e.details["writeErrors"]], [(2, 9)])
        equal(e.details["nMatched"], 1 + 18, e.details)
    else:
        raise AssertionError("no error")
    equal(coll.count_documents({"k": "key7", "c": 1}), 1)


def two_keys_apart(client, db):
    """Finds two keys of db.c that live on different shards, by asking where documents are."""
    chunks = list(client.config.chunks.find({"ns": f"{db.name}.c"}).sort("min", 1))
    hashes = db.aggregate([{"$documents": [{"k": f"key{i}"} for i in range(40)]}, {"$project": {"k": 1, "h": {"$toHashedIndexKey": "$k"}}}])
    places = {}
    for d in hashes:
        home = [c["shard"] for c in chunks if not isinstance(c["min"]["k"], int) or c["min"]["k"] <= d["h"]][-1]
        places.setdefault(home, d["k"])
    first, second = sorted(places.values())[:2]
    return first, second


def transactions(client, db):
    coll = db.c
    coll.delete_many({})
    first, second = two_keys_apart(client, db)
    coll.insert_many([{"_id": 1, "k": first, "n": 0}, {"_id": 2, "k": second, "n": 0}])

    with client.start_session() as s:
        with s.start_transaction():
            coll.update_one({"k": first}, {"$inc": {"n": 1}}, session=s)
            equal(coll.find_one({"k": first}, session=s)["n"], 1)
            equal(coll.find_one({"k": first})["n"], 0, "outside")
        equal(coll.find_one({"k": first})["n"], 1)

        s.start_transaction()
        coll.update_one({"k": first}, {"$inc": {"n": 1}}, session=s)
        s.abort_transaction()
        equal(coll.find_one({"k": first})["n"], 1)

        s.start_transaction()
        coll.update_one({"k": first}, {"$inc": {"n": 1}}, session=s)
        equal(code_of(lambda: coll.update_one({"k": second}, {"$inc": {"n": 1}}, session=s)), 238, "a second shard")
        s.abort_transaction()
        equal(sorted(d["n"] for d in coll.find()), [0, 1])

        # The session is as good as new.
        s.with_transaction(lambda s: coll.update_one({"k": second}, {"$inc": {"n": 5}}, session=s))
        equal(coll.find_one({"k": second})["n"], 5)


def refusals(db):
    """What is not there yet says so and changes nothing."""
    coll = db.c
    before = sorted(coll.find(), key=lambda d: d["_id"])
    key = before[0]["k"]
    for update in (
        {"$set": {"k": "elsewhere"}}, {"$unset": {"k": 1}}, {"$rename": {"k": "x"}}, {"$rename": {"n": "k"}}, {"$inc": {"k": 1}},
        {"k": "elsewhere"}, [{"$set": {"k": "elsewhere"}}],
    ):
        call = coll.replace_one if "k" in update else coll.update_one
        with db.client.start_session() as s:
            s.start_transaction()
            equal(code_of(lambda: call({"k": key}, update, session=s)), 238, update)
    equal(code_of(lambda: list(coll.watch(max_await_time_ms=10))), 238)
    equal(code_of(lambda: db.client.admin.command("removeShard", "nosuch")), 238)
    equal(code_of(lambda: db.command("noSuchCommand")), 59)
    equal(sorted(coll.find(), key=lambda d: d["_id"]), before)


def main():
    uri, other_uri, name = sys.argv[1:]
    client, other = pymongo.MongoClient(uri), pymongo.MongoClient(other_uri)
    db = client[name]
    equal(client.admin.command("hello")["msg"], "isdbgrid")
    client.admin.command("shardCollection", f"{name}.c", key={"k": "hashed"})

    for coll in (db.c, db.plain):
        step(coll.name)
        docs = [{"_id": i, "k": f"key{i}", "group": i % 10, "n": 0} for i in range(TOTAL)]
        # Ordered is what a newcomer does: on a sharded collection each document has to wait for the one before.
        equal(len(coll.insert_many(docs[:1_000]).inserted_ids), 1_000)
        equal(len(coll.insert_many(docs[1_000:], ordered=False).inserted_ids), TOTAL - 1_000)
        reads(coll)
        reads(other[name][coll.name])
        writes(coll)
        bulk(other[name][coll.name])

    step("transactions")
    transactions(client, db)
    step("refusals")
    refusals(db)

    step("the rest")
    equal(sorted(db.list_collection_names()), ["c", "plain"])
    equal(name in other.list_database_names(), True)
    db.plain.create_index([("k", 1)], name="by_k")
    equal(sorted(other[name].plain.index_information()), ["_id_", "by_k"])
    db.plain.drop_index("by_k")
    equal(list(db.plain.index_information()), ["_id_"])
    db.plain.drop()
    equal(other[name].list_collection_names(), ["c"])

    everywhere = pymongo.MongoClient([uri.split("/")[2], other_uri.split("/")[2]])
    equal(everywhere[name].c.count_documents({}), 2)
    equal(everywhere.topology_description.topology_type_name, "Sharded")
    print("crud done")


if __name__ == "__main__":
    main()
