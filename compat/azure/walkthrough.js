// The walk-through of Azure DocumentDB's documentation, typed into mongosh: sharding, indexes, and looking at where things are.
// Run by TestAzureWalkthrough as `mongosh URI --eval 'const other = …' walkthrough.js`; `other` is a second router's URI. Each
// answer is checked here, and a few printed texts by the test.
'use strict';

const assert = require('assert');

function section(name) { print('== ' + name); }

// What mongosh prints for a helper that returns a printable value.
function show(value) { print(typeof value === 'string' ? value : EJSON.stringify(value)); }

// The error that a call ends with. mongosh makes this code wait for the server; callbacks of Node's own functions it cannot.
function errorOf(call) {
  try { call(); } catch (e) { return e; }
  throw new Error('no error: ' + call);
}

// The shell's arrays come from another realm, so assert.deepStrictEqual is never content with them.
function same(got, want) { assert.strictEqual(EJSON.stringify(got), EJSON.stringify(want)); }

db = db.getSiblingDB('cosmicworks');
db.dropDatabase();

section('sh.shardCollection');
assert.strictEqual(sh.shardCollection('cosmicworks.employee', { firstName: 'hashed' }).ok, 1);
assert.strictEqual(sh.shardCollection('cosmicworks.employee', { firstName: 'hashed' }).collectionsharded, 'cosmicworks.employee');

section('adminCommand');
let reply = db.adminCommand({ shardCollection: 'cosmicworks.products', key: { category: 'hashed' }, numInitialChunks: 5 });
assert.strictEqual(reply.ok, 1);
assert.strictEqual(reply.collectionsharded, 'cosmicworks.products');
const again = errorOf(() => sh.shardCollection('cosmicworks.employee', { lastName: 'hashed' }));
assert.strictEqual(again.code, 23);
assert.strictEqual(again.codeName, 'AlreadyInitialized');

section('createIndexes');
reply = db.runCommand({
  createIndexes: 'employee',
  indexes: [{ key: { firstName: 1, lastName: 1 }, name: 'by_name', enableLargeIndexKeys: true }],
  blocking: true,
});
assert.strictEqual(reply.ok, 1);
const hosts = Object.keys(reply.raw);
assert.strictEqual(hosts.length, 3, 'all shards own chunks: ' + EJSON.stringify(reply));
for (const h of hosts) { assert.strictEqual(reply.raw[h].numIndexesAfter, 3, h); }
assert.strictEqual(db.employee.createIndex({ salary: 1 }), 'salary_1');
same(db.employee.getIndexes().map((i) => i.name).sort(), ['_id_', 'by_name', 'firstName_hashed', 'salary_1']);
for (const i of db.employee.getIndexes()) { assert.strictEqual(i.enableLargeIndexKeys, undefined); }

section('documents');
const people = [];
for (let i = 0; i < 500; i++) { people.push({ _id: i, firstName: 'name' + (i % 100), lastName: 'x' + i, salary: i }); }
assert.strictEqual(Object.keys(db.employee.insertMany(people, { ordered: false }).insertedIds).length, 500);
db.products.insertMany([{ category: 'gear' }, { category: 'gear' }, { category: 'bikes' }]);
db.notes.insertOne({ text: 'unsharded' });
assert.strictEqual(db.employee.countDocuments({ firstName: 'name7' }), 5);
assert.strictEqual(db.employee.countDocuments({}), 500);
assert.strictEqual(db.employee.estimatedDocumentCount(), 500);
assert.strictEqual(db.employee.find({ firstName: 'name7' }).toArray().length, 5);
assert.strictEqual(db.employee.find().batchSize(20).toArray().length, 500);
assert.strictEqual(db.employee.updateMany({ salary: { $lt: 100 } }, { $set: { junior: true } }).modifiedCount, 100);
assert.strictEqual(db.employee.deleteOne({ firstName: 'name7', _id: 7 }).deletedCount, 1);
same(db.employee.distinct('salary', { firstName: 'name8' }).sort((a, b) => a - b), [8, 108, 208, 308, 408]);

section('config.shards');
const shards = db.getSiblingDB('config').shards.find({}, { _id: 1 }).toArray();
same(shards, [{ _id: 'shard_0' }, { _id: 'shard_1' }, { _id: 'shard_2' }]);

