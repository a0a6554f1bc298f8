package compat

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// TestErrorNames asks a mongod for the name of every error code.
func TestErrorNames(t *testing.T) {
	judge := dialJudge(t)

	codes := []int{9001, 10003, 10107, 10334, 11000, 11600, 11601, 11602, 13297, 13388, 13435, 13436, 17280, 31082, 46841, 50768}
	for n := range 379 {
		if n+1 != 330 { // a mongod that is told to answer with it aborts
			codes = append(codes, n+1)
		}
	}

	for _, n := range codes {
		reply := judge.run(bson.D{
			{"configureFailPoint", "failCommand"},
			{"mode", bson.D{{"times", 1}}},
			{"data", bson.D{{"errorCode", n}, {"failCommands", bson.A{"ping"}}, {"errorExtraInfo", bson.D{}}}},
			{"$db", "admin"},
		})
		if reply.Lookup("ok").Double() != 1 {
			continue
		}

		judge.write(judge.msg(0, judge.body(bson.D{{"ping", 1}, {"$db", "admin"}})))

		m, err := judge.read()
		if err != nil { // some errors close the connection
			conn, err := net.Dial("tcp", judge.RemoteAddr().String())
			require.NoError(t, err, "%d", n)

			judge.Conn = conn

			continue
		}

		reply = m.Body
		if got, okay := reply.Lookup("code").AsInt64OK(); !okay || got != int64(n) {
			continue // one that brings more than a code
		}

		assert.Equal(t, reply.Lookup("codeName").StringValue(), mongoerr.Code(n).String(), "%d", n)
	}
}
