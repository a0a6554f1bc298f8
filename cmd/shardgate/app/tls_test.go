package app

import (
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

// replace puts a file in the place of another, with a later time.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	at := time.Now()
	if info, err := os.Stat(path); err == nil {
		at = info.ModTime().Add(time.Second)
	}
	require.NoError(t, os.WriteFile(path, content, 0o600))
	require.NoError(t, os.Chtimes(path, at, at))
}

// shake agrees on TLS and returns the name in the server's certificate.
func shake(t *testing.T, server, client *tls.Config) (string, error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	require.NoError(t, err)
	defer l.Close()
	served := make(chan error, 1)
	refused := func(err error) (string, error) {
		if serr := <-served; serr != nil {
			t.Log(serr)
		}
		return "", err
	}
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Write([]byte("x"))
			c.Close()
		}
		served <- err
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return refused(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // what a server refuses is seen only now
		return refused(err)
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName, <-served
}

// TestTLSFilesAreLoadedAgain: new connections see new files, and files that do not fit harm
// nobody.
func TestTLSFilesAreLoadedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := &TLSConfig{CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key"), MinVersion: "1.2"}
	_, err := serverTLS(conf, zerolog.Nop())
	require.ErrorContains(t, err, "tls.certFile")

	a := clustertest.NewAuthority(t)
	cert, key := a.Issue(t, "first")
	replace(t, conf.CertFile, cert)
	replace(t, conf.KeyFile, key)
	f := &tlsFiles{conf: conf, log: zerolog.Nop()}
	server := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current(), nil }}
	client := &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}
	name, err := shake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, "first", name)

	cert, key = a.Issue(t, "second")
	replace(t, conf.CertFile, cert) // the key is yet to come
	name, err = shake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, "first", name)
	replace(t, conf.KeyFile, key)
	name, err = shake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, "second", name)
}

// TestTLSClientCertificates: with a caFile clients must show a certificate of it.
func TestTLSClientCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, other := clustertest.NewAuthority(t), clustertest.NewAuthority(t)
	cert, key := a.Issue(t, "router")
	conf := &TLSConfig{CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key"), CAFile: filepath.Join(dir, "ca"), MinVersion: "1.3"}
	replace(t, conf.CertFile, cert)
	replace(t, conf.KeyFile, key)
	replace(t, conf.CAFile, []byte("nothing"))
	_, err := serverTLS(conf, zerolog.Nop())
	require.ErrorContains(t, err, "tls.caFile")
	replace(t, conf.CAFile, a.PEM())
	server, err := serverTLS(conf, zerolog.Nop())
	require.NoError(t, err)
	with := func(by *clustertest.Authority, newest uint16) *tls.Config {
		c := &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12, MaxVersion: newest}
		if by != nil {
			cert, key := by.Issue(t, "client")
			pair, err := tls.X509KeyPair(cert, key)
			require.NoError(t, err)
			c.Certificates = []tls.Certificate{pair}
		}
		return c
	}
	_, err = shake(t, server, with(a, 0))
	require.NoError(t, err)
	for _, client := range []*tls.Config{with(nil, 0), with(other, 0), with(a, tls.VersionTLS12)} {
		_, err = shake(t, server, client)
		require.Error(t, err)
	}
}

func TestTLSConfigIsChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"tls: {certFile: a}":            "tls.certFile",
		"tls: {keyFile: a}":             "tls.certFile",
		"tls: {caFile: a}":              "tls.caFile",
		"tls: {minVersion: '1.1'}":      "tls.minVersion",
		"tls: {certfile: a, other: 2 }": "tls.other",
	} {
		_, err := load(t, text)
		require.ErrorContains(t, err, want, text)
	}
}
