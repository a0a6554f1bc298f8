package router

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire"
)

// A find whose projection shows the element of an array that matched ({arr.$: 1}) takes no
// $expr in its filter (224). There the shard marks in each document whether it owns it, and the
// merge passes over the others; the shard must then give all that match, not skip+limit.

// markField is the field of the mark, which clients do not see.
const markField = "__shardgate"

// positional reports whether a projection shows matched elements of arrays.
func positional(projection wire.Doc) bool {
	it := projection.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if strings.HasSuffix(string(e.Name), ".$") {
			return true
		}
	}
	return false
}

// marks reports whether documents must be marked, as the filter cannot leave them out.
func (s *scope) marks(projection wire.Doc) bool { return s.leavesOut() && positional(projection) }

// projectionOf returns a find's projection.
func projectionOf(op *Op) wire.Doc {
	e, _ := op.Lookup("projection")
	d, ok := e.Doc()
	if !ok {
		return nil
	}
	return d
}

// mark makes the patches of a find; those for shards that must leave something out have them
// mark it. args are the options that p.extra begins with.
func (s *scope) mark(p *patch, o *findOptions, args []byte) (patches, error) {
	more := p.extra[len(args):]
	var failed error
	own, err := s.adapt(p, func(own *patch, cond *owned.Predicate) {
		with := *o
		with.limit = 0
		spec := o.projection[4 : len(o.projection)-1]
		with.projection = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(slices.Clip(spec), markField, bsoncore.Document(cond.Expr())))
		if !slices.Contains(own.skip, "projection") {
			own.skip = append(own.skip, "projection")
		}
		extra, err := scatterFindArgs(&with, &patch{})
		if err != nil {
			failed = err
			return
		}
		if len(o.order()) == 0 {
			extra = bsoncore.AppendDocumentElement(extra, "projection", bsoncore.Document(with.projection))
		}
		own.extra = append(extra, more...)
	})
	if err == nil {
		err = failed
	}
	return own, err
}

// passOver reports whether a document is marked as one that its shard does not own.
func (c *Cursor) passOver(doc wire.Doc) bool {
	if !c.marks {
		return false
	}
	e, marked := doc.Lookup(markField)
	mine, isBool := e.Bool()
	return marked && isBool && !mine
}

// appendUnmarked appends a document as the client is to see it.
func (c *Cursor) appendUnmarked(dst []byte, i int, doc wire.Doc) []byte {
	if c.marks {
		at, b := wire.AppendDocStart(make([]byte, 0, len(doc)))
		it := doc.Iter()
		var e wire.Elem
		for it.Next(&e) {
			if string(e.Name) != markField {
				b = append(b, e.Raw...)
			}
		}
		doc = wire.AppendDocEnd(b, at)
	}
	return appendArrayDoc(dst, i, doc, c.order != nil)
}

// modifiesSingly reports whether a findAndModify that needs one shard must look for its
// document first: what it shows is positional, and the shard has more than it owns.
func modifiesSingly(op *Op, e *Entry, a *aim, upsert bool) bool {
	if a.way != wayDirect || a.exact || upsert || !e.hasUnowned(a.shards[0]) {
		return false
	}
	f, _ := op.Lookup("fields")
	d, isDoc := f.Doc()
	return isDoc && positional(d)
}
