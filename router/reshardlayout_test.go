package router

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
)

// pattern parses a shard key.
func pattern(t *testing.T, key bson.D) *shardkey.Pattern {
	t.Helper()
	raw, err := bson.Marshal(key)
	require.NoError(t, err)
	p, err := shardkey.ParsePattern(raw)
	require.NoError(t, err)
	return p
}

// cutsAt are cuts of the key {k: 1}.
func cutsAt(t *testing.T, p *shardkey.Pattern, values ...int32) (list []cut) {
	t.Helper()
	for _, v := range values {
		raw, err := bson.Marshal(bson.D{{Key: "k", Value: v}})
		require.NoError(t, err)
		key, err := p.AppendBound(nil, raw)
		require.NoError(t, err)
		list = append(list, cut{raw, key})
	}
	return list
}

// TestQuantiles: as many parts alike as there are, no value twice.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	p := pattern(t, bson.D{{Key: "k", Value: int32(1)}})
	all := make([]int32, 100)
	for i := range all {
		all[i] = int32(i)
	}
	texts := func(cuts []cut) (list []string) {
		for _, c := range cuts {
			list = append(list, shardkey.Format(c.bound))
		}
		return list
	}
	require.Equal(t, []string{"{ k: 25 }", "{ k: 50 }", "{ k: 75 }"}, texts(quantiles(cutsAt(t, p, all...), 4)))
	require.Equal(t, []string{"{ k: 1 }", "{ k: 7 }"}, texts(quantiles(cutsAt(t, p, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7), 5)))
	require.Empty(t, quantiles(nil, 5))
	require.Empty(t, quantiles(cutsAt(t, p, all...), 1))
}

// TestDeal: contiguous groups, or as shardDistribution says; always a whole table.
func TestDeal(t *testing.T) {
	t.Parallel()
	p := pattern(t, bson.D{{Key: "k", Value: int32(1)}})
	bound := func(v any) bson.Raw {
		raw, err := bson.Marshal(bson.D{{Key: "k", Value: v}})
		require.NoError(t, err)
		return raw
	}
	for want, spec := range map[string]*ReshardSpec{
		"a a b b c": {},
		"c c c b b": {Shares: []Share{{Shard: "c"}, {Shard: "b"}}},
		"b b a a a a": {Shares: []Share{
			{Shard: "a", Min: bound(15), Max: bound(bson.MaxKey{})}, {Shard: "b", Min: bound(bson.MinKey{}), Max: bound(15)},
		}},
		"a c": {Chunks: []Share{
			{Shard: "c", Min: bound(15), Max: bound(bson.MaxKey{})}, {Shard: "a", Min: bound(bson.MinKey{}), Max: bound(15)},
		}},
	} {
		spec.Key = p
		chunks, err := spec.deal(cutsAt(t, p, 10, 20, 30, 40), []string{"a", "b", "c"})
		require.NoError(t, err)
		_, err = shardkey.NewTable(catalog.CollectionChunks{Collection: catalog.Collection{Key: p.Raw()}, Chunks: chunks})
		require.NoError(t, err)
		got := ""
		for _, c := range chunks {
			got += " " + c.Shard
		}
		require.Equal(t, " "+want, got, fmt.Sprint(spec))
	}
}
