package nullshard

import (
	"encoding/binary"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
)

// What a scan gives: Docs documents of about DocBytes, the first batch as long as a mongod's. A sorted scan as a router asks for it gives half as
// many, since the router asks two shards.
const (
	Docs     = 10_000
	DocBytes = 1024

	firstBatch = 101
)

// Ids of the open cursors.
const (
	noCursor int64 = iota
	plainCursor
	sortedCursor
)

// small is what is copied into a connection's buffer, to leave with one write; longer replies leave with two.
const small = 64 << 10

// Server is a null shard on one address.
type Server struct {
	hello, point, scan, sorted, plainRest, sortedRest, none []byte // bodies of replies
}

// New returns a server that calls itself the primary of the replica set set at addr.
func New(set, addr string) (*Server, error) {
	s := &Server{}
	plain, sorted := documents(Docs, false), documents(Docs/2, true)

	for _, reply := range []struct {
		to  *[]byte
		doc bson.D
	}{
		{&s.hello, hello(set, addr)},
		{&s.point, cursorReply("bench.c", "firstBatch", bson.A{bson.D{{Key: "_id", Value: int32(5)}, {Key: "name", Value: "a document of some size"}}}, noCursor)},
		{&s.scan, cursorReply("bench.s", "firstBatch", plain[:firstBatch], plainCursor)},
		{&s.plainRest, cursorReply("bench.s", "nextBatch", plain[firstBatch:], noCursor)},
		{&s.sorted, cursorReply("bench.d", "firstBatch", sorted[:firstBatch], sortedCursor)},
		{&s.sortedRest, cursorReply("bench.d", "nextBatch", sorted[firstBatch:], noCursor)},
		{&s.none, cursorReply("bench.none", "firstBatch", bson.A{}, noCursor)},
	} {
		body, err := bson.Marshal(reply.doc)
		if err != nil {
			return nil, err
		}

		*reply.to = body
	}

	return s, nil
}

func hello(set, addr string) bson.D {
	return bson.D{
		{Key: "isWritablePrimary", Value: true},
		{Key: "ismaster", Value: true},
		{Key: "helloOk", Value: true},
		{Key: "setName", Value: set},
		{Key: "setVersion", Value: int32(1)},
		{Key: "hosts", Value: bson.A{addr}},
		{Key: "me", Value: addr},
		{Key: "primary", Value: addr},
		{Key: "secondary", Value: false},
		{Key: "maxBsonObjectSize", Value: int32(wire.MaxDocumentLen)},
		{Key: "maxMessageSizeBytes", Value: int32(wire.MaxMessageLen)},
		{Key: "maxWriteBatchSize", Value: int32(wire.MaxBatch)},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)},
		{Key: "minWireVersion", Value: int32(0)},
		{Key: "maxWireVersion", Value: int32(17)},
		{Key: "ok", Value: 1.0},
	}
}

// documents makes those of a scan, with sort keys as a mongod shows them to a router if sorted.
func documents(n int, sorted bool) bson.A {
	text := string(make([]byte, DocBytes-64))
	list := make(bson.A, n)

	for i := range list {
		d := bson.D{{Key: "_id", Value: int32(i)}, {Key: "n", Value: int32(i)}, {Key: "text", Value: text}}
		if sorted {
			d = append(d, bson.E{Key: "$sortKey", Value: bson.A{int32(i)}})
		}

		list[i] = d
	}

	return list
}

func cursorReply(ns, batch string, docs bson.A, id int64) bson.D {
	return append(bson.D{
		{Key: "cursor", Value: bson.D{{Key: batch, Value: docs}, {Key: "id", Value: id}, {Key: "ns", Value: ns}}},
		{Key: "ok", Value: 1.0},
	}, times()...)
}

// times are what ends each reply of a member of a replica set.
func times() bson.D {
	at := bson.Timestamp{T: 1700000000, I: 1}

	return bson.D{
		{Key: "$clusterTime", Value: bson.D{
			{Key: "clusterTime", Value: at},
			{Key: "signature", Value: bson.D{{Key: "hash", Value: make([]byte, 20)}, {Key: "keyId", Value: int64(0)}}},
		}},
		{Key: "operationTime", Value: at},
	}
}

// Serve answers clients until the listener is closed. Connections end with their clients.
func (s *Server) Serve(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}

		go s.serve(nc)
	}
}

// serve answers one client.
func (s *Server) serve(nc net.Conn) {
	defer nc.Close()

	var (
		pool wire.Buffers
		m    wire.Msg
		out  []byte
	)

	for in := wire.NewReader(nc, &pool); ; {
		b, err := in.Next(wire.MaxMessageLen)
		if err != nil {
			return
		}

		h := wire.ParseHeader(b)
		body := s.hello

		if h.OpCode == wire.OpQuery {
			out = wire.AppendReplyStart(out[:0], 1, h.RequestID, 0)
		} else {
			if wire.ParseMsg(b, &m) != nil {
				return
			}

			body = s.answer(&m)
			out = wire.AppendMsgStart(out[:0], 1, h.RequestID, 0)
		}

		binary.LittleEndian.PutUint32(out, uint32(len(out)+len(body)))

		if len(body) <= small {
			out, body = append(out, body...), nil
		}

		if _, err := nc.Write(out); err != nil {
			return
		}

		if _, err := nc.Write(body); body != nil && err != nil {
			return
		}
	}
}

// answer returns the body of the reply to a command.
func (s *Server) answer(m *wire.Msg) []byte {
	first, _ := m.Body.First()
	switch string(first.Name) {
	case "hello", "isMaster", "ismaster":
		return s.hello
	case "find":
		if _, one := m.Body.Lookup("singleBatch"); one {
			return s.point
		}

		_, sorted := m.Body.Lookup("sort")
		if _, projected := m.Body.Lookup("projection"); sorted && projected {
			return s.sorted
		}

		return s.scan
	case "getMore":
		if id, _ := first.Int64(); id == sortedCursor {
			return s.sortedRest
		}

		return s.plainRest
	case "insert":
		return written(m, "documents")
	case "update":
		return written(m, "updates")
	case "delete":
		return written(m, "deletes")
	default:
		return s.none
	}
}

// written says that all statements were executed.
func written(m *wire.Msg, name string) []byte {
	n := int32(0)
	if docs, ok := m.Sequence(name); ok {
		for len(docs) > 0 {
			docs = docs[binary.LittleEndian.Uint32(docs):]
			n++
		}
	} else if list, ok := m.Body.Lookup(name); ok {
		var e wire.Elem
		for it := wire.Doc(list.Value).Iter(); it.Next(&e); {
			n++
		}
	}

	body, err := bson.Marshal(append(bson.D{{Key: "n", Value: n}, {Key: "nModified", Value: n}, {Key: "ok", Value: 1.0}}, times()...))
	if err != nil {
		return nil
	}

	return body
}
