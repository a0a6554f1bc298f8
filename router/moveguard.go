package router

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// guarded writes to a shard for a movement, in transactions of a session of its own. Each
// needs a token: who has lost that writes nothing, however late (PROTOCOL.md F5).
type guarded struct {
	m       *mover
	shard   string
	session uuid.UUID
	token   bson.D // the document of movesColl that says that it may
	number  int64  // of the last transaction
}

// writer writes to a recipient as long as the movement's token is there.
func (m *mover) writer(shard string) guarded {
	return guarded{m: m, shard: shard, session: m.row.ID, token: bson.D{{Key: "_id", Value: m.tokenID()}, {Key: "open", Value: true}}}
}

// txnRun runs a statement of a guarded transaction.
type txnRun func(db string, cmd bson.D) (wire.Doc, error)

// inTxn runs a transaction, again if others have come between.
func (g *guarded) inTxn(ctx context.Context, do func(txnRun) error) error {
	var err error
	for try := range copyRounds {
		if err = g.once(ctx, do); !isContended(err) {
			return err
		}
		if !sleep(ctx, time.Duration(try+1)*time.Millisecond) {
			return ctx.Err()
		}
	}
	return err
}

func (g *guarded) once(ctx context.Context, do func(txnRun) error) error {
	m := g.m
	g.number++
	number, started := g.number, false
	run := func(db string, cmd bson.D) (wire.Doc, error) {
		cmd = append(cmd, bson.E{Key: "lsid", Value: nobodys(g.session)}, bson.E{Key: "txnNumber", Value: number}, bson.E{Key: "autocommit", Value: false})
		if !started {
			cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
			started = true
		}
		return m.ask(ctx, g.shard, db, cmd)
	}
	err := g.useToken(run)
	if err == nil {
		err = do(run)
	}
	if err != nil {
		if _, aerr := run("admin", bson.D{{Key: "abortTransaction", Value: int32(1)}}); aerr != nil {
			m.r.log.Debug().Err(aerr).Msg("abort a movement's transaction")
		}
		return err
	}
	_, err = run("admin", bson.D{{Key: "commitTransaction", Value: int32(1)}, {Key: "writeConcern", Value: majorityWrites}})
	return err
}

var errTokenGone = mongoerr.New(mongoerr.ConflictingOperationInProgress, "another router has ended the movement")

// useToken is the first statement. It writes the token, so that whoever takes that away
// waits for this transaction, or ends it.
func (g *guarded) useToken(run txnRun) error {
	body, err := run(InternalDB, bson.D{
		{Key: "update", Value: movesColl},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: g.token},
			{Key: "u", Value: bson.D{
				{Key: "$inc", Value: bson.D{{Key: "writes", Value: int64(1)}}},
				{Key: "$set", Value: bson.D{{Key: "until", Value: time.Now().Add(moveRecordLifetime)}}},
			}},
		}}},
	})
	if err != nil {
		return err
	}
	if n, _ := bson.Raw(body).Lookup("n").AsInt64OK(); n != 1 {
		return errTokenGone
	}
	return nil
}

// nobodys is a session without a client.
func nobodys(id uuid.UUID) bson.D {
	return bson.D{{Key: "id", Value: binaryUUID(id)}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}}
}
