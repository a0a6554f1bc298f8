// The Node driver through every step of ../README.md.
'use strict';

const assert = require('node:assert/strict');
const { setTimeout: sleep } = require('node:timers/promises');
const { MongoClient, ReadPreference } = require('mongodb');

const env = (name) => {
  assert.ok(process.env[name], `${name} is not set`);
  return process.env[name];
};
const [manyDB, manyColl] = env('MANY').split('.');
const done = (step, n) => console.log('step', step, n);

async function using(uri, options, work) {
  const client = new MongoClient(uri, options);
  try {
    return await work(client, client.db(env('DB')).collection('c'));
  } finally {
    await client.close();
  }
}

async function several(client, coll) {
  await coll.findOne({ _id: 'nobody' });
  const description = client.topology.description;
  assert.equal(description.type, 'Sharded');
  done('several', description.servers.size);
}

async function crud(client, coll) {
  assert.equal((await coll.insertOne({ _id: 'a', n: 1 })).insertedId, 'a');
  assert.deepEqual(await coll.findOne({ _id: 'a' }), { _id: 'a', n: 1 });
  assert.equal((await coll.updateOne({ _id: 'a' }, { $inc: { n: 1 } })).modifiedCount, 1);
  assert.equal((await coll.updateOne({ _id: 'b' }, { $set: { n: 5 } }, { upsert: true })).upsertedId, 'b');
  assert.equal((await coll.findOneAndUpdate({ _id: 'b' }, { $inc: { n: 1 } }, { returnDocument: 'after' })).n, 6);
  assert.equal((await coll.replaceOne({ _id: 'a' }, { n: 7 })).modifiedCount, 1);
  assert.deepEqual((await coll.find({ n: { $gte: 6 } }).sort({ n: -1 }).toArray()).map((d) => d.n), [7, 6]);
  assert.equal((await coll.aggregate([{ $match: { n: { $gt: 0 } } }, { $group: { _id: null, sum: { $sum: '$n' } } }]).next()).sum, 13);
  await assert.rejects(coll.insertOne({ _id: 'a' }), { code: 11000 });
  assert.equal((await coll.deleteMany({ n: { $exists: true } })).deletedCount, 2);
  done('crud', 10);
}

async function bulk(client, coll) {
  const docs = Array.from({ length: 1000 }, (_, i) => ({ _id: i, bulk: 1 }));
  assert.equal((await coll.insertMany(docs, { ordered: false })).insertedCount, 1000);
  const requests = [
    { insertOne: { document: { _id: 1000, bulk: 1 } } },
    { insertOne: { document: { _id: 3 } } },
    { updateMany: { filter: { bulk: 1, _id: { $lt: 500 } }, update: { $set: { half: 1 } } } },
    { deleteOne: { filter: { _id: 7 } } },
    { replaceOne: { filter: { _id: 1001 }, replacement: { bulk: 1 }, upsert: true } },
  ];
  const error = await coll.bulkWrite(requests, { ordered: false }).then(() => assert.fail('no error'), (e) => e);
  assert.deepEqual(error.writeErrors.map((e) => [e.index, e.code]), [[1, 11000]]);
  assert.deepEqual([error.result.insertedCount, error.result.modifiedCount, error.result.deletedCount, error.result.upsertedCount], [1, 500, 1, 1]);
  done('bulk', await coll.countDocuments({ bulk: 1 }));
}

async function cursor(client) {
  let n = 0;
  let sum = 0;
  for await (const d of client.db(manyDB).collection(manyColl).find({}, { batchSize: 5000 })) {
    n += 1;
    sum += d._id;
  }
  assert.equal(sum, 4999950000);
  done('cursor', n);
}

async function compression() {
  const text = 'words '.repeat(20000);
  let n = 0;
  for (const compressor of ['snappy', 'zlib', 'zstd']) {
    await using(`${env('URI_WATCHED')}?compressors=${compressor}`, {}, async (client, coll) => {
      await coll.insertOne({ _id: compressor, text });
      assert.equal((await coll.findOne({ _id: compressor })).text, text);
    });
    n += 1;
  }
  done('compression', n);
}

