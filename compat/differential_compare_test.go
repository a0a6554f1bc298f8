package compat

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// answer is what one side answered: a cursor is read to its end.
type answer struct {
	reply  bson.D // without what two servers never have in common, and without the cursor's documents
	cursor bool
	docs   []bson.Raw // the cursor's
	first  int        // how many of them came in the first batch
	keys   []string   // the judge's sort keys of docs, where the command has a sort that is not total
}

// call is one command on one shape, with both answers.
type call struct {
	shape         *shape
	name          string
	cmd           bson.D // with the shape's collection
	loose         bool
	router, judge *answer
	notYet        string // why shardgate answers 238
	diff          string // "": the same
	expected      string // the name of the entry that explains a difference
}

// parse reads a command in extended JSON.
func parse(t testing.TB, text string) bson.D {
	t.Helper()

	var d bson.D
	require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &d), "%s", text)
	require.NotEmpty(t, d)

	return d
}

// get returns a field's value.
func get(d bson.D, name string) any {
	for _, e := range d {
		if e.Key == name {
			return e.Value
		}
	}

	return nil
}

// without returns a document without some fields.
func without(d bson.D, names ...string) bson.D {
	return slices.DeleteFunc(slices.Clone(d), func(e bson.E) bool { return slices.Contains(names, e.Key) })
}

// code of an answer, 0 if it is no error.
func (a *answer) code() int {
	n, _ := get(a.reply, "code").(int32)
	return int(n)
}

// ask runs a command on one side and reads its cursor to the end.
func (c *call) ask(t testing.TB, conn *rawConn) *answer {
	t.Helper()

	reply := conn.run(c.cmd)
	a := &answer{}
	require.NoError(t, bson.Unmarshal(reply, &a.reply))
	a.reply = without(a.reply, "operationTime", "$clusterTime", "opTime", "electionId")

	docs, err := batchOf(reply)
	if err != nil {
		return a
	}

	a.cursor, a.docs, a.first = true, docs, len(docs)

	more := bson.D{{"getMore", reply.Lookup("cursor", "id").AsInt64()}, {"collection", c.cmd[0].Value}}
	if n := c.batchSize(); n != nil {
		more = append(more, bson.E{Key: "batchSize", Value: n})
	}

	more = append(more, bson.E{Key: "$db", Value: get(c.cmd, "$db")})

	for more[0].Value != int64(0) {
		next := conn.run(more)
		if next.Lookup("ok").Double() != 1 {
			a.reply = nil
			require.NoError(t, bson.Unmarshal(next, &a.reply))
			a.reply = without(a.reply, "operationTime", "$clusterTime")

			return a
		}

		docs, err := batchOf(next)
		require.NoError(t, err)

		a.docs = append(a.docs, docs...)
		more[0].Value = next.Lookup("cursor", "id").AsInt64()
	}

	for i, e := range a.reply {
		if e.Key == "cursor" {
			a.reply[i].Value = without(e.Value.(bson.D), "id", "firstBatch")
		}
	}

	return a
}

// batchSize returns the command's batch size for getMore, nil if it has none that getMore takes.
func (c *call) batchSize() any {
	size := get(c.cmd, "batchSize")
	if d, ok := get(c.cmd, "cursor").(bson.D); ok {
		size = get(d, "batchSize")
	}

	switch fmt.Sprint(size) {
	case "0", "<nil>":
		return nil
	}

	return size
}

// writes reports whether the command may change data or indexes.
func (c *call) writes() bool {
	switch c.name {
	case "insert", "update", "delete", "findAndModify", "findandmodify", "createIndexes", "dropIndexes":
		return true
	}

	return false
}

// run makes a call on both sides and compares. The router comes first: what it does not do yet is not done by the judge either.
func (p *pair) run(t testing.TB, s *shape, cmd bson.D, loose bool) *call {
	t.Helper()

	c := &call{shape: s, name: cmd[0].Key, cmd: slices.Clone(cmd), loose: loose}
	if name, _ := c.cmd[0].Value.(string); name == "c" {
		c.cmd[0].Value = s.name
	} else if strings.HasPrefix(name, "made_by") {
		c.cmd[0].Value = name + s.name
	}

	if inner, ok := c.cmd[0].Value.(bson.D); ok && len(inner) > 0 && inner[0].Value == "c" { // explain
		inner = slices.Clone(inner)
		inner[0].Value = s.name
		c.cmd[0].Value = inner
	}

	if get(c.cmd, "$db") == nil {
		c.cmd = append(c.cmd, bson.E{Key: "$db", Value: p.db})
	}

	for i, e := range c.cmd {
		if e.Key == "lsid" { // "new"
			id := uuid.New()
			c.cmd[i].Value = bson.D{{"id", bson.Binary{Subtype: 4, Data: id[:]}}}
		}
	}

	p.turn++
	router := p.routers[p.turn%len(p.routers)]
	c.router = c.ask(t, router)

	defer func() { p.tally.add(c) }()

	if c.router.has(238) {
		c.notYet = c.router.refusal()

		if c.router.code() != 238 { // other statements may have been done
			p.dirty[s.name] = true
			p.refill(t, s)
		}

		return c
	}

	c.judge = c.ask(t, p.judge)
	c.askSortKeys(t, p.judge)
	c.compare()

	if c.writes() {
		p.indexed[s.name] = p.indexed[s.name] || strings.HasSuffix(c.name, "Indexes") && c.router.code()*c.judge.code() == 0

		p.compareData(t, c)
	}

	return c
}

