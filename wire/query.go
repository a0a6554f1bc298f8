package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Query is an OP_QUERY: the handshake of most drivers, and what very old clients
// send. Slices alias the message's buffer.
type Query struct {
	Header
	NS  []byte
	Doc Doc
}

// ParseQuery reads a whole OP_QUERY message. All its errors are ErrProtocol.
func ParseQuery(b []byte) (Query, error) {
	if len(b) < HeaderLen+4 {
		return Query{}, fmt.Errorf("%w: short OP_QUERY", ErrProtocol)
	}
	q := Query{Header: ParseHeader(b)}
	rest := b[HeaderLen+4:]
	end := bytes.IndexByte(rest, 0)
	if end < 0 || len(rest) < end+1+8 {
		return q, fmt.Errorf("%w: short OP_QUERY", ErrProtocol)
	}
	q.NS = rest[:end]
	rest = rest[end+9:]
	n := frameLen(rest, 5)
	if n < 0 {
		return q, fmt.Errorf("%w: OP_QUERY without a document", ErrProtocol)
	}
	q.Doc = Doc(rest[:n])
	return q, nil
}

// ReplyQueryFailure is the OP_REPLY flag of a failed query; the document then
// holds $err.
const ReplyQueryFailure uint32 = 1 << 1

// AppendReplyStart appends the head of an OP_REPLY with one document, which
// follows; then SetLength on the whole.
func AppendReplyStart(dst []byte, requestID, responseTo int32, flags uint32) []byte {
	dst = AppendHeader(dst, requestID, responseTo, OpReply)
	dst = binary.LittleEndian.AppendUint32(dst, flags)
	dst = binary.LittleEndian.AppendUint64(dst, 0)  // cursor id
	dst = binary.LittleEndian.AppendUint32(dst, 0)  // starting from
	return binary.LittleEndian.AppendUint32(dst, 1) // number returned
}
