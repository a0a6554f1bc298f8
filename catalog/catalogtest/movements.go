package catalogtest

import (
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
)

func movement(n byte, ns string) catalog.Movement {
	return catalog.Movement{
		ID: uuid.UUID{n}, NS: ns, Collection: uuid.NewSHA1(uuid.Nil, []byte(ns)), From: "s0", To: "s1",
		State: catalog.MovementCopying, Since: time.UnixMilli(1700000000123).UTC(),
	}
}

func testMovements(f *fixture) {
	v := f.cluster()
	a, b := movement(1, "db.a"), movement(2, "db.b")
	b.Range = &catalog.Range{Min: doc("x", int32(0)), Max: doc("x", int32(9)), MinKey: []byte{}, MaxKey: []byte{9}}
	// A movement outlives its collection: the donor's copy is dropped by it.
	v1 := f.apply(catalog.Change{Put: []catalog.CollectionChunks{unsharded("db.a", "s0")}, Movements: []catalog.Movement{b, a}})
	f.Equal([]catalog.Movement{a, b}, f.load(v).Movements)
	f.Equal([]catalog.Movement{a, b}, f.load(0).Movements)
	f.Empty(f.load(v1).Movements)

	a.State, a.At = catalog.MovementSwitched, 0x8000_0000_0000_0002
	v2 := f.apply(catalog.Change{Movements: []catalog.Movement{a}})
	f.Equal([]catalog.Movement{a}, f.load(v1).Movements)

	f.apply(catalog.Change{Drop: []string{"db.a"}, DropMovements: []uuid.UUID{b.ID, {9}}})
	d := f.load(v2)
	f.Equal([]string{b.ID.String()}, d.MovementsGone)
	f.Empty(d.Movements)
	f.Equal([]catalog.Movement{a}, f.load(0).Movements)

	f.apply(catalog.Change{Movements: []catalog.Movement{b}})
	f.Empty(f.load(v2).MovementsGone)

	// One that reshards keeps its layout, and may stay on one shard.
	r := movement(3, "db.r")
	r.To = r.From
	r.Layout = &catalog.Layout{UUID: uuid.UUID{7}, Key: doc("x", int32(1)), Chunks: []catalog.Chunk{
		{ID: bson.ObjectID{1}, Min: doc("x", bson.MinKey{}), Max: doc("x", int32(5)), MinKey: []byte{}, MaxKey: []byte{5}, Shard: "s1"},
		{ID: bson.ObjectID{2}, Min: doc("x", int32(5)), Max: doc("x", bson.MaxKey{}), MinKey: []byte{5}, MaxKey: []byte{9}, Shard: "s0"},
	}}
	v3 := f.apply(catalog.Change{Movements: []catalog.Movement{r}})
	f.Equal([]catalog.Movement{r}, f.load(v3-1).Movements)
	f.Equal([]string{"s0", "s1"}, r.Layout.Shards())
	r.Layout = nil
	r.To = "s1"
	f.apply(catalog.Change{Movements: []catalog.Movement{r}})
	f.Equal([]catalog.Movement{r}, f.load(v3).Movements)

	c := unsharded("db.a", "s1")
	c.State = catalog.StateHeld
	c.Version = f.apply(catalog.Change{Put: []catalog.CollectionChunks{c}})
	f.Equal([]catalog.CollectionChunks{c}, f.whole(f.load(c.Version-1)))
}

func testMovementsRefused(f *fixture) {
	f.cluster()
	refuse := func(want error, edit func(*catalog.Movement)) {
		f.t.Helper()
		m := movement(1, "db.a")
		edit(&m)
		f.refused(want, catalog.Change{Movements: []catalog.Movement{m}})
	}
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) { m.ID = uuid.Nil })
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) { m.NS = "db" })
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) { m.State = "" })
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) { m.To = m.From })
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) { m.Range = &catalog.Range{} })
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) {
		m.Range = &catalog.Range{Min: doc("x", int32(0)), Max: doc("x", int32(9)), MinKey: []byte{2}, MaxKey: []byte{2}}
	})
	refuse(catalog.ErrInvalid, func(m *catalog.Movement) { m.Layout = &catalog.Layout{UUID: uuid.UUID{7}} })
	refuse(catalog.ErrConflict, func(m *catalog.Movement) { m.To = "s9" })
	f.apply(catalog.Change{Movements: []catalog.Movement{movement(1, "db.a")}})
	f.refused(catalog.ErrConflict, catalog.Change{DropShards: []string{"s1"}})
}