async function preferences() {
  let n = 0;
  await using(env('URI_ONE'), { monitorCommands: true }, async (client, coll) => {
    const sent = [];
    client.on('commandStarted', (e) => sent.push(e.command.$readPreference?.mode ?? 'primary'));
    const modes = ['primary', 'primaryPreferred', 'secondaryPreferred', 'nearest'];
    for (const mode of modes) {
      const found = await coll.find({ bulk: 1 }, { readPreference: ReadPreference.fromString(mode), batchSize: 5000 }).toArray();
      assert.equal(found.length, 1001);
      n += 1;
    }
    assert.deepEqual(sent, modes);
  });
  done('preferences', n);
}

async function large(client, coll) {
  const s = 'x'.repeat(16 * 1024 * 1024 - 22);
  await coll.insertOne({ _id: 5000, s });
  await using(env('URI_OTHER'), {}, async (other, c) => {
    assert.equal((await c.findOne({ _id: 5000 })).s, s);
  });
  await assert.rejects(coll.insertOne({ _id: 5001, s: s + 'x' }));
  assert.equal(await coll.countDocuments({ _id: 5001 }), 0);
  done('large', s.length + 22);
}

async function monitoring() {
  await using(env('URI_ONE'), { monitorCommands: true }, async (client, coll) => {
    const started = [];
    const ended = [];
    client.on('commandStarted', (e) => started.push(e.commandName));
    client.on('commandSucceeded', (e) => ended.push(e.commandName));
    client.on('commandFailed', (e) => ended.push(`${e.commandName} failed`));
    assert.equal((await coll.find({ bulk: 1 }, { batchSize: 600 }).toArray()).length, 1001);
    await assert.rejects(client.db('admin').command({ noSuchCommand: 1 }), { code: 59 });
    assert.deepEqual(started, ['find', 'getMore', 'noSuchCommand']);
    assert.deepEqual(ended, ['find', 'getMore', 'noSuchCommand failed']);
    done('monitoring', started.length);
  });
}

async function balanced() {
  let counts;
  await using(`${env('URI_BALANCED')}?loadBalanced=true`, { monitorCommands: true }, async (client) => {
    const services = new Set();
    client.on('commandStarted', (e) => services.add(String(e.serviceId)));
    const plain = client.db(env('DB')).collection('plain');
    counts = await Promise.all([0, 1, 2, 3].map(async (i) => {
      let n = 0;
      const session = client.startSession();
      await session.withTransaction(async () => {
        await plain.insertOne({ _id: 2000 + i }, { session });
        n = (await plain.find({ _id: { $lt: 1000 } }, { session, batchSize: 100 }).toArray()).length;
      });
      await session.endSession();
      const found = await client.db(manyDB).collection(manyColl).find({}, { batchSize: 100, sort: { _id: 1 }, limit: 1000 }).toArray();
      return n + found.length;
    }));
    assert.equal(await plain.countDocuments({ _id: { $gte: 2000 } }), 4);
    assert.ok(services.size > 0 && !services.has('undefined'), 'no serviceId');
  });
  done('balanced', counts.reduce((a, b) => a + b));
}

async function retry() {
  let n = 0;
  // Where the driver's monitor notices first that the router is gone, the driver does not try again what its pool had under way.
  await using(env('URI_FAILING'), { serverMonitoringMode: 'poll' }, async (client, coll) => {
    done('ready', 1);
    while (!(await coll.findOne({ _id: 'go' }))) await sleep(100);
    while (!(await coll.findOne({ _id: 'stop' }))) {
      await coll.insertOne({ _id: `retry ${n}` });
      assert.equal((await coll.updateOne({ _id: 'counter' }, { $inc: { writes: 1 } })).modifiedCount, 1);
      n += 1;
    }
  });
  done('retry', n);
}

async function main() {
  await using(env('URI_SEVERAL'), {}, async (client, coll) => {
    for (const step of [several, crud, bulk, cursor]) await step(client, coll);
  });
  await using(env('URI_ONE'), {}, large);
  for (const step of [compression, preferences, monitoring, balanced, retry]) await step();
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