// compareData compares all documents after a write. After a difference both begin anew.
func (p *pair) compareData(t testing.TB, c *call) {
	t.Helper()

	p.turn++
	got, want := p.contents(t, p.routers[p.turn%len(p.routers)], c.shape), p.contents(t, p.judge, c.shape)

	after := texts(want, false)
	diff := differ(texts(got, false), after)
	p.dirty[c.shape.name] = !slices.Equal(after, p.full[c.shape.name])
	if diff != "" {
		c.diff += "the data after it:\n" + diff
	}

	if c.diff != "" {
		c.explain()
	}

	p.now[c.shape.name] = want

	if diff != "" {
		p.dirty[c.shape.name] = true
		p.refill(t, c.shape)
	}
}

// askSortKeys gets the sort keys of the documents that the judge found, where they may be given in more than one order.
func (c *call) askSortKeys(t testing.TB, judge *rawConn) {
	t.Helper()

	sort, _ := get(c.cmd, "sort").(bson.D)
	if c.name != "find" || len(sort) == 0 || total(sort) || c.judge.code() != 0 || get(c.cmd, "returnKey") != nil {
		return
	}

	projection, _ := get(c.cmd, "projection").(bson.D)
	keyed := *c
	keyed.cmd = append(without(c.cmd, "projection"), bson.E{
		Key: "projection", Value: append(slices.Clone(projection), bson.E{Key: "sortKeyOfIt", Value: bson.D{{"$meta", "sortKey"}}}),
	})

	a := keyed.ask(t, judge)
	require.Len(t, a.docs, len(c.judge.docs), "%v", a.reply)

	for _, d := range a.docs {
		c.judge.keys = append(c.judge.keys, text(bson.D{{"", d.Lookup("sortKeyOfIt")}}, true))
	}
}

// total reports whether a sort leaves no choice.
func total(sort bson.D) bool {
	return get(sort, "_id") != nil
}

// ordered reports whether the order of the cursor's documents is defined.
func (c *call) ordered() bool {
	if sort, ok := get(c.cmd, "sort").(bson.D); ok && total(sort) {
		return true
	}

	pipeline, _ := get(c.cmd, "pipeline").(bson.A)
	done, unwound := false, false

	for _, stage := range pipeline {
		d, _ := stage.(bson.D)
		if len(d) == 0 {
			return false
		}

		switch d[0].Key {
		case "$sort":
			sort, _ := d[0].Value.(bson.D)
			done = total(sort) && !unwound
		case "$unwind":
			done, unwound = false, true // several documents have one _id
		case "$group", "$sortByCount", "$sample", "$unionWith":
			done, unwound = false, false
		case "$count", "$bucket", "$bucketAuto", "$facet":
			done = true
		}
	}

	return done
}

// compare says how the answers differ.
func (c *call) compare() {
	router := c.rewrite(c.router.reply)
	if got, want := c.text(router), c.text(c.judge.reply); got != want {
		c.diff = fmt.Sprintf("shardgate: %s\nmongod:    %s\n", text(c.router.reply, false), text(c.judge.reply, false))
		c.explain()

		return
	}

	if c.router.cursor != c.judge.cursor {
		c.diff = fmt.Sprintf("a cursor: %v, mongod: %v", c.router.cursor, c.judge.cursor)
		return
	}

	got, want := texts(c.router.docs, c.loose), texts(c.judge.docs, c.loose)

	switch {
	case c.ordered():
	case c.judge.keys != nil && len(got) == len(want):
		for from := 0; from < len(want); {
			to := from + 1
			for to < len(want) && c.judge.keys[to] == c.judge.keys[from] {
				to++
			}

			slices.Sort(got[from:to])
			slices.Sort(want[from:to])
			from = to
		}
	default:
		slices.Sort(got)
		slices.Sort(want)
	}

	c.diff = differ(got, want)
	if c.diff == "" && c.batchSize() != nil && c.router.first != c.judge.first {
		c.diff = fmt.Sprintf("the first batch has %d documents, mongod's %d", c.router.first, c.judge.first)
	}

	c.explain()
}

