package wire

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Generic is a set of the arguments that any command may carry.
type Generic uint32

// The generic arguments (MONGOSH.md §1.4).
const (
	ArgDB Generic = 1 << iota
	ArgLSID
	ArgClusterTime
	ArgReadPreference
	ArgReadConcern
	ArgWriteConcern
	ArgMaxTimeMS
	ArgTxnNumber
	ArgAutocommit
	ArgStartTransaction
	ArgAPIVersion
	ArgAPIStrict
	ArgAPIDeprecation
	ArgComment
	ArgStmtID
	ArgStmtIDs
	ArgCollectionUUID

	ArgAPI  = ArgAPIVersion | ArgAPIStrict | ArgAPIDeprecation
	numArgs = 17
)

// genericArg returns the bit of a generic argument's name, 0 for others.
func genericArg(name []byte) Generic {
	switch string(name) {
	case "$db":
		return ArgDB
	case "lsid":
		return ArgLSID
	case "$clusterTime":
		return ArgClusterTime
	case "$readPreference":
		return ArgReadPreference
	case "readConcern":
		return ArgReadConcern
	case "writeConcern":
		return ArgWriteConcern
	case "maxTimeMS":
		return ArgMaxTimeMS
	case "txnNumber":
		return ArgTxnNumber
	case "autocommit":
		return ArgAutocommit
	case "startTransaction":
		return ArgStartTransaction
	case "apiVersion":
		return ArgAPIVersion
	case "apiStrict":
		return ArgAPIStrict
	case "apiDeprecationErrors":
		return ArgAPIDeprecation
	case "comment":
		return ArgComment
	case "stmtId":
		return ArgStmtID
	case "stmtIds":
		return ArgStmtIDs
	case "collectionUUID":
		return ArgCollectionUUID
	}
	return 0
}

// span is where a generic argument's element lies in the body.
type span struct {
	arg        Generic
	start, end int32
}

// Command is an OP_MSG body walked once: its name, its database and where its
// generic arguments lie. Everything else stays raw. All slices alias the message.
type Command struct {
	Body  Doc
	First Elem // the command's name and argument
	DB    []byte
	args  Generic // with a value
	seen  Generic // also with null, which means absent
	spans [numArgs]span
	n     int
}

// IsGeneric reports whether a top-level field belongs to all commands.
func IsGeneric(name []byte) bool { return genericArg(name) != 0 }

// Parse walks a body. The errors are ones to answer: a body that is no BSON, an
// argument given twice (MONGOS.md §0, 40413), no $db (40571).
func (c *Command) Parse(body Doc) error {
	*c = Command{Body: body}
	it := body.Iter()
	var e Elem
	if !it.Next(&e) {
		if it.Err() != nil {
			return mongoerr.New(mongoerr.InvalidBSON, "invalid BSON in the command")
		}
		return mongoerr.New(mongoerr.CommandNotFound, "no such command: ''")
	}
	c.First = e
	at := 4 + len(e.Raw)
	for it.Next(&e) {
		if err := c.generic(&e, at); err != nil {
			return err
		}
		at += len(e.Raw)
	}
	if it.Err() != nil {
		return mongoerr.New(mongoerr.InvalidBSON, "invalid BSON in the command")
	}
	if c.args&ArgDB == 0 {
		return mongoerr.New(40571, "OP_MSG requests require a $db argument")
	}
	return nil
}

func (c *Command) generic(e *Elem, at int) error {
	arg := genericArg(e.Name)
	if arg == 0 {
		return nil
	}
	if c.seen&arg != 0 {
		return mongoerr.Newf(40413, "BSON field '%s.%s' is a duplicate field", c.First.Name, e.Name)
	}
	c.seen |= arg
	if !e.IsNull() {
		c.args |= arg
	}
	c.spans[c.n] = span{arg: arg, start: int32(at), end: int32(at + len(e.Raw))}
	c.n++
	if arg == ArgDB {
		db, ok := e.StrBytes()
		if !ok {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.$db' is the wrong type, expected type 'string'", c.First.Name)
		}
		c.DB = db
	}
	return nil
}

// Has reports whether any of the generic arguments is there. Null means absent
// (MONGOSH.md §1.4).
func (c *Command) Has(arg Generic) bool { return c.args&arg != 0 }

// Arg returns a generic argument's element.
func (c *Command) Arg(arg Generic) (e Elem, ok bool) {
	if c.args&arg == 0 {
		return Elem{}, false
	}
	for i := range c.spans[:c.n] {
		if s := &c.spans[i]; s.arg == arg {
			return elemAt(c.Body[s.start:s.end]), true
		}
	}
	return Elem{}, false
}

// elemAt splits an element that is known to be well formed.
func elemAt(raw []byte) Elem {
	end := bytes.IndexByte(raw[1:], 0)
	return Elem{Type: bson.Type(raw[0]), Name: raw[1 : end+1], Value: raw[end+2:], Raw: raw}
}

// AppendWithout appends the body's elements, without the document's frame and
// without the given generic arguments.
func (c *Command) AppendWithout(dst []byte, drop Generic) []byte {
	from := int32(4)
	for i := range c.spans[:c.n] {
		s := &c.spans[i]
		if s.arg&drop == 0 {
			continue
		}
		dst = append(dst, c.Body[from:s.start]...)
		from = s.end
	}
	return append(dst, c.Body[from:len(c.Body)-1]...)
}

// AppendDocStart appends a document's length, to be set by AppendDocEnd with the
// index it returns.
func AppendDocStart(dst []byte) (int, []byte) {
	return len(dst), append(dst, 0, 0, 0, 0)
}

// AppendDocEnd ends the document that began at index at.
func AppendDocEnd(dst []byte, at int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}

// AppendTimestampElement appends a BSON timestamp given as seconds<<32 | ordinal.
func AppendTimestampElement(dst []byte, name string, t uint64) []byte {
	return bsoncore.AppendTimestampElement(dst, name, uint32(t>>32), uint32(t))
}

// AppendSequence appends a kind-1 section.
func AppendSequence(dst []byte, name string, docs []byte) []byte {
	dst = append(dst, 1)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(4+len(name)+1+len(docs)))
	dst = append(dst, name...)
	dst = append(dst, 0)
	return append(dst, docs...)
}
