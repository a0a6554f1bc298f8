package router

import (
	"context"
	"encoding/binary"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// UUID is a session's or collection's id.
type UUID [16]byte

// Session is a client's session as shards are to see it: its id and the digest of
// the client's user, so that it does not depend on which router carries it
// (PROTOCOL.md F1).
type Session struct {
	ID       UUID
	UID      [32]byte
	Implicit bool // the router's own, because the client sent none
}

// Txn is what a command says of its transaction or retryable write.
type Txn struct {
	Number    int64
	Present   bool // txnNumber is there
	InTxn     bool // autocommit: false
	Start     bool // startTransaction: true
	Committal bool // commitTransaction or abortTransaction
}

// Statement reports whether the command is a statement of a transaction, which can be
// neither repeated nor known again by its number.
func (t *Txn) Statement() bool { return t.InTxn && !t.Committal }

// Op is one client command under way. It is for one goroutine.
type Op struct {
	Cmd      *wire.Command
	Msg      *wire.Msg // nil for a command that came as OP_QUERY
	Reply    *wire.Reply
	Buffers  *wire.Buffers
	Conn     int64
	Session  Session
	Txn      Txn
	Deadline time.Time // zero: none
	ReadTime uint64    // the cluster time that the read needs: afterClusterTime or atClusterTime
	Pref     backend.ReadPref
	PrefRaw  wire.Elem    // the client's $readPreference, absent for primary
	Drop     wire.Generic // arguments not for shards, beside those always replaced
	Write    bool         // the command writes: collectionUUID is sent, API arguments are not
	Relayed  bool         // it came through another router, which says in Session.UID who the client is

	movedAt uint64  // the cluster time since which the collection is on its shard, 0: it has not moved
	view    string  // namespace of the view for which an aggregate stands
	stmtIDs []int32 // what the client calls its statements, if it has a list
	stmtID  int32   // else the number of the first
	lost    []lostWrite

	reshaped bool // it may repeat a write of when the collection had another key

	Trace Trace
}

// NS returns "db.coll" of a command whose argument is a collection name, built in
// buf. Bad names are 73 InvalidNamespace, what is no string at all mostly 2 BadValue.
func (op *Op) NS(buf []byte) ([]byte, error) {
	coll, ok := op.Cmd.First.StrBytes()
	if !ok {
		return nil, mongoerr.Newf(notAName(op.Cmd.First.Name), "collection name has invalid type %s", TypeName(op.Cmd.First.Type))
	}
	if err := checkNames(op.Cmd.DB, coll); err != nil {
		return nil, err
	}
	buf = append(buf[:0], op.Cmd.DB...)
	buf = append(buf, '.')
	return append(buf, coll...), nil
}

// notAName is the code for a collection's name that is no string.
func notAName(command []byte) mongoerr.Code {
	switch string(command) {
	case "count", "distinct", "collStats", "collstats", "validate":
		return mongoerr.InvalidNamespace
	}
	return mongoerr.BadValue
}

// maxNS is the greatest length of a namespace in bytes, maxDB that of a database
// name (MONGOS.md §6).
const (
	maxNS = 255
	maxDB = 63
)

func checkNames(db, coll []byte) error {
	if err := CheckDB(db); err != nil {
		return err
	}
	bad := len(coll) == 0 || coll[0] == '.' || len(db)+1+len(coll) > maxNS
	for _, b := range coll {
		bad = bad || b == 0 || b == '$' && string(coll) != "$cmd.aggregate"
	}
	if bad || !utf8.Valid(coll) {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s.%s'", db, coll)
	}
	return nil
}

// CheckDB refuses bad database names, and the one that is not for clients, with 73
// InvalidNamespace.
func CheckDB(db []byte) error {
	if string(db) == InternalDB {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "the database %s is shardgate's own", InternalDB)
	}
	bad := len(db) == 0 || len(db) > maxDB
	for _, b := range db {
		switch b {
		case 0, '/', '\\', '.', ' ', '"', '$':
			bad = true
		}
	}
	if bad || !utf8.Valid(db) {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid database name: '%s'", db)
	}
	return nil
}

// patch is what a command gets on its way to a shard.
type patch struct {
	drop      wire.Generic // beside what is always replaced
	skip      []string     // further top-level fields to leave out
	extra     []byte       // elements to add
	uuid      *UUID        // collectionUUID
	seqs      bool         // pass the client's document sequences on
	startTxn  bool         // begin the transaction on this shard
	readConc  []byte       // readConcern element of a transaction's first statement
	noSession bool
}

// alwaysReplaced are the arguments that the router speaks for itself.
const alwaysReplaced = wire.ArgLSID | wire.ArgClusterTime | wire.ArgReadPreference |
	wire.ArgMaxTimeMS | wire.ArgCollectionUUID

