package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// doc is a document of the given elements.
func doc(tb testing.TB, elems ...bson.E) Doc {
	tb.Helper()
	b, err := bson.Marshal(append(bson.D{}, elems...))
	require.NoError(tb, err)
	return Doc(b)
}

func e(key string, value any) bson.E { return bson.E{Key: key, Value: value} }

// body is a kind-0 section.
func body(d []byte) []byte { return append([]byte{0}, d...) }

// seq is a kind-1 section.
func seq(name string, docs ...[]byte) []byte {
	var all []byte
	for _, d := range docs {
		all = append(all, d...)
	}
	return AppendSequence(nil, name, all)
}

// opMsg is a whole OP_MSG; the checksum follows where the flags say so.
func opMsg(flags uint32, sections ...[]byte) []byte {
	b := AppendHeader(nil, 7, 0, OpMsg)
	b = append(b, byte(flags), byte(flags>>8), byte(flags>>16), byte(flags>>24))
	for _, s := range sections {
		b = append(b, s...)
	}
	if flags&FlagChecksum != 0 {
		b = append(b, 0, 0, 0, 0)
	}
	SetLength(b)
	if flags&FlagChecksum != 0 {
		sum := Checksum(b[:len(b)-4])
		copy(b[len(b)-4:], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)})
	}
	return b
}

// requireCode checks that err can be answered with the code.
func requireCode(t *testing.T, want mongoerr.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrProtocol, "the connection would be closed")
	require.Equal(t, want, mongoerr.CodeOf(err), "%v", err)
}
