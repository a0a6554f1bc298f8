package router

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/relay"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// others is what this router knows of where the others are.
type others struct {
	mu   sync.Mutex
	at   time.Time          // guarded by mu: of the last look at the catalog
	list map[int]relay.Peer // guarded by mu, by number
}

// The list of routers is looked at again after this: where a router is on it, and where it
// is not, as it may have started just now.
const (
	knownFor   = time.Second
	unknownFor = 100 * time.Millisecond
)

// peer returns the router that has a number. One that is shut out has no cursors any more;
// without auth it is never shut out, and silence has to do. While the catalog is away, what
// was known before holds.
func (r *Router) peer(ctx context.Context, number int) (relay.Peer, bool) {
	o := &r.others
	o.mu.Lock()
	defer o.mu.Unlock()
	p, known := o.list[number]
	if age := time.Since(o.at); age < unknownFor || known && age < knownFor {
		return p, known
	}
	// For all who wait for it, whether or not this client stays.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), latestLimit)
	defer cancel()
	routers, err := r.store.Routers(ctx)
	o.at = time.Now()
	if err != nil {
		r.log.Debug().Err(err).Msg("look for other routers")
		return p, known
	}
	o.list = make(map[int]relay.Peer, len(routers))
	for i := range routers {
		c := &routers[i]
		if !c.Evicted && !(c.Silent && r.opts.Backend.Admin.None()) {
			o.list[c.Number] = relay.Peer{Incarnation: c.Incarnation, Addr: c.Name}
		}
	}
	p, known = o.list[number]
	return p, known
}

// home returns the number of the router that gave out a cursor id, 0 where it is this one,
// or where it cannot be asked: an operation is relayed once.
func (r *Router) home(op *Op, id int64) int {
	number := int(id >> routerBits)
	if op.Relayed || number <= 0 || number == r.Self().Number {
		return 0
	}
	return number
}

// moreElsewhere has the router that gave out a cursor's id run a getMore: shards give a
// cursor's documents only to the user who opened it, which is that router's (PROTOCOL.md
// F1). When that router is gone so is the cursor, 43.
func (r *Router) moreElsewhere(ctx context.Context, op *Op, id int64) error {
	buf := op.Buffers.Get(4096)
	info, err := r.relay(ctx, op, r.home(op, id), op.Cmd.Body, buf)
	if err == nil && !info.OK {
		body, _ := wire.ReplyBody(*buf)
		err = relayedError(body)
		op.Reply.ShardTime = max(op.Reply.ShardTime, info.OperationTime)
		op.Buffers.Put(buf)
		return err
	}
	if err != nil {
		op.Buffers.Put(buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return mongoerr.Wrap(mongoerr.CursorNotFound, err, fmt.Sprintf("cursor id %d not found: its router cannot be asked", id))
	}
	old, _, err := op.Reply.Adopt(*buf)
	if err == nil {
		*buf = old
	}
	op.Buffers.Put(buf)
	return err
}

// relay sends a command to another router and reads its reply into buf. A time limit of the
// operation is that router's to keep.
func (r *Router) relay(ctx context.Context, op *Op, number int, command wire.Doc, buf *[]byte) (info wire.ShardReply, err error) {
	to, known := r.peer(ctx, number)
	if !known {
		return info, fmt.Errorf("there is no router %d", number)
	}
	*buf, err = r.peers.Do(ctx, &relay.Request{To: to, UID: op.Session.UID, Command: command, Lives: func(ctx context.Context) error {
		if r.isStopped() {
			return ErrEvicted // a router that stops by itself has let its clients end first
		}
		if now, known := r.peer(ctx, number); !known || now != to {
			return fmt.Errorf("router %s is gone", to.Addr)
		}
		return nil
	}}, *buf)
	if err != nil {
		return info, err
	}
	body, err := wire.ReplyBody(*buf)
	if err == nil {
		info, err = wire.Inspect(body)
	}
	r.Clock.Advance(info.ClusterTime)
	return info, err
}

// relayedError is the error of another router's reply, which is the client's as it is.
func relayedError(body wire.Doc) *mongoerr.Error {
	e := &mongoerr.Error{}
	it := body.Iter()
	var el, l wire.Elem
	for it.Next(&el) {
		switch string(el.Name) {
		case "ok", "codeName", "$clusterTime", "operationTime":
		case "errmsg":
			e.Message, _ = el.Str()
		case "code":
			n, _ := el.Int64()
			e.Code = mongoerr.Code(n)
		case "errorLabels":
			for in := wire.Doc(el.Value).Iter(); in.Next(&l); {
				label, _ := l.Str()
				e.Labels = append(e.Labels, label)
			}
		default:
			e.Extra = append(e.Extra, el.Raw...)
		}
	}
	return e
}

// killElsewhere has other routers kill those of their cursors that a client names here; it
// returns the ids of what they have killed.
func (r *Router) killElsewhere(ctx context.Context, op *Op, byHome map[int][]int64) map[int64]bool {
	ctx, cancel := context.WithTimeout(ctx, backgroundLimit)
	defer cancel()
	killed := map[int64]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for number, ids := range byHome {
		list := bsoncore.NewArrayBuilder()
		for _, id := range ids {
			list.AppendInt64(id)
		}
		at, command := wire.AppendDocStart(nil)
		command = append(command, op.Cmd.First.Raw...)
		command = bsoncore.AppendArrayElement(command, "cursors", list.Build())
		command = appendSkipping(command, op.Cmd, 0, []string{string(op.Cmd.First.Name), "cursors"})
		command = wire.AppendDocEnd(command, at)
		all.Go(func() {
			buf := op.Buffers.Get(4096)
			defer op.Buffers.Put(buf)
			_, err := r.relay(ctx, op, number, command, buf)
			if err != nil {
				r.log.Debug().Err(err).Int("router", number).Msg("kill cursors of another router")
				return
			}
			mu.Lock()
			defer mu.Unlock()
			noteKilled(killed, *buf)
		})
	}
	all.Wait()
	return killed
}

// noteKilled reads which cursors a killCursors has closed.
func noteKilled(killed map[int64]bool, msg []byte) {
	body, err := wire.ReplyBody(msg)
	if err != nil {
		return
	}
	list, ok := body.Lookup("cursorsKilled")
	if !ok || list.Type != bson.TypeArray {
		return
	}
	var e wire.Elem
	for it := wire.Doc(list.Value).Iter(); it.Next(&e); {
		if id, ok := e.Int64(); ok {
			killed[id] = true
		}
	}
}
