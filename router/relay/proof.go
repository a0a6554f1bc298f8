package relay

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// Secret is what routers of one cluster know.
type Secret [sha256.Size]byte

// NewSecret makes the secret of the cluster's key.
func NewSecret(key []byte) (s Secret) {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("shardgate relay"))
	m.Sum(s[:0])
	return s
}

// nonceLen is the length in bytes of the random number that each side contributes.
const nonceLen = 32

// The sides of a connection: what proves one is no proof of the other.
const (
	asCaller = "caller"
	asHome   = "home"
)

// proof is what a side shows. All parts but the last have a fixed length.
func (s *Secret) proof(side string, caller, home, binding []byte) []byte {
	m := hmac.New(sha256.New, s[:])
	m.Write([]byte(side))
	m.Write(caller)
	m.Write(home)
	m.Write(binding)
	return m.Sum(nil)
}

// Binding names an encrypted connection so that its two ends agree, and no other
// connection has the name; nil for one that is not encrypted.
func Binding(t *tls.ConnectionState) ([]byte, error) {
	if t == nil {
		return nil, nil
	}
	return t.ExportKeyingMaterial("EXPORTER-shardgate-relay", nil, 32)
}

// Door is how a router lets another in: the state of one connection that was made to it.
// The zero value is closed.
type Door struct {
	want []byte // the proof that opens it
	open bool
}

// Knock takes a caller's random number and returns this router's own and its proof.
func (d *Door) Knock(s *Secret, caller, binding []byte) (nonce, proof []byte, err error) {
	if len(caller) != nonceLen {
		return nil, nil, mongoerr.Newf(mongoerr.BadValue, "the nonce must have %d bytes", nonceLen)
	}
	nonce = make([]byte, nonceLen)
	if _, err := rand.Read(nonce); err != nil {
		return nil, nil, err
	}
	*d = Door{want: s.proof(asCaller, caller, nonce, binding)}
	return nonce, s.proof(asHome, caller, nonce, binding), nil
}

// Enter opens the door to who proves to be a router. One proof is for one try.
func (d *Door) Enter(proof []byte) error {
	want := d.want
	d.want = nil
	if want == nil || !hmac.Equal(want, proof) {
		return mongoerr.New(mongoerr.AuthenticationFailed, "this is not a router of the cluster")
	}
	d.open = true
	return nil
}

// Open reports whether a router is at the other end.
func (d *Door) Open() bool { return d.open }
