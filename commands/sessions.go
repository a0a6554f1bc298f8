package commands

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// maxSessionsAtOnce is how many sessions one command may name.
const maxSessionsAtOnce = 10_000

func startSession(_ context.Context, req *request) error {
	id := uuid.New()
	if err := req.touch(router.UUID(id)); err != nil {
		return err
	}
	return req.document(bson.D{
		{Key: "id", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id[:]}}}},
		{Key: "timeoutMinutes", Value: int32(30)},
	})
}

// sessionsCommand tells every shard of the client's sessions, with the client's uid
// (PROTOCOL.md, "More rules" 11).
func sessionsCommand(name string) func(context.Context, *request) error {
	return func(ctx context.Context, req *request) error {
		ids, err := sessionIDs(req)
		if err != nil {
			return err
		}
		if name == "refreshSessions" {
			for _, id := range ids {
				if err := req.touch(id); err != nil {
					return err
				}
			}
		}
		if len(ids) > 0 {
			req.h.router.EndSessions(ctx, req.Op, name, ids)
		}
		req.Reply.OK()
		return nil
	}
}

// touch notes that the client uses a session.
func (req *request) touch(id router.UUID) error {
	return req.h.router.TouchSession(router.Session{ID: id, UID: req.Session.UID}, time.Now())
}

func sessionIDs(req *request) ([]router.UUID, error) {
	if req.Cmd.First.Type != bson.TypeArray {
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type 'array'", req.row.Name, router.TypeName(req.Cmd.First.Type))
	}
	var ids []router.UUID
	it := wire.Doc(req.Cmd.First.Value).Iter()
	var e wire.Elem
	for it.Next(&e) {
		d, _ := e.Doc()
		id, ok := d.Lookup("id")
		if !ok || id.Type != bson.TypeBinary || len(id.Value) != 21 {
			return nil, mongoerr.New(40414, "BSON field 'LogicalSessionFromClient.id' is missing but a required field")
		}
		if len(ids) == maxSessionsAtOnce {
			return nil, mongoerr.Newf(mongoerr.InvalidLength, "too many sessions in one command: the limit is %d", maxSessionsAtOnce)
		}
		var u router.UUID
		copy(u[:], id.Value[5:])
		ids = append(ids, u)
	}
	return ids, it.Err()
}

func endTransaction(ctx context.Context, req *request) error {
	if !req.Txn.InTxn {
		return mongoerr.Newf(mongoerr.InvalidOptions, "%s must be run within a transaction", req.row.Name)
	}
	req.Write = true
	return req.h.router.EndTransaction(ctx, req.Op)
}
