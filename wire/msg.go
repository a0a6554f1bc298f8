package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Flag bits of an OP_MSG. The low 16 are required: a receiver that does not know
// one closes the connection.
const (
	FlagChecksum       uint32 = 1 << 0
	FlagMoreToCome     uint32 = 1 << 1
	FlagExhaustAllowed uint32 = 1 << 16

	requiredFlags = 0xFFFF
	knownRequired = FlagChecksum | FlagMoreToCome
)

// maxSequences is the greatest number of document sequences in one message
// (MONGOS.md §6: more than two is code 233).
const maxSequences = 2

// Sequence is a kind-1 section: a named run of documents, one after another.
type Sequence struct {
	Name []byte
	Docs []byte
}

// Msg is an OP_MSG read shallowly; all slices alias the message's buffer.
type Msg struct {
	Header
	Flags uint32
	Body  Doc
	Seqs  [maxSequences]Sequence
	NSeqs int
}

// MoreToCome reports whether the sender wants no reply.
func (m *Msg) MoreToCome() bool { return m.Flags&FlagMoreToCome != 0 }

// Sequence returns the documents of the sequence called name.
func (m *Msg) Sequence(name string) ([]byte, bool) {
	for i := range m.Seqs[:m.NSeqs] {
		if string(m.Seqs[i].Name) == name {
			return m.Seqs[i].Docs, true
		}
	}
	return nil, false
}

// ParseMsg reads a whole OP_MSG message into m. Sections may come in any order
// (CASES.md A1). An error that is ErrProtocol means that the connection must be
// closed; a *mongoerr.Error can be answered.
func ParseMsg(b []byte, m *Msg) error {
	if len(b) < HeaderLen+4 {
		return fmt.Errorf("%w: OP_MSG of %d bytes", ErrProtocol, len(b))
	}
	*m = Msg{Header: ParseHeader(b)}
	m.Flags = binary.LittleEndian.Uint32(b[HeaderLen:])
	if m.Flags&requiredFlags&^knownRequired != 0 {
		return fmt.Errorf("%w: unknown required flag bits %#x", ErrProtocol, m.Flags)
	}
	rest := b[HeaderLen+4:]
	if m.Flags&FlagChecksum != 0 {
		if len(rest) < 4 {
			return fmt.Errorf("%w: no room for the checksum", ErrProtocol)
		}
		sum := binary.LittleEndian.Uint32(b[len(b)-4:])
		if sum != Checksum(b[:len(b)-4]) {
			return fmt.Errorf("%w: checksum does not match", ErrProtocol)
		}
		rest = rest[:len(rest)-4]
	}
	return m.sections(rest)
}

// Checksum is the CRC-32C that ends a message with FlagChecksum.
func Checksum(b []byte) uint32 {
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

func (m *Msg) sections(rest []byte) error {
	for len(rest) > 0 {
		kind := rest[0]
		rest = rest[1:]
		n := frameLen(rest, 5)
		switch kind {
		case 0:
			if n < 0 {
				return mongoerr.New(mongoerr.InvalidBSON, "invalid BSON in the body section")
			}
			if m.Body != nil {
				return mongoerr.New(40430, "Multiple body sections in message")
			}
			m.Body = Doc(rest[:n])
		case 1:
			if n = sequenceLen(rest); n < 0 {
				return mongoerr.New(mongoerr.InvalidBSON, "invalid document sequence")
			}
			if err := m.sequence(rest[4:n]); err != nil {
				return err
			}
		default:
			return mongoerr.Newf(40432, "Unknown section kind %d", kind)
		}
		rest = rest[n:]
	}
	if m.Body == nil {
		return mongoerr.New(40587, "OP_MSG messages must have a body")
	}
	return nil
}

// sequenceLen returns the length of a kind-1 section: int32 and name at least. A
// sequence, unlike a document, need not end in a zero byte of its own.
func sequenceLen(b []byte) int {
	if len(b) < 5 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	if n < 5 || n > len(b) {
		return -1
	}
	return n
}

func (m *Msg) sequence(b []byte) error {
	end := bytes.IndexByte(b, 0)
	if end < 0 {
		return mongoerr.New(mongoerr.InvalidBSON, "document sequence without a name")
	}
	name, docs := b[:end], b[end+1:]
	if _, dup := m.Sequence(string(name)); dup {
		return mongoerr.Newf(40431, "Duplicate document sequence: %s", name)
	}
	if m.NSeqs == maxSequences {
		return fmt.Errorf("%w: too many document sequences", ErrProtocol)
	}
	for rest := docs; len(rest) > 0; {
		n := frameLen(rest, 5)
		if n < 0 {
			return mongoerr.Newf(mongoerr.InvalidBSON, "invalid BSON in document sequence %s", name)
		}
		rest = rest[n:]
	}
	m.Seqs[m.NSeqs] = Sequence{Name: name, Docs: docs}
	m.NSeqs++
	return nil
}

// AppendMsgStart appends the header, flags and kind byte of an OP_MSG with one
// body section; the document follows, then SetLength on the whole.
func AppendMsgStart(dst []byte, requestID, responseTo int32, flags uint32) []byte {
	dst = AppendHeader(dst, requestID, responseTo, OpMsg)
	dst = binary.LittleEndian.AppendUint32(dst, flags)
	return append(dst, 0)
}

// MsgBodyAt is the offset of the body's document in a message that was begun by
// AppendMsgStart.
const MsgBodyAt = HeaderLen + 5

// ReplyBody returns the one document of a reply that has a single body section,
// as every mongod sends.
func ReplyBody(msg []byte) (Doc, error) {
	if len(msg) < MsgBodyAt+5 || ParseHeader(msg).OpCode != OpMsg || msg[HeaderLen+4] != 0 {
		return nil, fmt.Errorf("%w: unexpected reply", ErrProtocol)
	}
	if frameLen(msg[MsgBodyAt:], 5) != len(msg)-MsgBodyAt {
		return nil, fmt.Errorf("%w: reply's document does not fill it", ErrProtocol)
	}
	return Doc(msg[MsgBodyAt:]), nil
}
