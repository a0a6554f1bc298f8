"""PyMongo through every step of ../README.md."""

import os
import threading
import time

from pymongo import DeleteOne, InsertOne, MongoClient, ReadPreference, ReplaceOne, UpdateMany
from pymongo.errors import BulkWriteError, DocumentTooLarge, DuplicateKeyError, OperationFailure
from pymongo.monitoring import CommandListener

MANY_DB, MANY_COLL = os.environ["MANY"].split(".")


def done(step, n):
    print("step", step, n, flush=True)


def equal(got, want):
    if got != want:
        raise AssertionError(f"got {str(got)[:500]}, want {str(want)[:500]}")


def fails(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError("no error")


def connect(uri, **options):
    client = MongoClient(os.environ[uri], **options)
    return client, client[os.environ["DB"]].c


class Listener(CommandListener):
    def __init__(self):
        self.begun, self.ended, self.modes, self.services = [], [], [], set()

    def started(self, event):
        self.begun.append(event.command_name)
        self.modes.append(event.command.get("$readPreference", {}).get("mode", "primary"))
        self.services.add(event.service_id)

    def succeeded(self, event):
        self.ended.append(event.command_name)

    def failed(self, event):
        self.ended.append(event.command_name + " failed")


def several(client, coll):
    coll.find_one({"_id": "nobody"})
    equal(client.topology_description.topology_type_name, "Sharded")
    done("several", len(client.topology_description.server_descriptions()))


def crud(client, coll):
    equal(coll.insert_one({"_id": "a", "n": 1}).inserted_id, "a")
    equal(coll.find_one({"_id": "a"}), {"_id": "a", "n": 1})
    equal(coll.update_one({"_id": "a"}, {"$inc": {"n": 1}}).modified_count, 1)
    equal(coll.update_one({"_id": "b"}, {"$set": {"n": 5}}, upsert=True).upserted_id, "b")
    equal(coll.find_one_and_update({"_id": "b"}, {"$inc": {"n": 1}}, return_document=True)["n"], 6)
    equal(coll.replace_one({"_id": "a"}, {"n": 7}).modified_count, 1)
    equal([d["n"] for d in coll.find({"n": {"$gte": 6}}).sort("n", -1)], [7, 6])
    equal(next(coll.aggregate([{"$match": {"n": {"$gt": 0}}}, {"$group": {"_id": None, "sum": {"$sum": "$n"}}}]))["sum"], 13)
    fails(DuplicateKeyError, lambda: coll.insert_one({"_id": "a"}))
    equal(coll.delete_many({"n": {"$exists": True}}).deleted_count, 2)
    done("crud", 10)


REQUESTS = [
    InsertOne({"_id": 1000, "bulk": 1}),
    InsertOne({"_id": 3}),
    UpdateMany({"bulk": 1, "_id": {"$lt": 500}}, {"$set": {"half": 1}}),
    DeleteOne({"_id": 7}),
    ReplaceOne({"_id": 1001}, {"bulk": 1}, upsert=True),
]


def bulk(client, coll):
    equal(len(coll.insert_many([{"_id": i, "bulk": 1} for i in range(1000)], ordered=False).inserted_ids), 1000)
    d = fails(BulkWriteError, lambda: coll.bulk_write(REQUESTS, ordered=False)).details
    equal([(e["index"], e["code"]) for e in d["writeErrors"]], [(1, 11000)])
    equal((d["nInserted"], d["nModified"], d["nRemoved"], d["nUpserted"]), (1, 500, 1, 1))
    done("bulk", coll.count_documents({"bulk": 1}))


def cursor(client, coll):
    n = total = 0
    for d in client[MANY_DB][MANY_COLL].find(batch_size=5000):
        n += 1
        total += d["_id"]
    equal(total, 4999950000)
    done("cursor", n)


def large(client, coll):
    s = "x" * (16 * 1024 * 1024 - 22)
    coll.insert_one({"_id": 5000, "s": s})
    other, c = connect("URI_OTHER")
    equal(c.find_one({"_id": 5000})["s"] == s, True)
    other.close()
    fails((DocumentTooLarge, OperationFailure), lambda: coll.insert_one({"_id": 5001, "s": s + "x"}))
    equal(coll.count_documents({"_id": 5001}), 0)
    done("large", len(s) + 22)


def compression():
    text = "words " * 20000
    names = ["snappy", "zlib", "zstd"]
    for name in names:
        client, coll = connect("URI_WATCHED", compressors=name)
        coll.insert_one({"_id": name, "text": text})
        equal(coll.find_one({"_id": name})["text"], text)
        client.close()
    done("compression", len(names))


def preferences():
    listener = Listener()
    client, coll = connect("URI_ONE", event_listeners=[listener])
    modes = [ReadPreference.PRIMARY, ReadPreference.PRIMARY_PREFERRED, ReadPreference.SECONDARY_PREFERRED, ReadPreference.NEAREST]
    for mode in modes:
        equal(len(list(coll.with_options(read_preference=mode).find({"bulk": 1}, batch_size=5000))), 1001)
    equal(listener.modes, [mode.mongos_mode for mode in modes])
    client.close()
    done("preferences", len(modes))


def monitoring():
    listener = Listener()
    client, coll = connect("URI_ONE", event_listeners=[listener])
    equal(len(list(coll.find({"bulk": 1}, batch_size=600))), 1001)
    equal(fails(OperationFailure, lambda: client.admin.command("noSuchCommand")).code, 59)
    equal(listener.begun, ["find", "getMore", "noSuchCommand"])
    equal(listener.ended, ["find", "getMore", "noSuchCommand failed"])
    done("monitoring", len(listener.begun))
    client.close()


def balanced():
    listener = Listener()
    client, coll = connect("URI_BALANCED", loadBalanced=True, event_listeners=[listener])
    plain = coll.database.plain
    counts = []

    def work(i):
        def statements(session):
            plain.insert_one({"_id": 2000 + i}, session=session)
            return len(list(plain.find({"_id": {"$lt": 1000}}, session=session, batch_size=100)))

        with client.start_session() as session:
            n = session.with_transaction(statements)
        counts.append(n + len(list(client[MANY_DB][MANY_COLL].find(batch_size=100, sort=[("_id", 1)], limit=1000))))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal(plain.count_documents({"_id": {"$gte": 2000}}), 4)
    equal(len(listener.services) > 0 and None not in listener.services, True)
    client.close()
    done("balanced", sum(counts))


def retry():
    client, coll = connect("URI_FAILING")
    done("ready", 1)
    while not coll.find_one({"_id": "go"}):
        time.sleep(0.1)
    n = 0
    while not coll.find_one({"_id": "stop"}):
        coll.insert_one({"_id": f"retry {n}"})
        equal(coll.update_one({"_id": "counter"}, {"$inc": {"writes": 1}}).modified_count, 1)
        n += 1
    client.close()
    done("retry", n)


def main():
    client, coll = connect("URI_SEVERAL")
    for step in (several, crud, bulk, cursor):
        step(client, coll)
    client.close()
    client, coll = connect("URI_ONE")
    large(client, coll)
    client.close()
    for step in (compression, preferences, monitoring, balanced, retry):
        step()


if __name__ == "__main__":
    main()
