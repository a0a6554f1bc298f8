// Mongoose through every step of ../README.md.
'use strict';

const assert = require('node:assert/strict');
const { setTimeout: sleep } = require('node:timers/promises');
const mongoose = require('mongoose');

const env = (name) => {
  assert.ok(process.env[name], `${name} is not set`);
  return process.env[name];
};
const [manyDB, manyColl] = env('MANY').split('.');

// A document of many kinds.
const schema = new mongoose.Schema({
  _id: mongoose.Schema.Types.Mixed, n: Number, bulk: Number, half: Number, text: String, s: String, writes: Number,
}, { versionKey: false, collection: 'c', autoCreate: false, autoIndex: false });
const done = (step, n) => console.log('step', step, n);

async function using(uri, options, work) {
  const connection = await mongoose.createConnection(uri, { dbName: env('DB'), ...options }).asPromise();
  try {
    return await work(connection, connection.model('Thing', schema));
  } finally {
    await connection.close();
  }
}

// model returns a model of another collection.
const model = (connection, db, collection) => connection.useDb(db).model(collection, schema, collection);

async function several(connection, Thing) {
  assert.equal(await Thing.findById('nobody'), null);
  const description = connection.getClient().topology.description;
  assert.equal(description.type, 'Sharded');
  done('several', description.servers.size);
}

async function crud(connection, Thing) {
  assert.equal((await Thing.create({ _id: 'a', n: 1 })).id, 'a');
  const a = await Thing.findById('a');
  assert.deepEqual(a.toObject(), { _id: 'a', n: 1 });
  a.n = 2;
  await a.save();
  assert.equal((await Thing.findOneAndUpdate({ _id: 'b' }, { $set: { n: 5 } }, { upsert: true, returnDocument: 'after' })).n, 5);
  assert.equal((await Thing.findByIdAndUpdate('b', { $inc: { n: 1 } }, { returnDocument: 'after' })).n, 6);
  assert.equal((await Thing.replaceOne({ _id: 'a' }, { n: 7 })).modifiedCount, 1);
  assert.deepEqual((await Thing.find({ n: { $gte: 6 } }).sort({ n: -1 })).map((d) => d.n), [7, 6]);
  assert.equal((await Thing.aggregate([{ $match: { n: { $gt: 0 } } }, { $group: { _id: null, sum: { $sum: '$n' } } }]))[0].sum, 13);
  await assert.rejects(Thing.create({ _id: 'a' }), { code: 11000 });
  assert.equal((await Thing.deleteMany({ n: { $exists: true } })).deletedCount, 2);
  done('crud', 10);
}

async function bulk(connection, Thing) {
  const docs = Array.from({ length: 1000 }, (_, i) => ({ _id: i, bulk: 1 }));
  assert.equal((await Thing.insertMany(docs, { ordered: false })).length, 1000);
  const requests = [
    { insertOne: { document: { _id: 1000, bulk: 1 } } },
    { insertOne: { document: { _id: 3 } } },
    { updateMany: { filter: { bulk: 1, _id: { $lt: 500 } }, update: { $set: { half: 1 } } } },
    { deleteOne: { filter: { _id: 7 } } },
    { replaceOne: { filter: { _id: 1001 }, replacement: { bulk: 1 }, upsert: true } },
  ];
  const error = await Thing.bulkWrite(requests, { ordered: false }).then(() => assert.fail('no error'), (e) => e);
  assert.deepEqual(error.writeErrors.map((e) => [e.index, e.code]), [[1, 11000]]);
  assert.deepEqual([error.result.insertedCount, error.result.modifiedCount, error.result.deletedCount, error.result.upsertedCount], [1, 500, 1, 1]);
  done('bulk', await Thing.countDocuments({ bulk: 1 }));
}

async function cursor(connection) {
  let n = 0;
  let sum = 0;
  for await (const d of model(connection, manyDB, manyColl).find().lean().cursor({ batchSize: 5000 })) {
    n += 1;
    sum += d._id;
  }
  assert.equal(sum, 4999950000);
  done('cursor', n);
}

