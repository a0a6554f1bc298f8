package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire"
)

// sortKeyField is what shards are asked to add to each document of a sorted scatter;
// it is taken out again.
const sortKeyField = "$sortKey"

// batchLimit bounds the documents of one reply, in bytes; one document is always
// given.
const batchLimit = wire.MaxDocumentLen

// nextBatch appends {<name>: […], id, ns} for up to n documents (0 < n; negative:
// no count limit) and reports whether the cursor is done.
func (r *Router) nextBatch(ctx context.Context, op *Op, c *Cursor, name string, n int64) (done bool, err error) {
	var cur, arr int32
	cur, op.Reply.Elems = bsoncore.AppendDocumentElementStart(op.Reply.Elems, "cursor")
	arr, op.Reply.Elems = bsoncore.AppendArrayElementStart(op.Reply.Elems, name)
	start := len(op.Reply.Elems)
	c.batch = n
	for given := 0; n < 0 || int64(given) < n; {
		p, doc, err := r.next(ctx, op, c)
		if err != nil {
			return false, err
		}
		if p == nil {
			break
		}
		if given > 0 && len(op.Reply.Elems)-start+len(doc) > batchLimit {
			break
		}
		p.pop()
		if room := cap(op.Reply.Elems) - len(op.Reply.Elems); room < len(doc)+replyTail {
			op.Reply.Elems = op.Buffers.Grow(op.Reply.Elems, c.pending(len(doc))+replyTail)
		}
		op.Reply.Elems = c.appendUnmarked(op.Reply.Elems, given, doc)
		given++
		c.taken()
	}
	done = c.single || c.exhausted()
	op.Reply.Elems, _ = bsoncore.AppendArrayEnd(op.Reply.Elems, arr)
	id := c.ID
	if done {
		id = 0
	}
	op.Reply.Int64("id", id)
	op.Reply.String("ns", c.NS)
	if c.missed {
		op.Reply.Elems = bsoncore.AppendBooleanElement(op.Reply.Elems, "partialResultsReturned", true)
	}
	if c.atTime != 0 {
		op.Reply.Elems = wire.AppendTimestampElement(op.Reply.Elems, "atClusterTime", c.atTime)
	}
	op.Reply.Elems, _ = bsoncore.AppendDocumentEnd(op.Reply.Elems, cur)
	return done, nil
}

// replyTail is room for what follows a document in a reply, in bytes.
const replyTail = 512

// pending is about how many bytes are still to come with a batch whose next document is of size n: what is fetched, within
// the limit of one reply.
func (c *Cursor) pending(n int) int {
	sum := n
	for _, p := range c.parts {
		sum += len(p.rest)
	}
	return max(min(sum, batchLimit), n)
}

// next is head within the cursor's window: it passes over skip, and what is not owned, and ends at limit. Who
// takes the document says so with taken.
func (r *Router) next(ctx context.Context, op *Op, c *Cursor) (*part, wire.Doc, error) {
	for c.limit != 0 {
		p, doc, err := r.head(ctx, op, c)
		over := err == nil && p != nil && c.passOver(doc)
		if !over && (c.skip == 0 || p == nil || err != nil) {
			return p, doc, err
		}
		if !over {
			c.skip--
		}
		p.pop()
	}
	return nil, nil, nil
}

// taken counts a document of the window.
func (c *Cursor) taken() {
	if c.limit > 0 {
		c.limit--
	}
}

func (c *Cursor) exhausted() bool {
	if c.limit == 0 {
		return true
	}
	for _, p := range c.parts {
		if p.id != 0 || len(p.rest) > 0 {
			return false
		}
	}
	return true
}

// head returns the document that comes next and whose it is; nil at the end. A
// sorted merge needs a document of every part that may have one.
func (r *Router) head(ctx context.Context, op *Op, c *Cursor) (*part, wire.Doc, error) {
	var best *part
	for _, p := range c.parts {
		for len(p.rest) == 0 && p.id != 0 {
			if err := r.fetch(ctx, op, c, p); c.misses(err) {
				p.id = 0
			} else if err != nil {
				return nil, nil, err
			}
		}
		if len(p.rest) == 0 {
			continue
		}
		if err := p.look(c.order != nil); err != nil {
			return nil, nil, err
		}
		if c.order == nil {
			return p, p.first.doc, nil
		}
		if best == nil || lessKey(&p.first.key, &best.first.key, c.order) {
			best = p
		}
	}
	if best == nil {
		return nil, nil, nil
	}
	return best, best.first.doc, nil
}

// first is the document that a part gives next, looked at once.
type first struct {
	size int // of its array element; 0: not looked at yet
	doc  wire.Doc
	key  wire.Elem // its sort key, where there is an order
}

