package commands

import (
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/router"
	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// anyNamespace reads an argument of the form "db.coll".
func (req *request) anyNamespace() (string, error) {
	ns, ok := req.Cmd.First.Str()
	if !ok {
		return "", mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type 'string'", req.row.Name, router.TypeName(req.Cmd.First.Type))
	}
	db, coll := catalog.SplitNS(ns)
	if coll == "" || len(ns) > 255 || coll[0] == '.' || strings.ContainsRune(ns, 0) || !utf8.ValidString(ns) || router.CheckDB([]byte(db)) != nil {
		return "", mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return ns, nil
}

// chunkArgs are find, middle and bounds, as several commands have them. What is empty is
// as good as not given.
type chunkArgs struct {
	find, middle bson.Raw
	bounds       []bson.Raw // nil where there are none
}

// chunkArgs reads the arguments. Old commands refuse what is of another type without a
// code, so a mongos's clients see none.
func (req *request) chunkArgs(middle bool) (a chunkArgs, err error) {
	if a.find, err = req.docArg("find"); err != nil {
		return a, err
	}
	if middle {
		if a.middle, err = req.docArg("middle"); err != nil {
			return a, err
		}
	}
	e, ok := req.Lookup("bounds")
	if !ok || e.IsNull() {
		return a, nil
	}
	if e.Type != bson.TypeArray {
		return a, badArg("bounds", "array", e)
	}
	it := wire.Doc(e.Value).Iter()
	var b wire.Elem
	for it.Next(&b) {
		d, ok := b.Doc()
		if !ok {
			return a, badArg("bounds", "array of objects", b)
		}
		a.bounds = append(a.bounds, bson.Raw(d))
	}
	return a, it.Err()
}

// docArg reads an argument that is a document; nil for none and for an empty one.
func (req *request) docArg(name string) (bson.Raw, error) {
	e, ok := req.Lookup(name)
	if !ok || e.IsNull() {
		return nil, nil //nolint:nilnil // none was given
	}
	d, ok := e.Doc()
	if !ok {
		return nil, badArg(name, "object", e)
	}
	if _, some := d.First(); !some {
		return nil, nil //nolint:nilnil // none was given
	}
	return bson.Raw(d), nil
}

func badArg(name, want string, e wire.Elem) error {
	return mongoerr.Newf(0, "wrong type for '%s' field, expected %s, found %s", name, want, router.TypeName(e.Type))
}

// stringArg reads an argument that is a string and must be there.
func (req *request) stringArg(name string) (string, error) {
	e, ok := req.Lookup(name)
	if !ok {
		return "", mongoerr.Newf(40414, "BSON field '%s.%s' is missing but a required field", req.row.Name, name)
	}
	s, ok := e.Str()
	if !ok {
		return "", mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type 'string'", req.row.Name, name, router.TypeName(e.Type))
	}
	return s, nil
}
