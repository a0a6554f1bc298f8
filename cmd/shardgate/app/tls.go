package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// TLSConfig is how clients reach the router through TLS.
type TLSConfig struct {
	CertFile   string `mapstructure:"certFile"`   // the router's certificate, and what leads to its root; empty: no TLS
	KeyFile    string `mapstructure:"keyFile"`    // its key
	CAFile     string `mapstructure:"caFile"`     // whose certificates clients must show; empty: none need to
	MinVersion string `mapstructure:"minVersion"` // 1.2 or 1.3
}

func (c *TLSConfig) check() error {
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("tls.certFile: needs tls.keyFile, and the other way round")
	case c.CAFile != "" && c.CertFile == "":
		return errors.New("tls.caFile: needs tls.certFile")
	}
	if _, known := tlsVersions[c.MinVersion]; !known {
		return fmt.Errorf("tls.minVersion: %q is none of 1.2, 1.3", c.MinVersion)
	}
	return nil
}

var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// tlsLookEvery is how often the files are looked at for a change, at most.
const tlsLookEvery = time.Second

// tlsFiles keeps what the files of a TLSConfig hold. They may be replaced at any time:
// connections made later see what is new. While that cannot be read, the old stays.
type tlsFiles struct {
	conf *TLSConfig
	log  zerolog.Logger

	mu     sync.Mutex
	looked time.Time     // guarded by mu
	stamps [3]time.Time  // guarded by mu: when the files were changed
	now    *tls.Config   // guarded by mu
	err    error         // guarded by mu: why what is new is not taken
	every  time.Duration // tlsLookEvery, but in tests
}

// serverTLS returns the listener's configuration, nil for none.
func serverTLS(c *TLSConfig, log zerolog.Logger) (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	f := &tlsFiles{conf: c, log: log, every: tlsLookEvery}
	if err := f.load(f.changed()); err != nil {
		return nil, err
	}
	f.looked = time.Now()
	return &tls.Config{
		MinVersion:         tlsVersions[c.MinVersion],
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current(), nil },
	}, nil
}

// peerTLS returns how this router connects to others, which listen as it does; nil if
// without TLS. It shows the listener's certificate, as they may want one, and does not look
// at theirs: the two prove to each other, for this very connection, that they know the
// cluster's key.
func peerTLS(listener *tls.Config) func() *tls.Config {
	if listener == nil {
		return nil
	}
	return func() *tls.Config {
		c := &tls.Config{MinVersion: listener.MinVersion, InsecureSkipVerify: true}
		if now, err := listener.GetConfigForClient(nil); err == nil {
			c.Certificates = now.Certificates
		}
		return c
	}
}

// current is the configuration for a connection that begins.
func (f *tlsFiles) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < f.every {
		return f.now
	}
	f.looked = time.Now()
	stamps := f.changed()
	if stamps == f.stamps {
		return f.now
	}
	err := f.load(stamps)
	switch {
	case err == nil:
		f.log.Info().Str("certificate", f.conf.CertFile).Msg("the listener's TLS files were loaded again")
	case f.err == nil || err.Error() != f.err.Error():
		// It may be that only some of the files are new yet.
		f.log.Error().Err(err).Msg("the listener's TLS files cannot be loaded again; what was loaded before stays")
	}
	f.err = err
	return f.now
}

// changed says when the files were changed; what is not there never was.
func (f *tlsFiles) changed() (stamps [3]time.Time) {
	for i, name := range []string{f.conf.CertFile, f.conf.KeyFile, f.conf.CAFile} {
		if info, err := os.Stat(name); err == nil {
			stamps[i] = info.ModTime()
		}
	}
	return stamps
}

func (f *tlsFiles) load(stamps [3]time.Time) error {
	cert, err := tls.LoadX509KeyPair(f.conf.CertFile, f.conf.KeyFile)
	if err != nil {
		return fmt.Errorf("tls.certFile: %w", err)
	}
	conf := &tls.Config{MinVersion: tlsVersions[f.conf.MinVersion], Certificates: []tls.Certificate{cert}}
	if f.conf.CAFile != "" {
		if conf.ClientCAs, err = certPool(f.conf.CAFile); err != nil {
			return fmt.Errorf("tls.caFile: %w", err)
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	f.now, f.stamps = conf, stamps
	return nil
}

// certPool reads certificates to check others by.
func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("holds no certificate")
	}
	return pool, nil
}
