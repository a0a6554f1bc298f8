"""PyMongo's asynchronous client through every step of ../README.md."""

import asyncio
import os

from pymongo import AsyncMongoClient, DeleteOne, InsertOne, ReadPreference, ReplaceOne, UpdateMany
from pymongo.errors import BulkWriteError, DocumentTooLarge, DuplicateKeyError, OperationFailure
from pymongo.monitoring import CommandListener

MANY_DB, MANY_COLL = os.environ["MANY"].split(".")


def done(step, n):
    print("step", step, n, flush=True)


def equal(got, want):
    if got != want:
        raise AssertionError(f"got {str(got)[:500]}, want {str(want)[:500]}")


async def fails(kind, call):
    try:
        await call
    except kind as e:
        return e
    raise AssertionError("no error")


def connect(uri, **options):
    client = AsyncMongoClient(os.environ[uri], **options)
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


async def several(client, coll):
    await coll.find_one({"_id": "nobody"})
    equal(client.topology_description.topology_type_name, "Sharded")
    done("several", len(client.topology_description.server_descriptions()))


async def crud(client, coll):
    equal((await coll.insert_one({"_id": "a", "n": 1})).inserted_id, "a")
    equal(await coll.find_one({"_id": "a"}), {"_id": "a", "n": 1})
    equal((await coll.update_one({"_id": "a"}, {"$inc": {"n": 1}})).modified_count, 1)
    equal((await coll.update_one({"_id": "b"}, {"$set": {"n": 5}}, upsert=True)).upserted_id, "b")
    equal((await coll.find_one_and_update({"_id": "b"}, {"$inc": {"n": 1}}, return_document=True))["n"], 6)
    equal((await coll.replace_one({"_id": "a"}, {"n": 7})).modified_count, 1)
    equal([d["n"] async for d in coll.find({"n": {"$gte": 6}}).sort("n", -1)], [7, 6])
    sums = await coll.aggregate([{"$match": {"n": {"$gt": 0}}}, {"$group": {"_id": None, "sum": {"$sum": "$n"}}}])
    equal((await sums.next())["sum"], 13)
    await fails(DuplicateKeyError, coll.insert_one({"_id": "a"}))
    equal((await coll.delete_many({"n": {"$exists": True}})).deleted_count, 2)
    done("crud", 10)


REQUESTS = [
    InsertOne({"_id": 1000, "bulk": 1}),
    InsertOne({"_id": 3}),
    UpdateMany({"bulk": 1, "_id": {"$lt": 500}}, {"$set": {"half": 1}}),
    DeleteOne({"_id": 7}),
    ReplaceOne({"_id": 1001}, {"bulk": 1}, upsert=True),
]


async def bulk(client, coll):
    equal(len((await coll.insert_many([{"_id": i, "bulk": 1} for i in range(1000)], ordered=False)).inserted_ids), 1000)
    d = (await fails(BulkWriteError, coll.bulk_write(REQUESTS, ordered=False))).details
    equal([(e["index"], e["code"]) for e in d["writeErrors"]], [(1, 11000)])
    equal((d["nInserted"], d["nModified"], d["nRemoved"], d["nUpserted"]), (1, 500, 1, 1))
    done("bulk", await coll.count_documents({"bulk": 1}))


async def cursor(client, coll):
    n = total = 0
    async for d in client[MANY_DB][MANY_COLL].find(batch_size=5000):
        n += 1
        total += d["_id"]
    equal(total, 4999950000)
    done("cursor", n)


async def large(client, coll):
    s = "x" * (16 * 1024 * 1024 - 22)
    await coll.insert_one({"_id": 5000, "s": s})
    other, c = connect("URI_OTHER")
    equal((await c.find_one({"_id": 5000}))["s"] == s, True)
    await other.close()
    await fails((DocumentTooLarge, OperationFailure), coll.insert_one({"_id": 5001, "s": s + "x"}))
    equal(await coll.count_documents({"_id": 5001}), 0)
    done("large", len(s) + 22)


async def compression():
    text = "words " * 20000
    names = ["snappy", "zlib", "zstd"]
    for name in names:
        client, coll = connect("URI_WATCHED", compressors=name)
        await coll.insert_one({"_id": name, "text": text})
        equal((await coll.find_one({"_id": name}))["text"], text)
        await client.close()
    done("compression", len(names))


async def preferences():
    listener = Listener()
    client, coll = connect("URI_ONE", event_listeners=[listener])
    modes = [ReadPreference.PRIMARY, ReadPreference.PRIMARY_PREFERRED, ReadPreference.SECONDARY_PREFERRED, ReadPreference.NEAREST]
    for mode in modes:
        equal(len(await coll.with_options(read_preference=mode).find({"bulk": 1}, batch_size=5000).to_list()), 1001)
    equal(listener.modes, [mode.mongos_mode for mode in modes])
    await client.close()
    done("preferences", len(modes))


async def monitoring():
    listener = Listener()
    client, coll = connect("URI_ONE", event_listeners=[listener])
    equal(len(await coll.find({"bulk": 1}, batch_size=600).to_list()), 1001)
    equal((await fails(OperationFailure, client.admin.command("noSuchCommand"))).code, 59)
    equal(listener.begun, ["find", "getMore", "noSuchCommand"])
    equal(listener.ended, ["find", "getMore", "noSuchCommand failed"])
    done("monitoring", len(listener.begun))
    await client.close()


async def balanced():
    listener = Listener()
    client, coll = connect("URI_BALANCED", loadBalanced=True, event_listeners=[listener])
    plain = coll.database.plain

    async def work(i):
        async def statements(session):
            await plain.insert_one({"_id": 2000 + i}, session=session)
            return len(await plain.find({"_id": {"$lt": 1000}}, session=session, batch_size=100).to_list())

        async with client.start_session() as session:
            n = await session.with_transaction(statements)
        return n + len(await client[MANY_DB][MANY_COLL].find(batch_size=100, sort=[("_id", 1)], limit=1000).to_list())

    counts = await asyncio.gather(*(work(i) for i in range(4)))
    equal(await plain.count_documents({"_id": {"$gte": 2000}}), 4)
    equal(len(listener.services) > 0 and None not in listener.services, True)
    await client.close()
    done("balanced", sum(counts))


async def retry():
    client, coll = connect("URI_FAILING")
    done("ready", 1)
    while not await coll.find_one({"_id": "go"}):
        await asyncio.sleep(0.1)
    n = 0
    while not await coll.find_one({"_id": "stop"}):
        await coll.insert_one({"_id": f"retry {n}"})
        equal((await coll.update_one({"_id": "counter"}, {"$inc": {"writes": 1}})).modified_count, 1)
        n += 1
    await client.close()
    done("retry", n)


async def main():
    client, coll = connect("URI_SEVERAL")
    for step in (several, crud, bulk, cursor):
        await step(client, coll)
    await client.close()
    client, coll = connect("URI_ONE")
    await large(client, coll)
    await client.close()
    for step in (compression, preferences, monitoring, balanced, retry):
        await step()


if __name__ == "__main__":
    asyncio.run(main())
