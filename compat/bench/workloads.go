package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/nullshard"
)

// The data.
const (
	database = "bench"
	points   = "c" // small documents, all on one shard
	scanned  = "s" // documents of 1 KiB, all on one shard
	spread   = "d" // the same, on two
	docs     = nullshard.Docs

	bulkUpdates = 100
	manyDocs    = 1000
	manyBytes   = 200
)

// workload is something that a client does again and again.
type workload struct {
	name string
	// run does it once by a plain connection.
	run func(c *conn, i int) error
	// driver, instead, by the Go driver.
	driver func(ctx context.Context, c *mongo.Collection, i int) error
	// clients are the numbers of clients with which it is run.
	clients []int
	// direct, where it is not nil, is what is done directly on the shard instead of run.
	direct func(c *conn, i int) error
}

func workloads() []workload {
	counts := []int{1, 8, 64}

	return []workload{
		{name: "find", run: find, clients: counts},
		{name: "insert", run: insert, clients: counts},
		{name: "update", run: update, clients: counts},
		{name: "bulk", run: bulk, clients: counts},
		{name: "insertMany", run: insertMany, clients: counts},
		{name: "scan", run: scan, clients: counts},
		{name: "sorted", run: sortedOn(spread), direct: sortedOn(scanned), clients: counts},
		{name: "driver-find", driver: driverFind, clients: []int{64}},
		{name: "driver-insert", driver: driverInsert, clients: []int{64}},
		{name: "driver-update", driver: driverUpdate, clients: []int{64}},
	}
}

// pointID is the id of the i-th small document.
func pointID(i int) (id bson.ObjectID) {
	binary.BigEndian.PutUint64(id[4:], uint64(i%docs))
	return id
}

// find is a point find.
func find(c *conn, i int) error {
	c.begin()
	c.out = bsoncore.AppendStringElement(c.out, "find", points)
	c.filter("filter", i)
	c.out = bsoncore.AppendInt64Element(c.out, "limit", 1)
	c.out = bsoncore.AppendBooleanElement(c.out, "singleBatch", true)
	c.withSession()

	reply, err := c.exchange(database)
	if err != nil {
		return err
	}

	if cur, _ := reply.Lookup("cursor"); len(cur.Value) < 40 {
		return fmt.Errorf("the document is not there: %s", bson.Raw(reply))
	}

	return nil
}

// filter appends {_id: …}.
func (c *conn) filter(name string, i int) {
	var at int32
	at, c.out = bsoncore.AppendDocumentElementStart(c.out, name)
	c.out = bsoncore.AppendObjectIDElement(c.out, "_id", pointID(i))
	c.out, _ = bsoncore.AppendDocumentEnd(c.out, at)
}

// sequence begins a document sequence and returns where.
func (c *conn) sequence(name string) int {
	c.out = append(c.out, 1)
	at := len(c.out)
	c.out = append(append(append(c.out, 0, 0, 0, 0), name...), 0)

	return at
}

func (c *conn) endSequence(at int) {
	binary.LittleEndian.PutUint32(c.out[at:], uint32(len(c.out)-at))
}

// write begins a retryable write.
func (c *conn) write(command string) {
	c.begin()
	c.out = bsoncore.AppendStringElement(c.out, command, points)
	c.out = bsoncore.AppendBooleanElement(c.out, "ordered", true)
	c.retryable()
	c.end(database)
}

// insert inserts one document.
func insert(c *conn, _ int) error { return c.insert(1) }

// insertMany inserts many documents with one command.
func insertMany(c *conn, _ int) error { return c.insert(manyDocs) }

func (c *conn) insert(n int) error {
	var text [manyBytes - 40]byte

	c.write("insert")

	seq := c.sequence("documents")
	for range n {
		var at int32
		at, c.out = bsoncore.AppendDocumentStart(c.out)
		c.out = bsoncore.AppendObjectIDElement(c.out, "_id", c.nextID())
		c.out = bsoncore.AppendBinaryElement(c.out, "b", 0, text[:])
		c.out, _ = bsoncore.AppendDocumentEnd(c.out, at)
	}

	c.endSequence(seq)

	_, err := c.send()

	return err
}

