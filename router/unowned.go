package router

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/router/owned"
	"github.com/shardgate/shardgate/wire"
)

// A shard may have documents that it does not own: copies that a movement brings, and what
// one has left behind (PROTOCOL.md F14). Whatever looks at documents there without naming
// their whole shard key carries a condition that leaves them out. Almost always there are
// none, and then nothing here costs anything.

// leaveOut is the condition by which a shard leaves out what it does not own, nil where it
// has no such thing.
func (e *Entry) leaveOut(shard string) (*owned.Predicate, error) {
	ranges := e.Unowned(shard)
	if len(ranges) == 0 {
		return nil, nil
	}
	p, err := owned.NotIn(e.Table.Pattern(), ranges)
	return &p, err
}

// hasUnowned reports whether a shard may have documents that it does not own.
func (e *Entry) hasUnowned(shard string) bool { return len(e.Unowned(shard)) > 0 }

// narrow is a filter as a shard is to get it: what it does not own does not match.
func (e *Entry) narrow(filter []byte, shard string) ([]byte, error) {
	cond, err := e.leaveOut(shard)
	if cond == nil || err != nil {
		return filter, err
	}
	return narrowed(filter, cond), nil
}

// narrowed is a filter with one more condition.
func narrowed(filter []byte, cond *owned.Predicate) []byte {
	at, b := wire.AppendDocStart(make([]byte, 0, len(filter)+512))
	b = append(b, filter[4:len(filter)-1]...)
	return wire.AppendDocEnd(cond.AppendTo(b), at)
}

// leavesOut reports whether the command may meet documents that their shard does not own.
func (s *scope) leavesOut() bool { return !s.exact && s.entry != nil && len(s.entry.unowned) > 0 }

// patches is what a command gets on its way to each of its shards.
type patches struct {
	all *patch
	by  []*patch // by the shard's index; nil: all get the same
}

func (p *patches) at(i int) *patch {
	if p.by == nil {
		return p.all
	}
	return p.by[i]
}

// narrow makes the patches of a command whose filter is in a field.
func (s *scope) narrow(p *patch, field string, filter []byte) (patches, error) {
	return s.adapt(p, func(own *patch, cond *owned.Predicate) {
		own.skip = append(own.skip, field)
		own.extra = bsoncore.AppendDocumentElement(own.extra, field, narrowed(filter, cond))
	})
}

// adapt makes the patches of a command, those for shards that have to leave something out
// as fit makes them.
func (s *scope) adapt(p *patch, fit func(own *patch, cond *owned.Predicate)) (patches, error) {
	list := patches{all: p}
	if !s.leavesOut() {
		return list, nil
	}
	list.by = make([]*patch, len(s.shards))
	for i, shard := range s.shards {
		cond, err := s.entry.leaveOut(shard)
		if err != nil {
			return list, err
		}
		list.by[i] = p
		if cond != nil {
			own := *p
			own.skip, own.extra = slices.Clip(p.skip), slices.Clip(p.extra)
			fit(&own, cond)
			list.by[i] = &own
		}
	}
	return list, nil
}

// narrowStages is the beginning of a pipeline as a shard is to get it. What reports on the
// collection and not on documents stays as it is.
func narrowStages(stages []wire.Doc, cond *owned.Predicate) []wire.Doc {
	if cond == nil {
		return stages
	}
	name, spec, isDoc := "", wire.Doc(nil), false
	if len(stages) > 0 {
		first, _ := stages[0].First()
		name = string(first.Name)
		spec, isDoc = first.Doc()
	}
	switch {
	case isReport(name), name == "$changeStream":
		return stages
	case name == "$match" && isDoc: // $text must stand in the first stage
		return replaceFirst(stages, stageDoc("$match", narrowed(spec, cond)))
	case name == "$geoNear" && isDoc: // must be the first stage
		return replaceFirst(stages, stageDoc("$geoNear", narrowQuery(spec, cond)))
	default:
		return append([]wire.Doc{stageDoc("$match", cond.Match())}, stages...)
	}
}

func replaceFirst(stages []wire.Doc, first wire.Doc) []wire.Doc {
	return append([]wire.Doc{first}, stages[1:]...)
}

// narrowQuery is a $geoNear with a condition more in its query. One that is no document stays,
// to be refused.
func narrowQuery(spec wire.Doc, cond *owned.Predicate) []byte {
	at, b := wire.AppendDocStart(nil)
	query, given := wire.Doc(emptyDoc), false
	it := spec.Iter()
	var e wire.Elem
	for it.Next(&e) {
		if string(e.Name) != "query" || given {
			b = append(b, e.Raw...)
			continue
		}
		d, ok := e.Doc()
		if !ok {
			return spec
		}
		query, given = d, true
	}
	b = bsoncore.AppendDocumentElement(b, "query", narrowed(query, cond))
	return wire.AppendDocEnd(b, at)
}

// finds are the commands by which the shards offer one document each.
func (w *single) finds() ([][]byte, error) {
	list := make([][]byte, len(w.shards))
	for i, shard := range w.shards {
		filter, err := w.entry.narrow(w.filter, shard)
		if err != nil {
			return nil, err
		}
		list[i] = w.find(filter)
	}
	return list, nil
}

// narrowStatement is an update or delete statement that leaves out what its shard does not
// own.
func narrowStatement(stmt wire.Doc, cond *owned.Predicate) []byte {
	q, _ := stmt.Lookup("q")
	d, ok := q.Doc()
	if !ok {
		return stmt
	}
	return withFilter(stmt, narrowed(d, cond))
}

// narrows reports whether a statement may meet documents that its shard does not own: one
// that upserts names the whole key (and could hold no $expr, 224).
func (b *batch) narrows(st *statement) bool {
	return !b.kind.insert && !st.exact && !isSet(st.doc, "upsert")
}
