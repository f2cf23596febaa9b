// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"os"
	"strings"
	"time"
)

// Both sides do what go-plugin's AutoMTLS does, and work with a side that
// leaves it to go-plugin: a certificate for one run each, the host's in the
// environment, the extension's in the handshake. The keys are on P-256 and
// not on P-521, for which Go has no fast code: making, signing and verifying
// with P-521 was measured to be some 40 of the 46 ms of processor time that a
// start takes.

// clientCertKey is the variable that go-plugin uses for the host's certificate.
const clientCertKey = "PLUGIN_CLIENT_CERT"

// HostTLS returns the TLS configuration of the host's side of one connection
// and the variable, NAME=value, that an extension's environment must hold. It
// contains a certificate and no secret. go-plugin completes the configuration
// with the certificate that the extension answers with.
func HostTLS() (config *tls.Config, variable string, err error) {
	cert, err := newCertificate()
	if err != nil {
		return nil, "", err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		// Nobody is trusted until the handshake has named the extension.
		RootCAs:    x509.NewCertPool(),
		MinVersion: tls.VersionTLS13,
		ServerName: "localhost",
	}, clientCertKey + "=" + string(text), nil
}

// extensionTLS returns the TLS configuration of the extension's side, and its
// certificate as it stands in the handshake.
func extensionTLS(hostCert string) (config *tls.Config, handshake string, err error) {
	host := x509.NewCertPool()
	if !host.AppendCertsFromPEM([]byte(hostCert)) {
		return nil, "", errors.New("the host gave no certificate: an extension is served with mutual TLS only")
	}
	cert, err := newCertificate()
	if err != nil {
		return nil, "", err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    host,
		MinVersion:   tls.VersionTLS13,
	}, base64.RawStdEncoding.EncodeToString(cert.Certificate[0]), nil
}

// newCertificate returns a certificate that vouches for itself, for one run.
func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "localhost", Organization: []string{"sandboxer"}},
		DNSNames:     []string{"localhost"},
		// Ten years: a host that runs as a service keeps its extensions, and
		// a reconnect verifies anew. The key never leaves the process.
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true, // each side's pool holds the other's certificate as its root
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// completeHandshake puts a certificate into the handshake line, whose sixth
// field go-plugin leaves empty when it did not make the certificate itself. It
// stands between go-plugin and the real standard output until that line has
// passed.
func completeHandshake(certificate string) error {
	real := os.Stdout
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	os.Stdout = w
	go func() {
		line, err := bufio.NewReader(r).ReadString('\n')
		if err == nil {
			line = strings.TrimSuffix(line, "\n") + certificate + "\n"
		}
		_, _ = io.WriteString(real, line)
		_ = r.Close()
		_ = w.Close()
	}()
	return nil
}
