package compat

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestCompressors: a driver with each compressor writes and reads documents, small and of many batches, and sees the
// commands that it would see without.
func TestCompressors(t *testing.T) {
	db := newDB(t)
	shardCollection(t, 0, db+".c", bson.D{{"_id", "hashed"}})

	for i, compressors := range [][]string{{"snappy"}, {"zlib"}, {"zstd"}, {"zstd", "snappy", "zlib"}} {
		t.Run(strings.Join(compressors, " "), func(t *testing.T) {
			var names []string

			monitor := &event.CommandMonitor{Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
				names = append(names, e.CommandName)
			}}
			client, err := mongo.Connect(options.Client().ApplyURI(shared.cluster.RouterURI(0)).SetCompressors(compressors).SetMonitor(monitor))
			require.NoError(t, err)

			defer func() { require.NoError(t, client.Disconnect(context.WithoutCancel(t.Context()))) }()

			var docs []any
			for k := range 3000 {
				docs = append(docs, bson.D{{"_id", fmt.Sprint(i, " ", k)}, {"by", i}, {"text", strings.Repeat("words ", k%500)}})
			}

			coll := client.Database(db).Collection("c")
			_, err = coll.InsertMany(t.Context(), docs)
			require.NoError(t, err)

			cur, err := coll.Find(t.Context(), bson.D{{"by", i}}, options.Find().SetBatchSize(700))
			got := map[string]bool{}

			for _, d := range all(t, cur, err) {
				got[d.Lookup("_id").StringValue()] = true
				require.Zero(t, len(d.Lookup("text").StringValue())%len("words "))
			}

			require.Len(t, got, 3000)
			require.Equal(t, []string{"insert", "find", "getMore", "getMore", "getMore", "getMore"}, names)
		})
	}
}
