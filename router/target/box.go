package target

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// maxBoxes limits the boxes of one filter.
	maxBoxes = 64
	// maxPoints limits the values of one $in, and the combinations of points of
	// one box. mongos goes to 4,000,000 before it gives up.
	maxPoints = 10_000
	// maxNesting limits $and and $or inside each other; mongod's limit is lower.
	maxNesting = 200
)

// box is a conjunction of conditions, by key field.
type box []fieldBox

// fieldBox is what one box says of one key field.
type fieldBox struct {
	in ranges
	// value is what the field must be equal to, if pinned: an upsert will give it
	// to the new document.
	value  bson.RawValue
	pinned bool
}

// wholeBox has no conditions.
func wholeBox(fields int) box {
	b := make(box, fields)
	for i := range b {
		b[i].in = everything()
	}
	return b
}

// empty says whether nothing can be in the box.
func (b box) empty() bool {
	for i := range b {
		if len(b[i].in) == 0 {
			return true
		}
	}
	return false
}

// both is what is in either of two boxes: the conditions of both.
func both(x, y box) box {
	out := make(box, len(x))
	for i := range out {
		out[i] = x[i].and(y[i])
	}
	return out
}

func (f fieldBox) and(g fieldBox) fieldBox {
	out := f
	if !f.pinned {
		out = g
	}
	out.in = f.in.intersect(g.in)
	return out
}

// conjunction multiplies two lists of boxes.
func conjunction(xs, ys []box) []box {
	if len(xs)*len(ys) > maxBoxes {
		if len(ys) > len(xs) {
			xs, ys = ys, xs
		}
		xs = []box{join(xs)}
	}
	if len(xs)*len(ys) > maxBoxes {
		ys = []box{join(ys)}
	}
	var out []box
	for _, x := range xs {
		for _, y := range ys {
			if b := both(x, y); !b.empty() {
				out = append(out, b)
			}
		}
	}
	return out
}

// disjunction adds boxes to a list; too many are joined.
func disjunction(xs, ys []box) []box {
	xs = append(xs, ys...)
	if len(xs) > maxBoxes {
		return []box{join(xs)}
	}
	return xs
}

// join is one box that contains all of a list, which is not empty.
func join(list []box) box {
	out := make(box, len(list[0]))
	for i := range out {
		out[i].in = list[0][i].in
		for _, b := range list[1:] {
			out[i].in = out[i].in.union(b[i].in)
		}
	}
	return out
}

// release forgets the demanded values of boxes.
func release(boxes []box) {
	for _, b := range boxes {
		for i := range b {
			b[i].pinned = false
		}
	}
}