// update adds one to a number.
func update(c *conn, i int) error { return c.update(i, 1) }

// bulk does so with many documents, one after the other.
func bulk(c *conn, i int) error { return c.update(i*bulkUpdates, bulkUpdates) }

func (c *conn) update(from, n int) error {
	c.write("update")

	seq := c.sequence("updates")
	for i := range n {
		var at, u, inc int32
		at, c.out = bsoncore.AppendDocumentStart(c.out)
		c.filter("q", from+i)
		u, c.out = bsoncore.AppendDocumentElementStart(c.out, "u")
		inc, c.out = bsoncore.AppendDocumentElementStart(c.out, "$inc")
		c.out = bsoncore.AppendInt32Element(c.out, "n", 1)
		c.out, _ = bsoncore.AppendDocumentEnd(c.out, inc)
		c.out, _ = bsoncore.AppendDocumentEnd(c.out, u)
		c.out, _ = bsoncore.AppendDocumentEnd(c.out, at)
	}

	c.endSequence(seq)

	reply, err := c.send()
	if err != nil {
		return err
	}

	e, _ := reply.Lookup("n")
	if got, _ := e.Int64(); got != int64(n) {
		return fmt.Errorf("%d documents updated, not %d", got, n)
	}

	return nil
}

// scan reads a whole collection as drivers do: a first batch of 101, then what fits into a message.
func scan(c *conn, _ int) error {
	c.begin()
	c.out = bsoncore.AppendStringElement(c.out, "find", scanned)
	c.out = bsoncore.AppendDocumentElement(c.out, "filter", []byte{5, 0, 0, 0, 0})
	c.withSession()

	return c.readAll(scanned)
}

// sortedOn reads a whole collection in the order of a field with an index.
func sortedOn(coll string) func(*conn, int) error {
	return func(c *conn, _ int) error {
		c.begin()
		c.out = bsoncore.AppendStringElement(c.out, "find", coll)
		c.out = bsoncore.AppendDocumentElement(c.out, "filter", []byte{5, 0, 0, 0, 0})
		c.out = bsoncore.AppendDocumentElement(c.out, "sort", bsoncore.NewDocumentBuilder().AppendInt32("n", 1).Build())
		c.withSession()

		return c.readAll(coll)
	}
}

func (c *conn) readAll(coll string) error {
	reply, err := c.exchange(database)
	if err != nil {
		return err
	}

	n, err := c.drain(coll, reply)
	if err == nil && n != docs {
		err = fmt.Errorf("%d documents came, not %d", n, docs)
	}

	return err
}

func driverFind(ctx context.Context, c *mongo.Collection, i int) error {
	return c.FindOne(ctx, bson.D{{Key: "_id", Value: pointID(i)}}).Err()
}

func driverInsert(ctx context.Context, c *mongo.Collection, _ int) error {
	_, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "b", Value: make([]byte, manyBytes-40)}})
	return err
}

func driverUpdate(ctx context.Context, c *mongo.Collection, i int) error {
	_, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: pointID(i)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	return err
}

// fill makes the data of a collection, in batches.
func fill(c *conn, coll string, size int) error {
	text := make([]byte, size)

	for from := 0; from < docs; from += manyDocs {
		c.begin()
		c.out = bsoncore.AppendStringElement(c.out, "insert", coll)
		c.out = bsoncore.AppendBooleanElement(c.out, "ordered", false)
		c.retryable()
		c.end(database)

		seq := c.sequence("documents")
		for i := from; i < from+manyDocs; i++ {
			doc, err := bson.Marshal(bson.D{{Key: "_id", Value: pointID(i)}, {Key: "n", Value: int32(i * 7919 % docs)}, {Key: "text", Value: text}})
			if err != nil {
				return err
			}

			c.out = append(c.out, doc...)
		}

		c.endSequence(seq)

		if _, err := c.send(); err != nil {
			return fmt.Errorf("fill %s: %w", coll, err)
		}
	}

	return nil
}

// id names a cell of the table.
func (w *workload) id(backend string, clients int) string {
	return backend + "/" + w.name + "/" + strconv.Itoa(clients)
}