// clientReads are the errors of which clients read the text, too: drivers (20), object mappers (11000, 85, 86), shells and their users.
var clientReads = []int{11000, 121, 20, 26, 27, 43, 48, 59, 85, 86, 166, 40324}

// uuids are in the texts of failed index builds.
var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// text is a reply in a form in which equal ones are equal.
func (c *call) text(reply bson.D) string {
	if c.name == "explain" && get(reply, "ok") == 1.0 {
		return "explained"
	}

	out := bson.D{}

	for _, e := range reply {
		switch e.Key {
		case "errmsg":
			if n, _ := get(reply, "code").(int32); !slices.Contains(clientReads, int(n)) {
				e.Value = "…"
			} else if msg, ok := e.Value.(string); ok {
				e.Value = uuids.ReplaceAllString(msg, "(a UUID)")
			}
		case "writeErrors":
			list, _ := e.Value.(bson.A)
			list = slices.Clone(list)

			for i, item := range list {
				d, _ := item.(bson.D)
				if n, _ := get(d, "code").(int32); !slices.Contains(clientReads, int(n)) {
					list[i] = without(d, "errmsg")
				}
			}

			e.Value = list
		case "values": // of distinct: mongod gives no order
			list, _ := e.Value.(bson.A)
			items := make([]string, len(list))

			for i, v := range list {
				items[i] = text(bson.D{{"", v}}, c.loose)
			}

			slices.Sort(items)
			e.Value = items
		}

		out = append(out, e)
	}

	slices.SortStableFunc(out, func(a, b bson.E) int { return strings.Compare(a.Key, b.Key) })

	return text(out, c.loose)
}

// differ compares lists line by line.
func differ(got, want []string) string {
	if slices.Equal(got, want) {
		return ""
	}

	var b strings.Builder

	fmt.Fprintf(&b, "shardgate has %d, mongod %d\n", len(got), len(want))

	for i := 0; i < max(len(got), len(want)) && b.Len() < 1500; i++ {
		switch {
		case i >= len(got):
			fmt.Fprintf(&b, "  mongod alone:    %s\n", want[i])
		case i >= len(want):
			fmt.Fprintf(&b, "  shardgate alone: %s\n", got[i])
		case got[i] != want[i]:
			fmt.Fprintf(&b, "  shardgate: %s\n  mongod:    %s\n", got[i], want[i])
		}
	}

	return b.String()
}

// texts writes documents so that they can be compared.
func texts(docs []bson.Raw, loose bool) []string {
	list := make([]string, len(docs))
	for i, d := range docs {
		list[i] = text(d, loose)
	}

	return list
}

// text writes a document as extended JSON with all its types; loose: numbers that compare equal are the same, and so are symbols and
// strings. Object ids and times
// that a server has made are all the same: those of the tests are old.
func text(doc any, loose bool) string {
	if r, ok := doc.(bson.Raw); ok {
		var d bson.D
		if err := bson.Unmarshal(r, &d); err != nil {
			return fmt.Sprintf("broken BSON %x: %v", []byte(r), err)
		}

		doc = d
	}

	b, err := bson.MarshalExtJSON(blur(doc, loose), true, false)
	if err != nil {
		return fmt.Sprintf("%v: %v", doc, err)
	}

	return string(b)
}

// recent is where what servers make begins.
var recent = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// blur replaces what servers make, and with loose the numbers.
func blur(v any, loose bool) any {
	switch v := v.(type) {
	case bson.D:
		out := make(bson.D, len(v))
		for i, e := range v {
			out[i] = bson.E{Key: e.Key, Value: blur(e.Value, loose)}
		}

		return out
	case bson.A:
		out := make(bson.A, len(v))
		for i, e := range v {
			out[i] = blur(e, loose)
		}

		return out
	case bson.RawValue:
		var out any
		if err := v.Unmarshal(&out); err != nil {
			return err.Error()
		}

		return blur(out, loose)
	case bson.ObjectID:
		if v.Timestamp().After(recent) {
			return "(an ObjectId)"
		}
	case bson.DateTime:
		if v.Time().After(recent) && v.Time().Before(time.Now().Add(time.Hour)) {
			return "(a date)"
		}
	case bson.Timestamp:
		if int64(v.T) > recent.Unix() && int64(v.T) < time.Now().Unix()+3600 {
			return "(a timestamp)"
		}
	case bson.Symbol:
		if loose {
			return string(v)
		}
	case int32, int64, float64, bson.Decimal128:
		if loose {
			return number(v)
		}
	}

	return v
}

// number writes a number so that equal ones of different types are the same.
func number(v any) string {
	f, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	if err != nil { // too large for a double
		return fmt.Sprint(v)
	}

	return strconv.FormatFloat(f+0, 'g', 12, 64) // +0: no -0
}