// appendMessage appends the client's command as a shard is to get it: copied as
// bytes, with what differs left out and added at the end (DESIGN.md "A request's
// way").
func (r *Router) appendMessage(dst []byte, op *Op, p *patch) []byte {
	start := len(dst)
	dst = wire.AppendMsgStart(dst, 0, 0, 0)
	at, dst := wire.AppendDocStart(dst)
	drop := p.drop | op.Drop | alwaysReplaced
	if op.Write || op.Txn.InTxn {
		drop |= wire.ArgAPI // a shard wants the same on all commands of a transaction
	}
	if op.Txn.Statement() {
		drop |= wire.ArgStartTransaction | wire.ArgReadConcern
	}
	late := op.readsLate()
	if late {
		drop |= wire.ArgReadConcern
	}
	if len(p.skip) == 0 {
		dst = op.Cmd.AppendWithout(dst, drop)
	} else {
		dst = appendSkipping(dst, op.Cmd, drop, p.skip)
	}
	dst = append(dst, p.extra...)
	if late {
		dst = op.appendLateConcern(dst)
	}
	dst = r.appendEnvelope(dst, op, p)
	dst = wire.AppendDocEnd(dst, at)
	if p.seqs && op.Msg != nil {
		for _, s := range op.Msg.Seqs[:op.Msg.NSeqs] {
			dst = wire.AppendSequence(dst, string(s.Name), s.Docs)
		}
	}
	wire.SetLength(dst[start:])
	return dst
}

// appendEnvelope appends what every command to a shard carries.
func (r *Router) appendEnvelope(dst []byte, op *Op, p *patch) []byte {
	if !p.noSession {
		dst = appendSession(dst, &op.Session)
	}
	if t := r.Clock.Now(); t != 0 {
		dst = wire.AppendClusterTime(dst, &wire.ClusterTime{Time: t})
	}
	if p.uuid != nil {
		dst = bsoncore.AppendBinaryElement(dst, "collectionUUID", 4, p.uuid[:])
	}
	if !op.Deadline.IsZero() {
		left := max(time.Until(op.Deadline).Milliseconds(), 1)
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", left)
	}
	if op.Pref.Mode != backend.Primary && op.PrefRaw.Type != 0 {
		dst = append(dst, op.PrefRaw.Raw...)
	}
	if p.startTxn {
		dst = bsoncore.AppendBooleanElement(dst, "startTransaction", true)
		dst = append(dst, p.readConc...)
	}
	return dst
}

func appendSession(dst []byte, s *Session) []byte {
	var at int32
	at, dst = bsoncore.AppendDocumentElementStart(dst, "lsid")
	dst = bsoncore.AppendBinaryElement(dst, "id", 4, s.ID[:])
	dst = bsoncore.AppendBinaryElement(dst, "uid", 0, s.UID[:])
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// appendSkipping is Command.AppendWithout with further fields left out.
func appendSkipping(dst []byte, c *wire.Command, drop wire.Generic, skip []string) []byte {
	from := len(dst)
	dst = c.AppendWithout(dst, drop)
	elems := dst[from:]
	keep := from
	for at := 0; at < len(elems); {
		e, n := wire.FirstElem(elems[at:])
		if n == 0 {
			break // Command.Parse has walked them all
		}
		if !contains(skip, e.Name) {
			copy(dst[keep:], elems[at:at+n])
			keep += n
		}
		at += n
	}
	return dst[:keep]
}

func contains(list []string, name []byte) bool {
	for _, s := range list {
		if s == string(name) {
			return true
		}
	}
	return false
}

// Lookup finds a top-level field of the command; null means absent
// (MONGOSH.md §1.4).
func (op *Op) Lookup(name string) (wire.Elem, bool) {
	e, ok := op.Cmd.Body.Lookup(name)
	return e, ok && !e.IsNull()
}

// Expired returns 50 MaxTimeMSExpired when the time limit has passed.
func (op *Op) Expired() error {
	if !op.Deadline.IsZero() && time.Now().After(op.Deadline) {
		return mongoerr.New(mongoerr.MaxTimeMSExpired, "operation exceeded time limit")
	}
	return nil
}

// Context returns ctx with the operation's deadline, for what is not a point
// operation.
func (op *Op) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	if op.Deadline.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, op.Deadline)
}

// ImplicitSession is the router's own session of a client connection: by it an
// operation can be found on a shard again (PROTOCOL.md F3).
func ImplicitSession(router UUID, conn int64) UUID {
	id := router
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(conn))
	for i := range b {
		id[8+i] ^= b[i]
	}
	reserve(&id)
	return id
}
