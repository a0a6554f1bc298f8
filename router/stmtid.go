package router

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// readStmtIDs reads the client's statement ids. It refuses those that are not one
// number for each of n statements, all different: a mongod that gets an insert with
// one id twice ends with a fatal assertion (40526), so one client could take every
// shard down.
func readStmtIDs(op *Op, n int) error {
	list, has := op.Cmd.Arg(wire.ArgStmtIDs)
	first, hasFirst := op.Cmd.Arg(wire.ArgStmtID)
	has, hasFirst = has && !list.IsNull(), hasFirst && !first.IsNull()
	switch {
	case has && hasFirst:
		return mongoerr.New(mongoerr.InvalidOptions, "May not specify both stmtId and stmtIds in write command")
	case hasFirst:
		id, err := stmtID(op, "stmtId", first)
		if err == nil && int64(id)+int64(n) > math.MaxInt32 {
			err = mongoerr.Newf(mongoerr.BadValue, "stmtId %d leaves no room for %d statements", id, n)
		}
		op.stmtID = id
		return err
	case has:
		return readStmtIDList(op, list, n)
	}
	return nil
}

func readStmtIDList(op *Op, list wire.Elem, n int) error {
	if list.Type != bson.TypeArray {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.stmtIds' is the wrong type '%s', expected type 'array'", op.Cmd.First.Name, TypeName(list.Type))
	}
	seen := make(map[int32]struct{}, n)
	ids := make([]int32, 0, n)
	it := wire.Doc(list.Value).Iter()
	var e wire.Elem
	for it.Next(&e) {
		id, err := stmtID(op, "stmtIds", e)
		if err != nil {
			return err
		}
		if _, twice := seen[id]; twice {
			return mongoerr.Newf(mongoerr.BadValue, "statement id %d is used twice in one write command", id)
		}
		seen[id] = struct{}{}
		ids = append(ids, id)
	}
	if err := it.Err(); err != nil {
		return mongoerr.New(mongoerr.InvalidBSON, "invalid BSON in stmtIds")
	}
	if len(ids) != n {
		return mongoerr.Newf(mongoerr.InvalidLength, "Number of statement ids must match the number of batch entries. Got %d statement ids but %d operations.", len(ids), n)
	}
	op.stmtIDs = ids
	return nil
}

func stmtID(op *Op, field string, e wire.Elem) (int32, error) {
	if e.Type != bson.TypeInt32 {
		return 0, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'int'", op.Cmd.First.Name, field, TypeName(e.Type))
	}
	id, _ := e.Int64()
	if id < 0 {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s.%s' value must be >= 0, actual value '%d'", op.Cmd.First.Name, field, id)
	}
	return int32(id), nil
}
