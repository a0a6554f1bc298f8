package compat

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestClientsThatNeverRead: the replies that they leave are bounded, those who wait longest lose their connections, and others are served.
func TestClientsThatNeverRead(t *testing.T) {
	const (
		limit   = 32 << 20
		size    = 900 << 10 // of a document
		docs    = 8
		clients = 10
		kept    = limit / (docs * size)
	)

	db := newDB(t)

	addr, probes, stop := aside(t, "unread:1", fmt.Sprintf("SHARDGATE_MAXUNREADREPLIES=%d", limit), "SHARDGATE_DRAINTIMEOUT=100ms")
	defer stop()

	coll := connect(t, "mongodb://"+addr+"/?directConnection=true").Database(db).Collection("c")

	for i := range docs {
		_, err := coll.InsertOne(opContext(t, opLimit), bson.D{{"_id", i}, {"text", make([]byte, size)}})
		require.NoError(t, err)
	}

	ask := func() *rawConn {
		conn, err := net.DialTimeout("tcp", addr, rawLimit)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })

		c := &rawConn{Conn: conn, t: t, last: 1000}
		c.write(c.msg(0, c.body(bson.D{{"find", "c"}, {"$db", db}})))

		return c
	}
	metric := func(name string) int64 {
		_, text := page(t, "http://"+probes+"/metrics")
		found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
		require.NotNil(t, found, name)

		n, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)

		return int64(n)
	}

	for range clients {
		ask()
	}

	eventually(t, recoverLimit, "only so many replies wait", func() error {
		if cut, held := metric("shardgate_unread_closed_total"), metric("shardgate_unread_reply_bytes"); cut != clients-kept || held > limit {
			return fmt.Errorf("%d connections were closed, %d bytes wait", cut, held)
		}

		return nil
	})

	// The shards' connections are free, and a client that reads gets all of it, however slowly it begins.
	require.Equal(t, int64(docs), count(t, coll, bson.D{}))

	late := ask()
	<-time.After(50 * time.Millisecond)
	m, err := late.read()
	require.NoError(t, err)
	require.Len(t, batch(t, m.Body, "firstBatch"), docs)

	status, _ := page(t, "http://"+probes+"/readyz")
	require.Equal(t, http.StatusOK, status)
}
