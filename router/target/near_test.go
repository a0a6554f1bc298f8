package target

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestHasNear(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]bool{
		`{}`:                       false,
		`{"p": {"$near": [0, 0]}}`: true,
		`{"p": {"$maxDistance": 3, "$nearSphere": [0, 0]}, "a": 1}`:               true,
		`{"$and": [{"a": 1}, {"$and": [{"p": {"$geoNear": [0, 0]}}]}]}`:           true,
		`{"p": {"$geoWithin": {"$center": [[0, 0], 1]}}}`:                         false,
		`{"p": {"near": 1}, "$near": 1}`:                                          false,
		`{"$or": [{"a": {"$eq": {"$near": 1}}}], "$and": 3, "$comment": "$near"}`: false,
	} {
		var d bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(filter), false, &d))
		require.Equal(t, want, HasNear(d), filter)
	}
	require.False(t, HasNear(nil))
}
