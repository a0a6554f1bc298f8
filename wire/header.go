package wire

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
)

// OpCode is a message's kind.
type OpCode int32

// The opcodes of MongoDB 6.0. Those before OP_COMPRESSED are the old protocol, of
// which only OP_QUERY handshakes are still answered.
const (
	OpReply       OpCode = 1
	OpUpdate      OpCode = 2001
	OpInsert      OpCode = 2002
	OpQuery       OpCode = 2004
	OpGetMore     OpCode = 2005
	OpDelete      OpCode = 2006
	OpKillCursors OpCode = 2007
	OpCompressed  OpCode = 2012
	OpMsg         OpCode = 2013
)

// The limits of MONGOS.md §6, in bytes and statements.
const (
	HeaderLen      = 16
	MaxMessageLen  = 48_000_000
	MaxDocumentLen = 16 * 1024 * 1024
	MaxBatch       = 100_000
	// MaxInternalLen bounds a reply or command around one document of the
	// greatest size.
	MaxInternalLen = MaxDocumentLen + 16*1024
)

// ErrProtocol is the kind of all errors after which a connection must be closed:
// what follows on it cannot be trusted.
var ErrProtocol = errors.New("wire: protocol error")

// Header is the head of every message. Lengths include it.
type Header struct {
	Length     int32
	RequestID  int32
	ResponseTo int32
	OpCode     OpCode
}

// ParseHeader reads a header from the first 16 bytes of b.
func ParseHeader(b []byte) Header {
	return Header{
		Length:     int32(binary.LittleEndian.Uint32(b)),
		RequestID:  int32(binary.LittleEndian.Uint32(b[4:])),
		ResponseTo: int32(binary.LittleEndian.Uint32(b[8:])),
		OpCode:     OpCode(binary.LittleEndian.Uint32(b[12:])),
	}
}

// AppendHeader appends a header whose length is yet to be set by SetLength.
func AppendHeader(dst []byte, requestID, responseTo int32, op OpCode) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(requestID))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(responseTo))
	return binary.LittleEndian.AppendUint32(dst, uint32(op))
}

// SetLength writes the length of a message or document that is all of b.
func SetLength(b []byte) { binary.LittleEndian.PutUint32(b, uint32(len(b))) }

// RequestIDs hands out request ids for one process.
type RequestIDs struct{ last atomic.Int32 }

// Next returns the next id; never 0.
func (r *RequestIDs) Next() int32 {
	for {
		if id := r.last.Add(1); id != 0 {
			return id
		}
	}
}
