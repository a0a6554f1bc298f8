package compat

import (
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// oldID is an ObjectId that no server has made today.
func oldID(n byte) bson.ObjectID { return bson.ObjectID{0x50, 11: n} }

// decimal reads a Decimal128.
func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}

	return d
}

var (
	// missing stands for a field that is not there.
	missing = struct{}{}

	// numbers of every type, many of them equal to each other.
	numbers = []any{
		int32(1), int64(1), 1.0, decimal("1"), decimal("1.00"), int32(0), 0.0, math.Copysign(0, -1), decimal("-0"), int32(-3), int64(-3),
		2.5, decimal("2.5"), int64(7), 7.0, math.NaN(), decimal("NaN"), math.Inf(1), math.Inf(-1), int64(math.MaxInt64), 1e300, int32(2), int64(3),
	}
	// letters differ in case and accents.
	letters = []any{"a", "A", "b", "á", "B", "", "ab", "Zoë", "zoe", "e\u0301"}
	// anything has a value of every type, and some of the same type.
	anything = []any{
		int32(1), "a", nil, missing, true, false,
		bson.D{},
		bson.D{{"x", int32(1)}},
		bson.D{{"x", 1.0}, {"y", "b"}},
		bson.A{},
		bson.A{int32(1), int32(2)},
		bson.A{nil},
		bson.A{bson.D{{"x", int32(1)}}, bson.D{{"x", int32(3)}}},
		oldID(1), oldID(2), bson.NewDateTimeFromTime(time.Unix(1e9, 5e6)),
		bson.DateTime(-1),
		bson.Binary{Data: []byte{1, 2}},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.Regex{Pattern: "^a", Options: "i"},
		bson.Timestamp{T: 7, I: 1},
		bson.MinKey{},
		bson.MaxKey{},
		bson.JavaScript("x"), bson.Symbol("a"),
		bson.Undefined{},
		math.NaN(), int64(1), 1.0,
		decimal("1E+3"),
		bson.A{bson.A{int32(1)}, "a"},
		bson.CodeWithScope{Code: "x", Scope: bson.D{{"y", int32(1)}}},
		bson.DBPointer{DB: "x", Pointer: oldID(3)},
	}
	// arrays are arrays of numbers, of documents, or not arrays at all.
	arrays = []any{
		bson.A{},
		bson.A{int32(1)},
		bson.A{int32(1), int32(2), int32(3)},
		bson.A{2.0, int64(5)},
		bson.A{"a", "B"},
		missing, int32(2),
		bson.A{bson.D{{"x", int32(1)}, {"y", "a"}}, bson.D{{"x", int32(2)}}},
		bson.A{nil, int32(1)},
		bson.A{bson.A{int32(1), int32(2)}},
	}
	// scalars can be the value of a shard key's field.
	scalars = []any{
		int32(1), int64(1), 1.0, int32(2), int32(3), 4.0, int64(5), "a", "A", "é", nil, missing,
		bson.D{{"x", int32(1)}},
		true, oldID(4),
		bson.DateTime(5), 2.5, decimal("3"), int32(6), math.NaN(),
	}
	// ids are values of _id, no two of them equal by any collation.
	ids = []any{
		int32(0), int32(1), int64(2), 3.0, int32(4), int32(5), int32(6), int32(7), int32(8), int32(9), int32(10), int32(11), decimal("12"), 13.5,
		"a", "q", "id", oldID(1), oldID(2),
		bson.D{{"x", int32(1)}},
		bson.D{{"x", int32(2)}},
		bson.DateTime(0), true,
		bson.Binary{Data: []byte{9}},
		int32(20), int32(21), int32(22), int32(23), int32(24), int32(25), int32(26), int32(27), int32(28), int32(29), int32(30), int32(31), int32(32),
	}
)

// dataset is what every collection holds when a case begins. Every shape's key is in it, with values on all shards.
var dataset = func() []bson.D {
	var docs []bson.D

	for i, id := range ids {
		d := bson.D{{"_id", id}}
		add := func(name string, v any) {
			if v != missing {
				d = append(d, bson.E{Key: name, Value: v})
			}
		}

		add("k", scalars[i%len(scalars)])

		if e := scalars[(i*3)%len(scalars)]; e != missing {
			add("d", bson.D{{"e", e}, {"f", int32(i)}})
		}

		add("r", []any{int32(i % 13), float64(i % 13), int64(i % 13), "b", "x", nil, missing, bson.D{{"x", int32(1)}}}[[]int{0, 0, 1, 2, 0, 3, 0, 4, 5, 0, 6, 7}[i%12]])
		add("a", int32(i%6))
		add("b", scalars[(i*7)%len(scalars)])
		add("n", numbers[i%len(numbers)])
		add("s", letters[i%len(letters)])
		add("v", anything[i%len(anything)])
		add("arr", arrays[i%len(arrays)])
		add("i", int32(i%5))
		add("t", bson.D{{"u", bson.D{{"w", int32(i % 4)}}}, {"p", letters[(i*3)%len(letters)]}})

		if i%7 != 3 { // no two at the same place
			add("g", bson.D{{"type", "Point"}, {"coordinates", bson.A{float64(i) * 1.5, float64(i*i%31) * 0.9}}})
		}

		if i == len(ids)-1 { // null finds undefined, which may be on another shard
			for _, name := range []string{"k", "r", "b"} {
				d = append(without(d, name), bson.E{Key: name, Value: bson.Undefined{}})
			}

			d = append(without(d, "d"), bson.E{Key: "d", Value: bson.D{{"e", bson.Undefined{}}}})
		}

		docs = append(docs, d)
	}

	return docs
}()