async function large(connection, Thing) {
  const s = 'x'.repeat(16 * 1024 * 1024 - 22);
  await Thing.create({ _id: 5000, s });
  await using(env('URI_OTHER'), {}, async (other, There) => {
    assert.equal((await There.findById(5000)).s, s);
  });
  await assert.rejects(Thing.create({ _id: 5001, s: s + 'x' }));
  assert.equal(await Thing.countDocuments({ _id: 5001 }), 0);
  done('large', s.length + 22);
}

async function compression() {
  const text = 'words '.repeat(20000);
  let n = 0;
  for (const compressor of ['snappy', 'zlib', 'zstd']) {
    await using(`${env('URI_WATCHED')}?compressors=${compressor}`, {}, async (connection, Thing) => {
      await Thing.create({ _id: compressor, text });
      assert.equal((await Thing.findById(compressor)).text, text);
    });
    n += 1;
  }
  done('compression', n);
}

async function preferences() {
  let n = 0;
  await using(env('URI_ONE'), { monitorCommands: true }, async (connection, Thing) => {
    const sent = [];
    connection.getClient().on('commandStarted', (e) => sent.push(e.command.$readPreference?.mode ?? 'primary'));
    const modes = ['primary', 'primaryPreferred', 'secondaryPreferred', 'nearest'];
    for (const mode of modes) {
      const found = await Thing.find({ bulk: 1 }).read(mode).batchSize(5000);
      assert.equal(found.length, 1001);
      n += 1;
    }
    assert.deepEqual(sent, modes);
  });
  done('preferences', n);
}

async function monitoring() {
  await using(env('URI_ONE'), { monitorCommands: true }, async (connection, Thing) => {
    const started = [];
    const ended = [];
    const client = connection.getClient();
    client.on('commandStarted', (e) => started.push(e.commandName));
    client.on('commandSucceeded', (e) => ended.push(e.commandName));
    client.on('commandFailed', (e) => ended.push(`${e.commandName} failed`));
    assert.equal((await Thing.find({ bulk: 1 }).batchSize(600)).length, 1001);
    await assert.rejects(client.db('admin').command({ noSuchCommand: 1 }), { code: 59 });
    assert.deepEqual(started, ['find', 'getMore', 'noSuchCommand']);
    assert.deepEqual(ended, ['find', 'getMore', 'noSuchCommand failed']);
    done('monitoring', started.length);
  });
}

async function balanced() {
  let counts;
  await using(`${env('URI_BALANCED')}?loadBalanced=true`, { monitorCommands: true }, async (connection) => {
    const services = new Set();
    connection.getClient().on('commandStarted', (e) => services.add(String(e.serviceId)));
    const Plain = model(connection, env('DB'), 'plain');
    const Many = model(connection, manyDB, manyColl);
    counts = await Promise.all([0, 1, 2, 3].map(async (i) => {
      let n = 0;
      await connection.transaction(async (session) => {
        await Plain.create([{ _id: 2000 + i }], { session });
        n = (await Plain.find({ _id: { $lt: 1000 } }).session(session).batchSize(100)).length;
      });
      const found = await Many.find().sort({ _id: 1 }).limit(1000).batchSize(100);
      return n + found.length;
    }));
    assert.equal(await Plain.countDocuments({ _id: { $gte: 2000 } }), 4);
    assert.ok(services.size > 0 && !services.has('undefined'), 'no serviceId');
  });
  done('balanced', counts.reduce((a, b) => a + b));
}

async function retry() {
  let n = 0;
  // Where the driver's monitor notices first that the router is gone, the driver does not try again what its pool had under way.
  await using(env('URI_FAILING'), { serverMonitoringMode: 'poll' }, async (connection, Thing) => {
    done('ready', 1);
    while (!(await Thing.findById('go'))) await sleep(100);
    while (!(await Thing.findById('stop'))) {
      await Thing.create({ _id: `retry ${n}` });
      assert.equal((await Thing.updateOne({ _id: 'counter' }, { $inc: { writes: 1 } })).modifiedCount, 1);
      n += 1;
    }
  });
  done('retry', n);
}

async function main() {
  await using(env('URI_SEVERAL'), {}, async (connection, Thing) => {
    for (const step of [several, crud, bulk, cursor]) await step(connection, Thing);
  });
  await using(env('URI_ONE'), {}, large);
  for (const step of [compression, preferences, monitoring, balanced, retry]) await step();
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
