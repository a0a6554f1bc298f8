package router

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestSplitGolden compares every pipeline of testdata/split.txt with how it is split.
func TestSplitGolden(t *testing.T) {
	const file = "testdata/split.txt"
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	var got strings.Builder
	n := 0
	for line := range strings.Lines(string(want)) {
		key, rest, _ := strings.Cut(line, ":")
		switch key {
		case "shard", "merger", "partial", "merge":
			continue // made anew
		}
		got.WriteString(line)
		if key != "pipeline" {
			continue
		}
		n++
		s := splitPipeline(pipelineOf(t, rest))
		fmt.Fprintf(&got, "shard: %s\nmerger: %s\n", text(t, s.shard), text(t, s.merger))
		if s.partial {
			got.WriteString("partial: true\n")
		}
		if s.order != nil || s.skip > 0 || s.limit >= 0 {
			fmt.Fprintf(&got, "merge: descending %v, skip %d, limit %d\n", s.order, s.skip, s.limit)
		}
	}
	require.Greater(t, n, 20)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o600))
		return
	}
	require.Equal(t, string(want), got.String())
}

func pipelineOf(t *testing.T, s string) []wire.Doc {
	t.Helper()
	var d struct{ P []bson.Raw }
	require.NoError(t, bson.UnmarshalExtJSON([]byte(`{"p": `+s+`}`), false, &d), s)
	var stages []wire.Doc
	for _, st := range d.P {
		stages = append(stages, wire.Doc(st))
	}
	return stages
}

func text(t *testing.T, stages []wire.Doc) string {
	t.Helper()
	list := bson.A{}
	for _, s := range stages {
		require.NoError(t, s.Validate(100))
		list = append(list, bson.Raw(s))
	}
	b, err := bson.MarshalExtJSON(bson.D{e("p", list)}, false, false)
	require.NoError(t, err)
	return strings.TrimSuffix(strings.TrimPrefix(string(b), `{"p":`), "}")
}

// TestSplitLeavesTheClientsStages: the halves must not grow into each other or into the
// client's command.
func TestSplitLeavesTheClientsStages(t *testing.T) {
	t.Parallel()
	stages := pipelineOf(t, `[{"$match": {"a": 1}}, {"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$sort": {"n": 1}}, {"$limit": 3}]`)
	before := text(t, stages)
	s := splitPipeline(stages)
	require.Len(t, s.shard, 2)
	require.Len(t, s.merger, 3)
	require.Equal(t, before, text(t, stages))
}

func TestSplitPatch(t *testing.T) {
	t.Parallel()
	read := func(s split) (d bson.D) {
		at, b := wire.AppendDocStart(nil)
		own, err := (&scope{entry: &Entry{}}).withStages(s.patch(), s.shard)
		require.NoError(t, err)
		require.NoError(t, bson.Unmarshal(wire.AppendDocEnd(append(b, own.at(0).extra...), at), &d))
		return d
	}
	s := splitPipeline(pipelineOf(t, `[{"$match": {"a": 1}}]`))
	require.Equal(t, bson.D{e("pipeline", bson.A{bson.D{e("$match", bson.D{e("a", int32(1))})}})}, read(s))
	s = splitPipeline(pipelineOf(t, `[{"$group": {"_id": 1}}]`))
	d := read(s)
	require.Equal(t, bson.D{e("fromMongos", true), e("needsMerge", true)}, d[:2])
}

func TestPipelineReaches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pipeline string
		want     []string
	}{
		{`[{"$match": {"$lookup": 1}}]`, nil},
		{`[{"$lookup": {"from": "x", "as": "y"}}]`, []string{"d.x"}},
		{`[{"$graphLookup": {"from": "x"}}]`, []string{"d.x"}},
		{`[{"$unionWith": "x"}]`, []string{"d.x"}},
		{`[{"$unionWith": {"coll": "x", "pipeline": [{"$unionWith": "y"}]}}]`, []string{"d.x", "d.y"}},
		{`[{"$facet": {"a": [{"$lookup": {"from": "x"}}], "b": [{"$sort": {}}]}}]`, []string{"d.x"}},
		{`[{"$lookup": {"from": {"db": "e", "coll": "x"}}}]`, []string{""}},
		{`[{"$lookup": {"from": "x", "pipeline": [{"$lookup": {"from": "y", "pipeline": [{"$unionWith": "z"}]}}]}}]`, []string{"d.x", "d.y", "d.z"}},
	} {
		p, err := parsePipeline(aggregateOp(t, c.pipeline))
		require.NoError(t, err)
		require.ElementsMatch(t, c.want, p.foreign, c.pipeline)
	}
}

func aggregateOp(t *testing.T, pipeline string) *Op {
	t.Helper()
	var d struct{ P bson.RawValue }
	require.NoError(t, bson.UnmarshalExtJSON([]byte(`{"p": `+pipeline+`}`), false, &d), pipeline)
	return writeOp(t, e("pipeline", d.P))
}

func TestPipelineRefused(t *testing.T) {
	t.Parallel()
	deep := `[{"$unionWith": {"coll": "x", "pipeline": []}}]`
	for range maxPipelineDepth {
		deep = `[{"$unionWith": {"coll": "x", "pipeline": ` + deep + `}}]`
	}
	for pipeline, code := range map[string]mongoerr.Code{
		`5`:                              14,
		`{}`:                             14,
		`[5]`:                            14,
		`[{"$count": "n", "$limit": 5}]`: 40323,
		`[{}]`:                           40323,
		deep:                             15,
		`[{"$match":{}}]`:                0,
	} {
		_, err := parsePipeline(aggregateOp(t, pipeline))
		require.Equal(t, code, mongoerr.CodeOf(err), pipeline)
	}
	_, err := parsePipeline(writeOp(t))
	requireCode(t, 40414, err)
}

func TestPipelineMatch(t *testing.T) {
	t.Parallel()
	for pipeline, want := range map[string]string{
		`[]`:                                    `{}`,
		`[{"$match": {"a": 1}}]`:                `{"a":1}`,
		`[{"$sort": {}}, {"$match": {"a": 1}}]`: `{}`,
		`[{"$match": 5}]`:                       `{}`,
	} {
		p, err := parsePipeline(aggregateOp(t, pipeline))
		require.NoError(t, err)
		b, err := bson.MarshalExtJSON(p.match(), false, false)
		require.NoError(t, err)
		require.Equal(t, want, string(b), pipeline)
	}
}
