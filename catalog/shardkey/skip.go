package shardkey

import (
	"bytes"
	"encoding/binary"
)

// FieldLen is the number of bytes that the first field of an encoded key takes,
// or -1 if key is not an encoded key.
func FieldLen(key []byte) int { return encodedLen(key, 0) }

// encodedLen is the length of the encoding of one value at the beginning of b.
func encodedLen(b []byte, depth int) int {
	if len(b) == 0 {
		return -1
	}
	n := payloadLen(b[0], b[1:], depth)
	if n < 0 || n >= len(b) {
		return -1
	}
	return n + 1
}

// payloadLen is the length of what follows the class; it may exceed len(b).
func payloadLen(class byte, b []byte, depth int) int {
	switch class {
	case ClassMinKey, classUndefined, classNull, ClassMaxKey:
		return 0
	case classBool:
		return 1
	case ClassHash, classDate, classTimestamp:
		return 8
	case classObjectID:
		return 12
	case classNum:
		return numberLen(b)
	case classString, classCode:
		return encodedTextLen(b)
	case classRegex:
		return regexLen(b)
	case classBinary:
		return sizedLen(b, 1)
	case classDBPointer:
		return sizedLen(b, 12)
	case classObject, classArray:
		return elementsLen(b, class == classObject, depth)
	case classCodeScope:
		n := encodedTextLen(b)
		if n < 0 {
			return -1
		}
		if m := elementsLen(b[n:], true, depth); m >= 0 {
			return n + m
		}
	}
	return -1
}

// numberLen: eight bytes, the mark, and the digits if the mark says so.
func numberLen(b []byte) int {
	const short, long = 9, 9 + 18
	if len(b) < short {
		return -1
	}
	if mark := b[short-1]; mark == numCutOff || mark == ^byte(numCutOff) {
		return long
	}
	return short
}

// encodedTextLen is the length of a string up to and with its end, 00 00.
func encodedTextLen(b []byte) int {
	for at := 0; ; {
		i := bytes.IndexByte(b[at:], 0)
		if i < 0 || at+i+1 >= len(b) {
			return -1
		}
		at += i + 2
		if b[at-1] == 0 {
			return at
		}
	}
}

// sizedLen is the length of a value that begins with its size and has extra
// bytes behind it.
func sizedLen(b []byte, extra int) int {
	if len(b) < 4 {
		return -1
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)) {
		return -1
	}
	return 4 + int(n) + extra
}

// elementsLen is the length of elements up to and with their end.
func elementsLen(b []byte, names bool, depth int) int {
	if depth > MaxDepth {
		return -1
	}
	at := 0
	for at < len(b) {
		class := b[at]
		at++
		if class == classEnd {
			return at
		}
		if names {
			end := bytes.IndexByte(b[at:], 0)
			if end < 0 {
				return -1
			}
			at += end + 1
		}
		n := payloadLen(class, b[at:], depth+1)
		if n < 0 || n > len(b)-at {
			return -1
		}
		at += n
	}
	return -1
}