section('config.chunks');
const spread = db.getSiblingDB('config').chunks.aggregate([
  { $group: { _id: '$shard', collections: { $addToSet: '$ns' } } }, { $sort: { _id: 1 } },
]).toArray();
same(spread.map((s) => s._id), ['shard_0', 'shard_1', 'shard_2']);
for (const s of spread) {
  assert(s.collections.includes('cosmicworks.employee'), EJSON.stringify(s));
  assert(s.collections.includes('cosmicworks.products'), EJSON.stringify(s));
}
assert.strictEqual(spread.filter((s) => s.collections.includes('cosmicworks.notes')).length, 1, 'an unsharded one is in one place');

section('databases and collections');
const names = db.getMongo().getDBNames();
assert(names.includes('cosmicworks') && names.includes('config') && names.includes('admin') && !names.includes('local'), String(names));
same(db.getCollectionNames(), ['employee', 'notes', 'products']);

section('reshardCollection');
assert.strictEqual(db.adminCommand({ reshardCollection: 'cosmicworks.employee', key: { lastName: 'hashed' }, numInitialChunks: 6 }).ok, 1);
same(db.getSiblingDB('config').collections.findOne({ _id: 'cosmicworks.employee' }).key, { lastName: 'hashed' });
assert.strictEqual(sh.reshardCollection('cosmicworks.employee', { lastName: 1 }).ok, 1);
assert.strictEqual(sh.reshardCollection('cosmicworks.employee', { lastName: 1 }).ok, 1, 'it is so already');
same(db.getSiblingDB('config').collections.findOne({ _id: 'cosmicworks.employee' }).key, { lastName: 1 });
assert.strictEqual(db.employee.countDocuments({}), 499);
assert.strictEqual(db.employee.find({ lastName: 'x42' }).explain().queryPlanner.winningPlan.stage, 'SINGLE_SHARD');
assert(db.employee.getIndexes().map((i) => i.name).includes('lastName_1'));
assert.strictEqual(errorOf(() => sh.abortReshardCollection('cosmicworks.employee')).code, 339);
assert.strictEqual(errorOf(() => sh.commitReshardCollection('cosmicworks.employee')).code, 339);

section('unshardCollection and moveCollection');
assert.strictEqual(sh.unshardCollection('cosmicworks.products', 'shard_1').ok, 1);
assert.strictEqual(db.products.countDocuments({ category: 'gear' }), 2);
for (const name of ['products', 'notes']) {
  assert.strictEqual(db.adminCommand({ moveCollection: 'cosmicworks.' + name, toShard: 'shard_2' }).ok, 1);
  same(db.getSiblingDB('config').chunks.distinct('shard', { ns: 'cosmicworks.' + name }), ['shard_2']);
}
assert.strictEqual(sh.shardCollection('cosmicworks.products', { category: 'hashed' }).ok, 1);
assert.strictEqual(sh.shardAndDistributeCollection('cosmicworks.orders', { customer: 1 }).ok, 1);
db.orders.drop();

section('second router');
const there = new Mongo(other).getDB('cosmicworks');
assert.strictEqual(there.employee.countDocuments({}), 499);
assert.strictEqual(there.notes.findOne().text, 'unsharded');

section('sh.status');
show(sh.status());

section('getShardDistribution');
show(db.employee.getShardDistribution());
assert.match(errorOf(() => db.notes.getShardDistribution()).message, /not sharded/);

section('helpers');
assert.strictEqual(sh.getBalancerState(), false, 'nothing rebalances by itself yet, and it says so');
assert.strictEqual(sh.isBalancerRunning().mode, 'off');
assert.strictEqual(sh.listShards().length, 3);
assert.strictEqual(sh.enableSharding('cosmicworks').ok, 1);
assert.strictEqual(sh.isConfigShardEnabled().enabled, false);
assert.strictEqual(db.hello().msg, 'isdbgrid');
assert(db.version().startsWith('6.0.'), db.version());
assert.strictEqual(db.serverStatus().process.includes('mongos'), true);
assert.strictEqual(db.employee.drop(), true);
assert.strictEqual(db.employee.exists(), null);
assert.strictEqual(db.employee.countDocuments({}), 0);

print('walkthrough done');
