package commands

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/router/relay"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
	"github.com/shardgate/shardgate/wire/server"
)

// Options are the settings of a Handler.
type Options struct {
	Router  *router.Router
	Log     zerolog.Logger
	Version string        // of the program
	Argv    []string      // for getCmdLineOpts, without secrets
	Slow    time.Duration // operations that take longer are logged at info
	Name    string        // advertised host:port
}

// Handler answers all commands of all connections.
type Handler struct {
	opts      Options
	router    *router.Router
	table     map[string]*Command
	started   time.Time
	process   bson.ObjectID
	counts    counters
	metrics   *metrics
	anonymous [32]byte // uid of clients that have not logged in
}

// New returns a Handler with the whole command table.
func New(opts Options) *Handler {
	h := &Handler{
		opts: opts, router: opts.Router, table: map[string]*Command{},
		started: time.Now(), process: bson.NewObjectID(), anonymous: anonymousUID(), metrics: newMetrics(),
	}
	rows := Table()
	for i := range rows {
		rows[i].observed = h.metrics.of(&rows[i])
		h.table[rows[i].Name] = &rows[i]
		for _, alias := range rows[i].Aliases {
			h.table[alias] = &rows[i]
		}
	}
	return h
}

var _ server.Handler = (*Handler)(nil)

// client is what the handler keeps of a connection.
type client struct {
	session router.UUID // for operations that bring none of their own
	op      router.Op   // of the command under way; reused
	cmd     wire.Command
	door    relay.Door // open if the client is another router
}

func (h *Handler) client(c *server.Conn) *client {
	if cl, ok := c.State.(*client); ok {
		return cl
	}
	id := uuid.MustParse(h.router.Self().Incarnation)
	cl := &client{session: router.ImplicitSession(router.UUID(id), c.ID)}
	c.State = cl
	return cl
}

// Closed implements server.Handler: nobody else can use the cursors of the connection's
// own session.
func (h *Handler) Closed(ctx context.Context, c *server.Conn) {
	if cl, ok := c.State.(*client); ok {
		h.router.CloseCursors(ctx, cl.session)
	}
}

// Left implements server.Handler.
func (h *Handler) Left() { h.router.Cut() }

// Time implements server.Handler.
func (h *Handler) Time() *wire.ClusterTime { return h.router.Clock.Signed() }

// request is one command under way.
type request struct {
	*router.Op
	h    *Handler
	conn *server.Conn
	row  *Command
	// stream is set by hello where another reply is to follow.
	stream bool
}

// Command implements server.Handler.
func (h *Handler) Command(ctx context.Context, c *server.Conn, m *wire.Msg, reply *wire.Reply) (bool, error) {
	cl := h.client(c)
	start := time.Now()
	req := request{Op: &cl.op, h: h, conn: c}
	cl.op = router.Op{Msg: m, Cmd: &cl.cmd, Reply: reply, Buffers: c.Buffers(), Conn: c.ID, Trace: cl.op.Trace.Cleared()}
	err := cl.cmd.Parse(m.Body)
	if err == nil && h.router.Evicted() && !isGreeting(&cl.cmd) && !h.stays(ctx, c, nil) {
		return false, router.ErrEvicted
	}
	if err == nil {
		err = h.run(ctx, cl, &req)
	}
	return h.finish(ctx, &req, err, start)
}

// isGreeting reports whether a command is the one that a connection begins with. A router
// that is shut out answers it all the same: see server.stopWhenIdle.
func isGreeting(cmd *wire.Command) bool {
	switch string(cmd.First.Name) {
	case "hello", "isMaster", "ismaster":
		return true
	}
	return false
}

// stays reports whether a router that a shard has refused is not evicted after all; err is
// what it could not do, which may say that it is. If it
// is, it can do nothing for anybody, and another one can: its connections are closed, and
// after a network error a driver tries again, there or at the one that comes in this one's
// place. It tries once, so it must not meet this one again: stays returns when nobody
// listens here any more.
func (h *Handler) stays(ctx context.Context, c *server.Conn, err error) bool {
	limit := time.NewTimer(leaveLimit)
	defer limit.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-c.Stopping():
			return false
		case <-limit.C:
			return false
		case <-ctx.Done():
			return false
		case <-look.C:
			if !h.router.Evicted() && !errors.Is(err, router.ErrEvicted) {
				return true
			}
		}
	}
}

// cutShort reports whether a batch's reply is of a router that is shut out: it tells of the
// statements that no shard took from it as of any that failed, and no driver would send these
// again. As all of it is known by its numbers, the whole can be.
func (h *Handler) cutShort(ctx context.Context, req *request) bool {
	return req.row.Write && h.router.Evicted() && req.Reply.Has("writeErrors") && !h.stays(ctx, req.conn, nil)
}

// leaveLimit is how long it may take until a router that is shut out knows it.
const leaveLimit = 10 * time.Second

func (h *Handler) run(ctx context.Context, cl *client, req *request) error {
	row := h.table[string(req.Cmd.First.Name)]
	if row == nil {
		return mongoerr.Newf(mongoerr.CommandNotFound, "no such command: '%s'", req.Cmd.First.Name)
	}
	req.row = row
	if err := req.admissible(); err != nil {
		return err
	}
	if err := req.envelope(cl); err != nil {
		return err
	}
	if row.run == nil {
		return mongoerr.Newf(mongoerr.NotImplemented, "shardgate does not do %s yet", row.Name)
	}
	if row.EndsWithClient && !req.Txn.InTxn {
		req.conn.EndsWithClient()
	}
	if err := h.router.BeginStatement(req.Op); err != nil {
		return err
	}
	err := row.run(ctx, req)
	if err != nil {
		h.router.FailStatement(ctx, req.Op)
	}
	return err
}

