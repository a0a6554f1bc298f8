// What mongosh's sh helpers do with chunks and the balancer. `name` is a database of its own.
const ns = name + '.c';
const d = db.getSiblingDB(name);
const config = db.getSiblingDB('config');
function check(ok, what) { if (!ok) throw new Error(what); }

sh.shardCollection(ns, { x: 1 });
for (let i = 0; i < 100; i++) d.c.insertOne({ x: i });
check(sh.splitAt(ns, { x: 50 }).ok === 1, 'splitAt');
check(sh.splitFind(ns, { x: 10 }).ok === 1, 'splitFind');
check(sh.splitAt(ns, { x: 75 }).ok === 1, 'splitAt again');
const uuid = config.collections.findOne({ _id: ns }).uuid;
const mins = config.chunks.find({ uuid }).sort({ min: 1 }).toArray().slice(1).map((c) => c.min.x);
check(JSON.stringify(mins) === '[25,50,75]', 'chunks at ' + mins);
let refused = '';
try { sh.splitAt(ns, { x: 50 }); } catch (e) { refused = e.message; }
check(refused.includes('is a boundary key of existing chunk'), 'refused: ' + refused);

check(sh.stopBalancer().ok === 1, 'stopBalancer');
check(sh.getBalancerState() === false, 'the balancer is not allowed');
check(sh.setBalancerState(true).ok === 1, 'setBalancerState');
check(sh.getBalancerState() === true, 'the balancer is allowed');
check(sh.isBalancerRunning().inBalancerRound === false, 'isBalancerRunning');
check(sh.startBalancer().ok === 1, 'startBalancer');
check(sh.balancerCollectionStatus(ns).balancerCompliant === true, 'balancerCollectionStatus');

sh.disableBalancing(ns);
check(config.collections.findOne({ _id: ns }).noBalance === true, 'disableBalancing');
sh.enableBalancing(ns);
check(config.collections.findOne({ _id: ns }).noBalance === false, 'enableBalancing');
sh.stopAutoMerger();
check(sh.isAutoMergerEnabled() === false, 'stopAutoMerger');
sh.startAutoMerger();
check(sh.isAutoMergerEnabled() === true, 'startAutoMerger');
sh.disableMigrations(ns);
check(config.collections.findOne({ _id: ns }).permitMigrations === false, 'disableMigrations');
sh.enableMigrations(ns);

const status = sh.status().value;
print(status);
check(d.c.countDocuments({}) === 100, 'all documents are there');
print(d.c.getShardDistribution());
print('helpers done');
