package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// usersInfo lists the cluster's users: there are none, as nobody can make one yet. What
// is asked is checked as it will be when there are.
func usersInfo(ctx context.Context, req *request) error {
	var filter []wire.Doc
	details := false
	it := req.Cmd.Body.Iter()
	var e wire.Elem
	for first := true; it.Next(&e); first = false {
		name := string(e.Name)
		on, isBool := e.Bool()
		switch {
		case first || isGeneric(name) || e.IsNull():
		case name == "showCredentials", name == "showPrivileges", name == "showAuthenticationRestrictions", name == "showCustomData":
			if !isBool {
				return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'usersInfo.%s' is the wrong type '%s', expected types '[bool, long, int, decimal, double']", name, router.TypeName(e.Type))
			}
			details = details || on && (name == "showPrivileges" || name == "showAuthenticationRestrictions")
		case name == "filter":
			if e.Type != bson.TypeEmbeddedDocument {
				return wrongFieldType("usersInfo."+name, e, "object")
			}
			filter = append(filter, matchStage(e))
		default:
			return mongoerr.Newf(40415, "BSON field 'usersInfo.%s' is an unknown field.", name)
		}
	}
	exact, err := checkUserNames(req.Cmd.First, details)
	if err != nil {
		return err
	}
	if details && !exact {
		return mongoerr.New(mongoerr.IllegalOperation, "Privilege or restriction details require exact-match usersInfo queries")
	}
	if len(filter) > 0 {
		if _, err := req.h.router.VirtualDocs(ctx, req.Op, nil, filter, nil); err != nil {
			return err
		}
	}
	return req.document(bson.D{{Key: "users", Value: bson.A{}}})
}

// checkUserNames checks whom usersInfo is asked for; exact: users by name. An empty list of
// them is taken where details are asked for, as each is then looked up by itself.
func checkUserNames(e wire.Elem, details bool) (exact bool, err error) {
	switch e.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		if n, _ := e.Int64(); n == 1 {
			return false, nil
		}
		return false, notUserName()
	case bson.TypeArray:
		it := wire.Doc(e.Value).Iter()
		var u wire.Elem
		n := 0
		for ; it.Next(&u); n++ {
			if err := checkUserName(u); err != nil {
				return true, err
			}
		}
		if n == 0 && !details {
			return true, mongoerr.New(mongoerr.BadValue, "$and/$or/$nor must be a nonempty array")
		}
		return true, it.Err()
	}
	if d, ok := e.Doc(); ok && flagOf(d, "forAllDBs") {
		return false, nil
	}
	return true, checkUserName(e)
}

// notUserName refuses what is no user's name.
func notUserName() error {
	return mongoerr.New(mongoerr.BadValue, "UserName must be either a string or an object")
}

func checkUserName(e wire.Elem) error {
	if _, ok := e.Str(); ok {
		return nil
	}
	d, ok := e.Doc()
	if !ok || e.Type != bson.TypeEmbeddedDocument {
		return notUserName()
	}
	it := d.Iter()
	var f wire.Elem
	for it.Next(&f) {
		switch name := string(f.Name); name {
		case "user", "db":
			if _, ok := f.Str(); !ok {
				return mongoerr.Newf(mongoerr.BadValue, "UserName must contain a string field named: %s. But, has type %s", name, router.TypeName(f.Type))
			}
		default:
			return mongoerr.Newf(mongoerr.BadValue, "UserName contains an unknown field named: '%s", name)
		}
	}
	for _, name := range []string{"user", "db"} {
		if _, ok := d.Lookup(name); !ok {
			return mongoerr.Newf(mongoerr.BadValue, "UserName must contain a field named: %s", name)
		}
	}
	return it.Err()
}
