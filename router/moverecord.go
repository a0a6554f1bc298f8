package router

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router/movement"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// movesColl is the collection of InternalDB in which shards keep a movement's outcome, and
// a recipient the token without which nothing is copied to it.
const movesColl = "movements"

// moveRecordLifetime is how long records are kept; nobody asks for them when the row in
// the catalog is gone.
const moveRecordLifetime = 7 * 24 * time.Hour

func outcomeName(o movement.Outcome) string {
	if o == movement.OutcomeSwitched {
		return "switched"
	}
	return "undone"
}

// decide records an outcome on the donor, if none is on record yet, and returns the one
// that is. While the donor is away the recipient may know of a switch.
func (m *mover) decide(ctx context.Context, want movement.Outcome) (movement.Outcome, error) {
	out, err := m.decideAt(ctx, want)
	if err != nil && isUnreachable(err) && want == movement.OutcomeUndone {
		for _, shard := range m.recipients() {
			found, ferr := m.recordedAt(ctx, shard)
			if ferr == nil && found == outcomeName(movement.OutcomeSwitched) {
				return movement.OutcomeSwitched, nil
			}
		}
	}
	return out, err
}

func (m *mover) decideAt(ctx context.Context, want movement.Outcome) (movement.Outcome, error) {
	for {
		body, err := m.ask(ctx, m.row.From, InternalDB, bson.D{
			{Key: "findAndModify", Value: movesColl},
			{Key: "query", Value: bson.D{{Key: "_id", Value: m.donorID()}}},
			{Key: "update", Value: bson.D{
				{Key: "$setOnInsert", Value: bson.D{
					{Key: "ns", Value: m.row.NS},
					{Key: "from", Value: m.row.From},
					{Key: "to", Value: m.row.To},
					{Key: "outcome", Value: outcomeName(want)},
				}},
				// Whoever still asks still needs it.
				{Key: "$set", Value: bson.D{{Key: "until", Value: time.Now().Add(moveRecordLifetime)}}},
			}},
			{Key: "upsert", Value: true},
			{Key: "new", Value: true},
			{Key: "writeConcern", Value: majorityWrites},
		})
		if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
			continue
		}
		if err != nil {
			return movement.OutcomeNone, err
		}
		// That it was there already needs a majority as well.
		if err := m.r.settle(ctx, m.row.From); err != nil {
			return movement.OutcomeNone, err
		}
		out, _ := bson.Raw(body).Lookup("value", "outcome").StringValueOK()
		if out == outcomeName(movement.OutcomeSwitched) {
			return movement.OutcomeSwitched, nil
		}
		return movement.OutcomeUndone, nil
	}
}

// donors lists the shards that have what moves, until the switch.
func (m *mover) donors() []string {
	if e := m.entry(); m.row.Layout != nil && e != nil {
		return e.Table.Shards()
	}
	return []string{m.row.From}
}

// recipients lists the shards that get it.
func (m *mover) recipients() []string {
	if m.row.Layout != nil {
		return m.row.Layout.Shards()
	}
	return []string{m.row.To}
}

// donorID and tokenID name the movement's documents. They differ, as a shard may be the
// donor of one movement and the recipient of another, but not of one and the same.
func (m *mover) donorID() string { return m.row.ID.String() }
func (m *mover) tokenID() string { return tokenOf(&m.row) }

func tokenOf(m *catalog.Movement) string { return m.ID.String() + " token" }

// recordedAt returns the outcome that the recipient has on record, "" for none.
func (m *mover) recordedAt(ctx context.Context, shard string) (out string, err error) {
	err = m.r.drain(ctx, shard, InternalDB, bson.D{
		{Key: "find", Value: movesColl},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: m.tokenID()}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}, func(doc bson.Raw) error {
		out, _ = doc.Lookup("outcome").StringValueOK()
		return nil
	})
	return out, err
}

// isDisturbed reports whether others have deleted copies that were in their way.
func (m *mover) isDisturbed(ctx context.Context) (is bool, err error) {
	err = m.r.drain(ctx, m.row.To, InternalDB, bson.D{
		{Key: "find", Value: movesColl}, {Key: "filter", Value: bson.D{{Key: "_id", Value: m.tokenID()}}},
	}, func(doc bson.Raw) error {
		is, _ = doc.Lookup("disturbed").BooleanOK()
		return nil
	})
	return is, err
}

