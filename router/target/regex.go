package target

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog/shardkey"
)

// matching returns where strings that match a regular expression are, and the
// regular expression itself, which matches too. It narrows if the expression
// begins with ^ and plain characters.
func (c *condition) matching(regex []byte) (ranges, bool) {
	if c.rest != nil || c.field == c.p.HashedField() || c.collated {
		return nil, false
	}
	pattern, options, _ := bytes.Cut(bytes.TrimSuffix(regex, []byte{0}), []byte{0})
	prefix := fixedPrefix(pattern)
	if len(prefix) == 0 || len(options) > 0 {
		return nil, false
	}
	lo := append([]byte{shardkey.Class(bson.TypeString)}, prefix...)
	hi := bytes.Clone(lo)
	hi[len(hi)-1]++ // a plain character, so there is a next one
	class := shardkey.Class(bson.TypeRegex)
	return normal([]interval{{lo: lo, hi: hi}, {lo: []byte{class}, hi: []byte{class + 1}}}), true
}

// fixedPrefix returns the plain characters that any string matched by the
// pattern begins with.
func fixedPrefix(pattern []byte) []byte {
	if len(pattern) == 0 || pattern[0] != '^' || bytes.IndexByte(pattern, '|') >= 0 {
		return nil
	}
	rest := pattern[1:]
	n := 0
	for n < len(rest) && isPlain(rest[n]) {
		n++
	}
	if n > 0 && n < len(rest) && bytes.IndexByte([]byte("*?{"), rest[n]) >= 0 {
		n-- // the last one may be absent
	}
	return rest[:n]
}

// isPlain says whether a character stands for itself in a regular expression.
func isPlain(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' ||
		bytes.IndexByte([]byte(" _-:/@,;=!%&~'\"<>"), c) >= 0
}
