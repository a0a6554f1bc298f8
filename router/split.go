package router

import (
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire"
)

// split is a pipeline in two: what every shard runs on its documents, and what runs
// once on all they give, merged by order, after skip and up to limit.
type split struct {
	shard  []wire.Doc
	merger []wire.Doc
	// partial: the shard half ends in a $group whose results are partial ones, in the
	// form that a mongod of the same version merges.
	partial bool

	order []bool // per field of the sort key whether it descends; nil: as they come
	skip  int64
	limit int64 // -1: none
}

// perDocument reports whether a stage looks at one document at a time, so that it may
// run on the shards. oneToOne ones keep the number of documents, too.
func perDocument(stage string) (yes, oneToOne bool) {
	switch stage {
	case "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith":
		return true, true
	case "$match", "$redact", "$unwind":
		return true, false
	}
	return false, false
}

// needsShard reports whether a first stage reads a collection in a way that cannot be
// split here yet.
func needsShard(stage string) bool {
	switch stage {
	case "$search", "$searchMeta", "$vectorSearch", "$changeStream", "$currentOp", "$listSessions":
		return true
	}
	return false
}

// splitPipeline divides at the first stage that needs all documents. A sort is run by
// the shards and merged; a $group is run on both sides.
func splitPipeline(stages []wire.Doc) split {
	n := 0
	for ; n < len(stages); n++ {
		e, _ := stages[n].First()
		if yes, _ := perDocument(string(e.Name)); !yes {
			break
		}
	}
	s := split{shard: stages[:n:n], merger: stages[n:], limit: -1}
	if n == len(stages) {
		return s
	}
	if group, after := asGroup(stages[n]); group != nil {
		if merging, ok := mergingGroup(group); ok {
			s.shard = append(s.shard, group)
			s.merger = append(append([]wire.Doc{merging}, after...), stages[n+1:]...)
			s.partial = true
		}
		return s
	}
	if order := s.ordered(stages[n]); order != nil {
		s.merger = s.merger[1:]
	}
	s.shareWindow()
	return s
}

// ordered gives the shards a stage that orders, and returns by what their results are
// merged; nil for another stage.
func (s *split) ordered(stage wire.Doc) []bool {
	e, _ := stage.First()
	spec, _ := e.Doc()
	switch string(e.Name) {
	case "$sort":
		s.order = sortOrder(spec)
	case "$sample":
		size, ok := spec.Lookup("size")
		n, num := size.Int64()
		if !ok || !num || n <= 0 {
			return nil // refused by the merging side
		}
		s.order, s.limit = []bool{true}, n // the sort key is a random number
	case "$geoNear":
		field, ok := spec.Lookup("distanceField")
		name, str := field.Str()
		if !ok || !str {
			return nil
		}
		s.order = []bool{false}
		s.shard = append(s.shard, stage)
		stage = stageDoc("$sort", bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, name, 1)))
	}
	if len(s.order) > 0 {
		s.shard = append(s.shard, stage)
	}
	return s.order
}

// shareWindow takes $skip and $limit for the merge, with what may as well run before it on
// the shards, which need not give more than skip and limit together.
func (s *split) shareWindow() {
	window := -1 // where in the shard half it is
	for ; len(s.merger) > 0; s.merger = s.merger[1:] {
		stage := s.merger[0]
		e, _ := stage.First()
		n, isNum := e.Int64()
		switch yes, oneToOne := perDocument(string(e.Name)); {
		case oneToOne, yes && window < 0 && s.limit < 0:
			s.shard = append(s.shard, stage)
			continue
		case isNum && n > 0 && string(e.Name) == "$limit":
			if s.limit < 0 || n < s.limit {
				s.limit = n
			}
		case isNum && n >= 0 && string(e.Name) == "$skip" && s.skip <= math.MaxInt64-n:
			s.skip += n
			if s.limit >= 0 {
				s.limit = max(s.limit-n, 0)
			}
		default:
			s.limitShards(window)
			return
		}
		if window < 0 {
			window = len(s.shard)
		}
	}
	s.limitShards(window)
}

// limitShards puts the shards' own limit at an index of their half.
func (s *split) limitShards(at int) {
	if at < 0 || s.limit <= 0 || s.skip > math.MaxInt64-s.limit {
		return
	}
	limit := wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendInt64Element(nil, "$limit", s.skip+s.limit)))
	s.shard = slices.Insert(slices.Clip(s.shard), at, limit)
}

// asGroup writes $count and $sortByCount as the $group and what follows it that they
// stand for.
func asGroup(stage wire.Doc) (group wire.Doc, after []wire.Doc) {
	e, _ := stage.First()
	switch string(e.Name) {
	case "$group":
		return stage, nil
	case "$count":
		name, ok := e.Str()
		if !ok || name == "" || name[0] == '$' || name == "_id" || strings.Contains(name, ".") {
			return nil, nil // refused by the merging side
		}
		one := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "$sum", 1))
		spec := bsoncore.AppendNullElement(nil, "_id")
		spec = bsoncore.AppendDocumentElement(spec, name, one)
		hide := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 0))
		return stageDoc("$group", bsoncore.BuildDocument(nil, spec)), []wire.Doc{stageDoc("$project", hide)}
	case "$sortByCount":
		one := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "$sum", 1))
		spec := append(bsoncore.AppendHeader(nil, bsoncore.Type(e.Type), "_id"), e.Value...)
		spec = bsoncore.AppendDocumentElement(spec, "count", one)
		sort := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "count", -1))
		return stageDoc("$group", bsoncore.BuildDocument(nil, spec)), []wire.Doc{stageDoc("$sort", sort)}
	}
	return nil, nil
}

func stageDoc(name string, spec []byte) wire.Doc {
	return wire.Doc(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, name, spec)))
}

// mergesPartial reports whether an accumulator's partial results are known to merge
// through its plain form (run on mongod 6.0.5); with another one in it, a $group runs
// at the merger whole.
func mergesPartial(op string) bool {
	switch op {
	case "$sum", "$avg", "$min", "$max", "$addToSet", "$stdDevPop", "$stdDevSamp":
		return true
	}
	return false
}

// mergingGroup makes the $group that merges partial results: every accumulator reads
// its own field of them (MONGOD.md "Merging").
func mergingGroup(group wire.Doc) (wire.Doc, bool) {
	e, _ := group.First()
	spec, ok := e.Doc()
	if !ok {
		return nil, false
	}
	out := bsoncore.AppendStringElement(nil, "_id", "$$ROOT._id")
	it := spec.Iter()
	var f wire.Elem
	for it.Next(&f) {
		if string(f.Name) == "_id" {
			continue
		}
		acc, ok := f.Doc()
		if !ok {
			return nil, false
		}
		op, ok := acc.First()
		if !ok {
			return nil, false
		}
		if !mergesPartial(string(op.Name)) {
			return nil, false
		}
		arg := bsoncore.AppendStringElement(nil, string(op.Name), "$$ROOT."+string(f.Name))
		out = bsoncore.AppendDocumentElement(out, string(f.Name), bsoncore.BuildDocument(nil, arg))
	}
	if it.Err() != nil {
		return nil, false
	}
	out = bsoncore.AppendBooleanElement(out, "$doingMerge", true)
	return stageDoc("$group", bsoncore.BuildDocument(nil, out)), true
}