// openAt puts the token that every write of the copy needs on a recipient, if it was not
// taken away already: one that wakes late does not make it again.
func (m *mover) openAt(ctx context.Context, shard string) error {
	if err := m.r.prepareInternal(ctx, shard); err != nil {
		return err
	}
	_, err := m.noteUnless(ctx, shard, m.tokenID(), "outcome", bson.D{{Key: "open", Value: true}})
	return err
}

// closeAt takes a recipient's token away, with the outcome in its place: from now on no copy
// is written by this movement, whoever was paused in it (PROTOCOL.md F5). It returns the
// recipient's time.
func (m *mover) closeAt(ctx context.Context, shard string, out movement.Outcome) (catalog.Timestamp, error) {
	m.killWriter(ctx, shard)
	set := bson.D{{Key: "open", Value: false}, {Key: "outcome", Value: outcomeName(out)}}
	if out == movement.OutcomeSwitched {
		set = append(set, sweepsEnded()...)
	}
	body, err := m.note(ctx, shard, m.tokenID(), set)
	if err != nil {
		return 0, err
	}
	info, err := wire.Inspect(body)
	return catalog.Timestamp(info.OperationTime), err
}

// note sets fields of a document of the movement on a shard. It writes in any case, so that
// what needs the document as it was comes before or not at all.
func (m *mover) note(ctx context.Context, shard, document string, set bson.D) (wire.Doc, error) {
	return m.noteWhere(ctx, shard, bson.D{{Key: "_id", Value: document}}, set)
}

// noteUnless is note where a field is not there yet; else it is errTokenGone.
func (m *mover) noteUnless(ctx context.Context, shard, document, field string, set bson.D) (wire.Doc, error) {
	query := bson.D{{Key: "_id", Value: document}, {Key: field, Value: bson.D{{Key: "$exists", Value: false}}}}
	body, err := m.noteWhere(ctx, shard, query, set)
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		err = errTokenGone
	}
	return body, err
}

func (m *mover) noteWhere(ctx context.Context, shard string, query, set bson.D) (wire.Doc, error) {
	set = append(set[:len(set):len(set)], bson.E{Key: "until", Value: time.Now().Add(moveRecordLifetime)})
	return m.ask(ctx, shard, InternalDB, bson.D{
		{Key: "findAndModify", Value: movesColl},
		{Key: "query", Value: query},
		{Key: "update", Value: bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "writes", Value: int64(1)}}}}},
		{Key: "upsert", Value: true},
		{Key: "writeConcern", Value: majorityWrites},
	})
}

// killWriter ends what a dead router has left open in the movement's session.
func (m *mover) killWriter(ctx context.Context, shard string) {
	_, err := m.ask(ctx, shard, "admin", bson.D{{Key: "killSessions", Value: bson.A{nobodys(m.row.ID)}}})
	if err != nil {
		m.r.log.Debug().Err(err).Str("shard", shard).Msg("kill a movement's session")
	}
}

// dropCopy drops the collection on a shard that does not own it.
func (m *mover) dropCopy(ctx context.Context, shard string) error {
	if e := m.entry(); e != nil && e.Table != nil {
		for _, owner := range e.Table.Shards() {
			if owner == shard {
				return mongoerr.Newf(mongoerr.InternalError, "shard %s owns %s: its copy is not dropped", shard, m.row.NS)
			}
		}
	}
	// An applyOps that made it may still be on its way.
	if err := m.certain(ctx, shard, m.r.dropGuard(ctx, shard, m.row.NS)); err != nil {
		return err
	}
	found, err := m.r.find(ctx, shard, m.row.NS)
	if err != nil {
		return err
	}
	if found == nil || found.uuid() != m.row.Collection {
		return m.r.settle(ctx, shard) // another one may be there, of another life of the name
	}
	return m.certain(ctx, shard, m.r.dropAt(ctx, shard, m.row.NS, m.row.Collection))
}

// lostOf returns what a failed command may have left running on its shard.
func lostOf(shard string, err error) (lostWrite, bool) {
	var be *backend.Error
	if !errors.As(err, &be) || be.SafeToRetry() {
		return lostWrite{}, false
	}
	return lostWrite{shard: shard, conns: []string{be.Conn}}, true
}

func binaryUUID(id uuid.UUID) bson.Binary { return bson.Binary{Subtype: 4, Data: id[:]} }
