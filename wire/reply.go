package wire

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// ClusterTime is what `$clusterTime` says: a time and its proof.
type ClusterTime struct {
	Time  uint64 // seconds<<32 | ordinal
	Hash  [20]byte
	KeyID int64
}

// AppendClusterTime appends a `$clusterTime` element.
func AppendClusterTime(dst []byte, t *ClusterTime) []byte {
	var at, sig int32
	at, dst = bsoncore.AppendDocumentElementStart(dst, "$clusterTime")
	dst = AppendTimestampElement(dst, "clusterTime", t.Time)
	sig, dst = bsoncore.AppendDocumentElementStart(dst, "signature")
	dst = bsoncore.AppendBinaryElement(dst, "hash", 0, t.Hash[:])
	dst = bsoncore.AppendInt64Element(dst, "keyId", t.KeyID)
	dst, _ = bsoncore.AppendDocumentEnd(dst, sig)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// ReadClusterTime reads a `$clusterTime` element's value; ok is false where it is
// not one.
func ReadClusterTime(e Elem) (t ClusterTime, ok bool) {
	doc, ok := e.Doc()
	if !ok {
		return t, false
	}
	te, ok := doc.Lookup("clusterTime")
	if !ok {
		return t, false
	}
	if t.Time, ok = te.Timestamp(); !ok {
		return t, false
	}
	if se, found := doc.Lookup("signature"); found {
		sig, _ := se.Doc()
		if h, found := sig.Lookup("hash"); found && h.Type == bson.TypeBinary && len(h.Value) == 5+20 {
			copy(t.Hash[:], h.Value[5:])
		}
		if k, found := sig.Lookup("keyId"); found {
			t.KeyID, _ = k.Int64()
		}
	}
	return t, true
}

// Reply is the answer to one command: an OP_MSG or OP_REPLY under construction,
// in a buffer that it owns. A handler appends elements to Elems, or takes over
// the message of a shard with Adopt.
type Reply struct {
	Elems  []byte // the message so far; handlers append complete BSON elements
	bodyAt int
	// ShardTime is the greatest operationTime that a shard reported for this
	// command, 0 if none was asked.
	ShardTime uint64
}

// Begin starts a reply in buf (its contents are lost).
func (r *Reply) Begin(buf []byte) {
	r.Elems = AppendMsgStart(buf[:0], 0, 0, 0)
	r.bodyAt = len(r.Elems)
	r.Elems = append(r.Elems, 0, 0, 0, 0)
	r.ShardTime = 0
}

// Reset drops all elements appended so far.
func (r *Reply) Reset() { r.Elems = r.Elems[:r.bodyAt+4] }

// Empty reports whether nothing was appended yet.
func (r *Reply) Empty() bool { return len(r.Elems) == r.bodyAt+4 }

// Int32 appends an int32 element.
func (r *Reply) Int32(name string, v int32) { r.Elems = bsoncore.AppendInt32Element(r.Elems, name, v) }

// Int64 appends an int64 element.
func (r *Reply) Int64(name string, v int64) { r.Elems = bsoncore.AppendInt64Element(r.Elems, name, v) }

// Double appends a double element.
func (r *Reply) Double(name string, v float64) {
	r.Elems = bsoncore.AppendDoubleElement(r.Elems, name, v)
}

// Bool appends a boolean element.
func (r *Reply) Bool(name string, v bool) { r.Elems = bsoncore.AppendBooleanElement(r.Elems, name, v) }

// String appends a string element.
func (r *Reply) String(name, v string) { r.Elems = bsoncore.AppendStringElement(r.Elems, name, v) }

// Doc appends an embedded document element.
func (r *Reply) Doc(name string, d []byte) {
	r.Elems = bsoncore.AppendDocumentElement(r.Elems, name, d)
}

// Documents counts what the reply gives of documents: a cursor's batch, or else "n".
func (r *Reply) Documents() int64 {
	for rest := r.Elems[r.bodyAt+4:]; len(rest) > 0; {
		e, size := FirstElem(rest)
		if size == 0 {
			return 0
		}
		rest = rest[size:]
		switch string(e.Name) {
		case "n":
			n, _ := e.Int64()
			return n
		case "cursor":
			return batchLen(e)
		}
	}
	return 0
}

// Has reports whether a top-level element of this name was appended.
func (r *Reply) Has(name string) bool {
	for rest := r.Elems[r.bodyAt+4:]; len(rest) > 0; {
		e, size := FirstElem(rest)
		if size == 0 || string(e.Name) == name {
			return size != 0
		}
		rest = rest[size:]
	}
	return false
}

func batchLen(cursor Elem) (n int64) {
	d, _ := cursor.Doc()
	batch, ok := d.Lookup("firstBatch")
	if !ok {
		batch, _ = d.Lookup("nextBatch")
	}
	it := Doc(batch.Value).Iter()
	var e Elem
	for it.Next(&e) {
		n++
	}
	return n
}

// OK appends ok: 1.
func (r *Reply) OK() { r.Double("ok", 1) }

// Error makes the reply an error's, dropping what was appended.
func (r *Reply) Error(err *mongoerr.Error) {
	r.Reset()
	r.Elems = err.AppendElements(r.Elems)
}

// Finish appends the times (MONGOS.md §0: both on every reply) where clock is not
// nil, closes the document and returns the message, which lies in Elems' buffer.
func (r *Reply) Finish(requestID, responseTo int32, flags uint32, clock *ClusterTime) []byte {
	if clock != nil {
		r.Elems = AppendClusterTime(r.Elems, clock)
		op := r.ShardTime
		if op == 0 {
			op = clock.Time
		}
		r.Elems = AppendTimestampElement(r.Elems, "operationTime", op)
	}
	r.Elems = AppendDocEnd(r.Elems, r.bodyAt)
	msg := r.Elems
	if flags&FlagChecksum != 0 {
		msg = append(msg, 0, 0, 0, 0)
	}
	SetLength(msg)
	binary.LittleEndian.PutUint32(msg[4:], uint32(requestID))
	binary.LittleEndian.PutUint32(msg[8:], uint32(responseTo))
	binary.LittleEndian.PutUint32(msg[HeaderLen:], flags)
	if flags&FlagChecksum != 0 {
		binary.LittleEndian.PutUint32(msg[len(msg)-4:], Checksum(msg[:len(msg)-4]))
	}
	r.Elems = msg
	return msg
}

// AsQueryReply turns a finished OP_MSG reply into the OP_REPLY that answers an
// OP_QUERY.
func AsQueryReply(dst, msg []byte, flags uint32) []byte {
	h := ParseHeader(msg)
	dst = AppendReplyStart(dst, h.RequestID, h.ResponseTo, flags)
	dst = append(dst, msg[MsgBodyAt:]...)
	SetLength(dst)
	return dst
}

// ShardReply is what the router needs of a shard's reply, found in one walk.
type ShardReply struct {
	OK            bool
	Code          mongoerr.Code
	OperationTime uint64
	ClusterTime   uint64
	Cursor        Elem // the cursor element, absent in most replies
	WriteErrors   Elem
	WCError       Elem
	Errmsg        Elem
}

// internalField reports whether a top-level field of a mongod's reply is one that
// a mongos does not pass on.
func internalField(name []byte) bool {
	switch string(name) {
	case "$clusterTime", "operationTime", "electionId", "opTime", "topologyVersion",
		"errorLabels", "$configServerState", "$gleStats", "$configTime", "$topologyTime",
		"lastCommittedOpTime", "readOnly":
		return true
	}
	return false
}

// Adopt takes over a shard's reply message, in whose buffer the reply goes on: it
// drops, in place, the fields that are the shard's own affair, and reads the
// rest. The buffer that r had before is returned for the caller to give back.
func (r *Reply) Adopt(msg []byte) (old []byte, info ShardReply, err error) {
	body, err := ReplyBody(msg)
	if err != nil {
		return nil, info, err
	}
	keep := MsgBodyAt + 4
	it := body.Iter()
	var e Elem
	at := keep
	for it.Next(&e) {
		n := len(e.Raw)
		if !internalField(e.Name) {
			if at != keep {
				copy(msg[keep:], msg[at:at+n])
				e = elemAt(msg[keep : keep+n]) // info is to point at what stays
			}
			keep += n
		}
		info.note(&e)
		at += n
	}
	if it.Err() != nil {
		return nil, info, it.Err()
	}
	old = r.Elems
	r.Elems, r.bodyAt = msg[:keep], MsgBodyAt
	r.ShardTime = max(r.ShardTime, info.OperationTime)
	return old, info, nil
}

// Inspect reads a shard's reply without changing it.
func Inspect(body Doc) (info ShardReply, err error) {
	it := body.Iter()
	var e Elem
	for it.Next(&e) {
		info.note(&e)
	}
	return info, it.Err()
}

// note records an element.
func (s *ShardReply) note(e *Elem) {
	switch string(e.Name) {
	case "ok":
		s.OK, _ = e.Bool()
	case "code":
		n, _ := e.Int64()
		s.Code = mongoerr.Code(n)
	case "errmsg":
		s.Errmsg = *e
	case "cursor":
		s.Cursor = *e
	case "writeErrors":
		s.WriteErrors = *e
	case "writeConcernError":
		s.WCError = *e
	case "operationTime":
		s.OperationTime, _ = e.Timestamp()
	case "$clusterTime":
		if t, ok := ReadClusterTime(*e); ok {
			s.ClusterTime = t.Time
		}
	}
}

// CursorIDOffset finds the 8 bytes of a cursor's id inside a cursor element's
// value, so that it can be patched in place; -1 where there is none.
func CursorIDOffset(cursor []byte) int {
	it := Doc(cursor).Iter()
	var e Elem
	at := 4
	for it.Next(&e) {
		if bytes.Equal(e.Name, []byte("id")) && e.Type == bson.TypeInt64 {
			return at + len(e.Raw) - 8
		}
		at += len(e.Raw)
	}
	return -1
}