// admissible refuses a command where it cannot be run at all (MONGOS.md §0).
func (req *request) admissible() error {
	switch {
	case req.row.AdminOnly && string(req.Cmd.DB) != "admin":
		return mongoerr.Newf(mongoerr.Unauthorized, "%s may only be run against the admin database.", req.row.Name)
	case string(req.Cmd.DB) == "local" && !req.row.Anonymous:
		return mongoerr.New(mongoerr.IllegalOperation, "Can't use 'local' database through mongos")
	}
	if e, ok := req.Lookup("help"); ok {
		if v, _ := e.Bool(); v {
			return errHelp
		}
	}
	return router.CheckDB(req.Cmd.DB)
}

// errHelp ends a command that only asks for its help text.
var errHelp = errors.New("help")

// finish turns a failure into a reply and writes the log line. The connection stays.
func (h *Handler) finish(ctx context.Context, req *request, err error, start time.Time) (bool, error) {
	var code mongoerr.Code
	switch {
	case err == nil && h.cutShort(ctx, req):
		h.counts.add(req.row, router.ErrEvicted)
		return false, router.ErrEvicted
	case err == nil:
		h.router.RecoveryToken(req.Op)
	case errors.Is(err, errHelp):
		req.Reply.Reset()
		req.Reply.String("help", "help for: "+req.row.Name+" "+req.row.Help)
		req.Reply.OK()
		err = nil
	case (h.router.Evicted() || errors.Is(err, router.ErrEvicted)) && !h.stays(ctx, req.conn, err):
		h.counts.add(req.row, err)
		return false, router.ErrEvicted
	default:
		e := router.ClientError(req.Op, err)
		code = e.Code
		req.Reply.Error(e)
	}
	h.counts.add(req.row, err)
	took := time.Since(start)
	h.metrics.note(req.row, &req.Trace, code, err != nil, took) // some errors have no code
	h.logLine(req, code, err, took)
	return req.stream, nil
}

func (h *Handler) logLine(req *request, code mongoerr.Code, err error, took time.Duration) {
	level := zerolog.DebugLevel
	if h.opts.Slow > 0 && took > h.opts.Slow && req.row != nil && !req.row.Anonymous {
		level = zerolog.InfoLevel
	}
	l := h.opts.Log.WithLevel(level)
	if h.opts.Log.GetLevel() > level {
		return
	}
	l = l.Int64("conn", req.Op.Conn).Bytes("command", req.Cmd.First.Name).Bytes("db", req.Cmd.DB)
	if coll, ok := req.Cmd.First.StrBytes(); ok {
		l = l.Bytes("collection", coll)
	}
	l = l.Dur("took", took).Int64("documents", req.Reply.Documents())
	if len(req.Trace.Asked) > 0 {
		l = l.Bool("scattered", req.Trace.Scattered()).Array("shards", asked(req.Trace.Asked))
	}
	if req.Trace.Why != "" {
		l = l.Str("why", string(req.Trace.Why))
	}
	if err != nil {
		l = l.Int32("code", int32(code)).AnErr("error", err)
	}
	l.Msg("command")
}

// asked prints the round trips of an operation.
type asked []router.Asked

// MarshalZerologArray implements zerolog.LogArrayMarshaler.
func (a asked) MarshalZerologArray(list *zerolog.Array) {
	for i := range a {
		list.Dict(zerolog.Dict().Str("shard", a[i].Shard).Dur("took", a[i].Took))
	}
}

// Query implements server.Handler: the old handshake, and a proper refusal for the
// rest (CASES.md A4).
func (h *Handler) Query(ctx context.Context, c *server.Conn, q *wire.Query, reply *wire.Reply) (uint32, error) {
	cl := h.client(c)
	start := time.Now()
	req := request{Op: &cl.op, h: h, conn: c}
	cl.op = router.Op{Cmd: &cl.cmd, Reply: reply, Buffers: c.Buffers(), Conn: c.ID}
	err := h.query(ctx, cl, &req, q)
	_, ferr := h.finish(ctx, &req, err, start)
	return 0, ferr
}

func (h *Handler) query(ctx context.Context, cl *client, req *request, q *wire.Query) error {
	const suffix = ".$cmd"
	ns := string(q.NS)
	if len(ns) <= len(suffix) || ns[len(ns)-len(suffix):] != suffix {
		return mongoerr.Newf(mongoerr.UnsupportedOpQueryCommand, "Unsupported OP_QUERY on %s", ns)
	}
	body := withDB(q.Doc, ns[:len(ns)-len(suffix)])
	if err := cl.cmd.Parse(body); err != nil {
		return err
	}
	row := h.table[string(cl.cmd.First.Name)]
	if row == nil || !row.OpQuery {
		return mongoerr.Newf(mongoerr.UnsupportedOpQueryCommand, "Unsupported OP_QUERY command: %s. The client driver may require an upgrade.", cl.cmd.First.Name)
	}
	return h.run(ctx, cl, req)
}

// withDB makes an OP_QUERY's document look like an OP_MSG body.
func withDB(doc wire.Doc, db string) wire.Doc {
	if _, ok := doc.Lookup("$db"); ok {
		return doc
	}
	out := append(make([]byte, 0, len(doc)+len(db)+16), doc[:len(doc)-1]...)
	out = appendString(out, "$db", db)
	return wire.AppendDocEnd(out, 0)
}