// look finds a part's first document; there is one.
func (p *part) look(sorted bool) error {
	if p.first.size != 0 {
		return nil
	}
	e, n := wire.FirstElem(p.rest)
	if n == 0 {
		return wire.ErrMalformed
	}
	p.first = first{size: n, doc: wire.Doc(e.Value)}
	if sorted {
		p.first.key, _ = p.first.doc.Lookup(sortKeyField)
	}
	return nil
}

// pop takes the document away that look has found.
func (p *part) pop() {
	p.rest = p.rest[p.first.size:]
	p.first.size = 0
}

// fetch gets a part's next batch.
func (r *Router) fetch(ctx context.Context, op *Op, c *Cursor, p *part) error {
	if err := op.Expired(); err != nil {
		return err
	}
	elems := bsoncore.AppendInt64Element(nil, "getMore", p.id)
	elems = bsoncore.AppendStringElement(elems, "collection", p.coll)
	if c.batch > 0 {
		elems = bsoncore.AppendInt64Element(elems, "batchSize", c.batch)
	}
	if c.TxnNumber >= 0 {
		elems = bsoncore.AppendInt64Element(elems, "txnNumber", c.TxnNumber)
		elems = bsoncore.AppendBooleanElement(elems, "autocommit", false)
	}
	elems = appendSession(elems, &c.Session)
	if t := r.Clock.Now(); t != 0 {
		elems = wire.AppendClusterTime(elems, &wire.ClusterTime{Time: t})
	}
	msg := backend.AppendCommand(nil, p.database(c), elems)
	s, err := r.exchange(ctx, op, p.shard, &backend.Request{Msg: msg, Addr: p.addr})
	if err == nil && !s.info.OK {
		err = shardError(op, s.body)
	}
	if err != nil {
		r.release(op, &s)
		return err
	}
	op.Reply.ShardTime = max(op.Reply.ShardTime, s.info.OperationTime)
	op.Buffers.Put(p.buf)
	p.buf = s.buf
	p.id, p.coll, p.rest, err = cursorReply(s.info.Cursor)
	return err
}

// appendArrayDoc appends a document as the i-th element of an array, without the
// sort key that the router asked for.
func appendArrayDoc(dst []byte, i int, doc wire.Doc, sorted bool) []byte {
	dst = append(dst, byte(bson.TypeEmbeddedDocument))
	dst = appendIndex(dst, i)
	dst = append(dst, 0)
	if !sorted {
		return append(dst, doc...)
	}
	return appendPlain(dst, doc)
}

// appendPlain appends a document without the metadata that shards show for a merge.
func appendPlain(dst []byte, doc wire.Doc) []byte {
	start := len(dst)
	dst = append(dst, doc[:4]...)
	from, at := 4, 4 // what lies between is yet to be copied
	it := doc.Iter()
	var e wire.Elem
	for it.Next(&e) {
		next := at + len(e.Raw)
		if len(e.Name) > 0 && e.Name[0] == '$' && isMetadata(string(e.Name)) {
			dst = append(dst, doc[from:at]...)
			from = next
		}
		at = next
	}
	dst = append(dst, doc[from:at]...)
	return wire.AppendDocEnd(dst, start)
}

// isMetadata reports whether a mongod shows metadata of this name to a router.
func isMetadata(name string) bool {
	switch name {
	case sortKeyField, "$textScore", "$randVal", "$dis", "$pt", "$indexKey", "$searchScore":
		return true
	}
	return false
}

func appendIndex(dst []byte, i int) []byte {
	if i < 10 {
		return append(dst, byte('0'+i))
	}
	return append(appendIndex(dst, i/10), byte('0'+i%10))
}

// less compares the sort keys of two documents: arrays, but for a distance.
func less(a, b wire.Doc, descending []bool) bool {
	ka, _ := a.Lookup(sortKeyField)
	kb, _ := b.Lookup(sortKeyField)
	return lessKey(&ka, &kb, descending)
}

// lessKey compares two sort keys.
func lessKey(ka, kb *wire.Elem, descending []bool) bool {
	if ka.Type != bson.TypeArray || kb.Type != bson.TypeArray {
		return shardkey.Compare(ka.Type, ka.Value, kb.Type, kb.Value) < 0
	}
	ia, ib := wire.Doc(ka.Value).Iter(), wire.Doc(kb.Value).Iter()
	var ea, eb wire.Elem
	for i := 0; ia.Next(&ea) && ib.Next(&eb) && i < len(descending); i++ {
		c := shardkey.Compare(ea.Type, ea.Value, eb.Type, eb.Value)
		if c != 0 {
			return (c < 0) != descending[i]
		}
	}
	return false
}
