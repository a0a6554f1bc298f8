import com.mongodb.*;
import com.mongodb.client.*;
import com.mongodb.client.model.*;
import com.mongodb.event.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import org.bson.*;

/** The Java driver through every step of ../README.md. */
public class Client {
    static String env(String name) {
        return Objects.requireNonNull(System.getenv(name), name + " is not set");
    }

    static void done(String step, int n) {
        System.out.println("step " + step + " " + n);
    }

    static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) {
            throw new AssertionError(String.format("got %.500s, want %.500s", got, want));
        }
    }

    static <E extends Exception> E fails(Class<E> kind, Runnable call) {
        try {
            call.run();
        } catch (Exception e) {
            return kind.cast(e);
        }
        throw new AssertionError("no error");
    }

    static MongoClient connect(String uri, CommandListener listener) {
        MongoClientSettings.Builder b = MongoClientSettings.builder().applyConnectionString(new ConnectionString(uri));
        return MongoClients.create(listener == null ? b.build() : b.addCommandListener(listener).build());
    }

    static MongoCollection<Document> things(MongoClient c) {
        return c.getDatabase(env("DB")).getCollection("c");
    }

    static MongoCollection<Document> many(MongoClient c) {
        String[] ns = env("MANY").split("\\.");
        return c.getDatabase(ns[0]).getCollection(ns[1]);
    }

    static Document d(Object... pairs) {
        Document doc = new Document();
        for (int i = 0; i < pairs.length; i += 2) {
            doc.append((String) pairs[i], pairs[i + 1]);
        }
        return doc;
    }

    static <T> List<T> all(Iterable<T> from) {
        List<T> list = new ArrayList<>();
        from.forEach(list::add);
        return list;
    }

    static Document find(MongoCollection<Document> c, Object id) {
        return c.find(d("_id", id)).first();
    }

    /** What the driver says of its commands. */
    static class Listener implements CommandListener {
        final List<String> begun = Collections.synchronizedList(new ArrayList<>());
        final List<String> ended = Collections.synchronizedList(new ArrayList<>());
        final List<String> modes = Collections.synchronizedList(new ArrayList<>());
        final Set<Object> services = ConcurrentHashMap.newKeySet();

        public void commandStarted(CommandStartedEvent e) {
            begun.add(e.getCommandName());
            BsonDocument pref = e.getCommand().getDocument("$readPreference", new BsonDocument("mode", new BsonString("primary")));
            modes.add(pref.getString("mode").getValue());
            services.add(Optional.<Object>ofNullable(e.getConnectionDescription().getServiceId()).orElse("none"));
        }

        public void commandSucceeded(CommandSucceededEvent e) {
            ended.add(e.getCommandName());
        }

        public void commandFailed(CommandFailedEvent e) {
            ended.add(e.getCommandName() + " failed");
        }
    }

    static void several(MongoClient c) {
        equal(find(things(c), "nobody"), null);
        equal(c.getClusterDescription().getType().toString(), "SHARDED");
        done("several", c.getClusterDescription().getServerDescriptions().size());
    }

    static void crud(MongoCollection<Document> c) {
        equal(c.insertOne(d("_id", "a", "n", 1)).getInsertedId(), new BsonString("a"));
        equal(find(c, "a"), d("_id", "a", "n", 1));
        equal(c.updateOne(d("_id", "a"), Updates.inc("n", 1)).getModifiedCount(), 1L);
        equal(c.updateOne(d("_id", "b"), Updates.set("n", 5), new UpdateOptions().upsert(true)).getUpsertedId(), new BsonString("b"));
        equal(c.findOneAndUpdate(d("_id", "b"), Updates.inc("n", 1), new FindOneAndUpdateOptions().returnDocument(ReturnDocument.AFTER)).get("n"), 6);
        equal(c.replaceOne(d("_id", "a"), d("n", 7)).getModifiedCount(), 1L);
        equal(all(c.find(Filters.gte("n", 6)).sort(Sorts.descending("n")).map(x -> x.get("n"))), List.of(7, 6));
        equal(c.aggregate(List.of(Aggregates.match(Filters.gt("n", 0)), Aggregates.group(null, Accumulators.sum("sum", "$n")))).first().get("sum"), 13);
        equal(fails(MongoWriteException.class, () -> c.insertOne(d("_id", "a"))).getCode(), 11000);
        equal(c.deleteMany(Filters.exists("n")).getDeletedCount(), 2L);
        done("crud", 10);
    }

    static void bulk(MongoCollection<Document> c) {
        List<Document> docs = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            docs.add(d("_id", i, "bulk", 1));
        }
        equal(c.insertMany(docs, new InsertManyOptions().ordered(false)).getInsertedIds().size(), 1000);
        List<WriteModel<Document>> requests = List.of(
                new InsertOneModel<>(d("_id", 1000, "bulk", 1)),
                new InsertOneModel<>(d("_id", 3)),
                new UpdateManyModel<>(d("bulk", 1, "_id", d("$lt", 500)), Updates.set("half", 1)),
                new DeleteOneModel<>(d("_id", 7)),
                new ReplaceOneModel<>(d("_id", 1001), d("bulk", 1), new ReplaceOptions().upsert(true)));
        MongoBulkWriteException e = fails(MongoBulkWriteException.class, () -> c.bulkWrite(requests, new BulkWriteOptions().ordered(false)));
        equal(e.getWriteErrors().stream().map(w -> w.getIndex() + " " + w.getCode()).toList(), List.of("1 11000"));
        var r = e.getWriteResult();
        equal(List.of(r.getInsertedCount(), r.getModifiedCount(), r.getDeletedCount(), r.getUpserts().size()), List.of(1, 500, 1, 1));
        done("bulk", (int) c.countDocuments(d("bulk", 1)));
    }

    static void cursor(MongoClient c) {
        int n = 0;
        long sum = 0;
        for (Document doc : many(c).find().batchSize(5000)) {
            n++;
            sum += doc.getInteger("_id");
        }
        equal(sum, 4999950000L);
        done("cursor", n);
    }

    static void large(MongoCollection<Document> c) {
        String s = "x".repeat(16 * 1024 * 1024 - 22);
        c.insertOne(d("_id", 5000, "s", s));
        try (MongoClient other = connect(env("URI_OTHER"), null)) {
            equal(find(things(other), 5000).getString("s").equals(s), true);
        }
        fails(Exception.class, () -> c.insertOne(d("_id", 5001, "s", s + "x")));
        equal(c.countDocuments(d("_id", 5001)), 0L);
        done("large", s.length() + 22);
    }

    static void compression() {
        String text = "words ".repeat(20000);
        List<String> names = List.of("snappy", "zlib", "zstd");
        for (String name : names) {
            try (MongoClient client = connect(env("URI_WATCHED") + "?compressors=" + name, null)) {
                things(client).insertOne(d("_id", name, "text", text));
                equal(find(things(client), name).get("text"), text);
            }
        }
        done("compression", names.size());
    }

    static void preferences() {
        Listener l = new Listener();
        List<ReadPreference> modes =
                List.of(ReadPreference.primary(), ReadPreference.primaryPreferred(), ReadPreference.secondaryPreferred(), ReadPreference.nearest());
        try (MongoClient client = connect(env("URI_ONE"), l)) {
            for (ReadPreference mode : modes) {
                equal(all(things(client).withReadPreference(mode).find(d("bulk", 1)).batchSize(5000)).size(), 1001);
            }
            equal(l.modes, modes.stream().map(ReadPreference::getName).toList());
        }
        done("preferences", modes.size());
    }

    static void monitoring() {
        Listener l = new Listener();
        try (MongoClient client = connect(env("URI_ONE"), l)) {
            equal(all(things(client).find(d("bulk", 1)).batchSize(600)).size(), 1001);
            equal(fails(MongoCommandException.class, () -> client.getDatabase("admin").runCommand(d("noSuchCommand", 1))).getCode(), 59);
            equal(l.begun, List.of("find", "getMore", "noSuchCommand"));
            equal(l.ended, List.of("find", "getMore", "noSuchCommand failed"));
            done("monitoring", l.begun.size());
        }
    }

    static void balanced() throws Exception {
        Listener l = new Listener();
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try (MongoClient client = connect(env("URI_BALANCED") + "?loadBalanced=true", l)) {
            MongoCollection<Document> plain = client.getDatabase(env("DB")).getCollection("plain");
            List<Future<Integer>> results = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                int id = 2000 + i;
                results.add(threads.submit(() -> {
                    int n;
                    try (ClientSession session = client.startSession()) {
                        n = session.withTransaction(() -> {
                            plain.insertOne(session, d("_id", id));
                            return all(plain.find(session, Filters.lt("_id", 1000)).batchSize(100)).size();
                        });
                    }
                    return n + all(many(client).find().sort(Sorts.ascending("_id")).limit(1000).batchSize(100)).size();
                }));
            }
            int n = 0;
            for (Future<Integer> r : results) {
                n += r.get();
            }
            equal(plain.countDocuments(Filters.gte("_id", 2000)), 4L);
            equal(!l.services.isEmpty() && !l.services.contains("none"), true);
            done("balanced", n);
        } finally {
            threads.shutdown();
        }
    }

    static void retry() throws Exception {
        int n = 0;
        try (MongoClient client = connect(env("URI_FAILING"), null)) {
            MongoCollection<Document> c = things(client);
            done("ready", 1);
            while (find(c, "go") == null) {
                Thread.sleep(100);
            }
            for (; find(c, "stop") == null; n++) {
                c.insertOne(d("_id", "retry " + n));
                equal(c.updateOne(d("_id", "counter"), Updates.inc("writes", 1)).getModifiedCount(), 1L);
            }
        }
        done("retry", n);
    }

    public static void main(String[] args) throws Exception {
        try (MongoClient client = connect(env("URI_SEVERAL"), null)) {
            several(client);
            crud(things(client));
            bulk(things(client));
            cursor(client);
        }
        try (MongoClient client = connect(env("URI_ONE"), null)) {
            large(things(client));
        }
        compression();
        preferences();
        monitoring();
        balanced();
        retry();
    }
}
